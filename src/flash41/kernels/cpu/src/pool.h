// Threads of this library: made once, pinned, shared by all calls.
//
// `run` calls task(context, item) for each item 0..items-1 on up to `threads` threads and returns when all are done, or
// throws what the first failing item threw.
// Items are taken from a counter, so that cores finish together; who computes an item changes no bit of it.  A second
// caller that comes while the pool is busy computes its items alone.
#pragma once
#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace flash41 {

using Task = void (*)(void* context, int64_t item);

constexpr int SPINS = 4000;  // about 20 microseconds: longer than the gap between two operations of a layer

constexpr int WORKER_BITS = 16;

inline void pause_briefly() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

struct Job {
  Task task;
  void* context;
  int64_t items;
};

// Thrown where the system refuses a thread what the level needs.
struct Refused {};

class Pool {
 public:
  void run(int threads, int64_t items, Task task, void* context) {
    if (threads > items) threads = static_cast<int>(items);
    std::unique_lock<std::mutex> one_caller(callers_, std::defer_lock);
    if (threads <= 1 || !one_caller.try_lock()) {
      for (int64_t item = 0; item < items; ++item) task(context, item);
      return;
    }
    threads = 1 + grow(threads - 1);
    job_ = {task, context, items};
    next_.store(0, std::memory_order_relaxed);
    busy_.store(threads - 1, std::memory_order_relaxed);
    {
      std::lock_guard<std::mutex> guard(lock_);
      uint64_t number = (turn_.load(std::memory_order_relaxed) >> WORKER_BITS) + 1;
      turn_.store(number << WORKER_BITS | static_cast<uint64_t>(threads - 1), std::memory_order_release);
    }
    wake_.notify_all();
    work();
    for (int spins = 0; busy_.load(std::memory_order_acquire) > 0; ++spins) {
      if (spins < SPINS) pause_briefly();
      else std::this_thread::yield();
    }
    if (failed_.load(std::memory_order_relaxed)) {
      failed_.store(false, std::memory_order_relaxed);
      std::rethrow_exception(std::exchange(failure_, nullptr));
    }
  }

 private:
  void work() noexcept {
    try {
      for (;;) {
        int64_t item = next_.fetch_add(1, std::memory_order_relaxed);
        if (item >= job_.items) return;
        job_.task(job_.context, item);
      }
    } catch (...) {  // the first failure is told to the caller; nobody takes another item
      next_.store(job_.items, std::memory_order_relaxed);
      if (!failed_.exchange(true)) failure_ = std::current_exception();
    }
  }

  // Makes workers until there are `count`; returns how many there are of these, fewer where the system gives no more.
  int grow(int count) {
    for (int id = num_workers_; id < count; ++id) {
      uint64_t seen = turn_.load();
      try {
        std::thread([this, id, seen] { serve(id, seen); }).detach();
      } catch (const std::system_error&) {
        break;
      }
      ++num_workers_;
    }
    return num_workers_ < count ? num_workers_ : count;
  }

  void serve(int id, uint64_t seen) {
    pin(id + 1);
    for (;;) {
      seen = wait(seen);
      if (id >= static_cast<int>(seen & ((1u << WORKER_BITS) - 1))) continue;  // the caller does not wait for this one
      work();
      busy_.fetch_sub(1, std::memory_order_release);
    }
  }

  uint64_t wait(uint64_t seen) {
    for (int spins = 0; spins < SPINS; ++spins) {
      uint64_t turn = turn_.load(std::memory_order_acquire);
      if (turn != seen) return turn;
      pause_briefly();
    }
    std::unique_lock<std::mutex> guard(lock_);
    wake_.wait(guard, [&] { return turn_.load(std::memory_order_acquire) != seen; });
    return turn_.load(std::memory_order_acquire);
  }

  // Worker number n goes to the n-th CPU this process may use; the caller's thread stays free to move.
  static void pin(int number) {
#if defined(__linux__)
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) <= number) return;
    for (int cpu = 0, seen = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (!CPU_ISSET(cpu, &allowed) || seen++ != number) continue;
      cpu_set_t one;
      CPU_ZERO(&one);
      CPU_SET(cpu, &one);
      pthread_setaffinity_np(pthread_self(), sizeof one, &one);
      return;
    }
#else
    (void)number;
#endif
  }

  std::mutex callers_, lock_;
  std::condition_variable wake_;
  std::atomic<uint64_t> turn_{0};  // number of the job, and in its low bits how many workers it wants
  std::atomic<int64_t> next_{0};
  std::atomic<int> busy_{0};
  std::atomic<bool> failed_{false};
  std::exception_ptr failure_;
  int num_workers_ = 0;
  Job job_{};
};

// Never destroyed: its threads wait until the process ends.  After a fork the child has no workers, so it gets a pool
// of its own.
inline std::atomic<Pool*> the_pool{nullptr};

inline Pool* pool() {
  static const bool once = [] {
    the_pool = new Pool;
    pthread_atfork(nullptr, nullptr, [] { the_pool = new Pool; });
    return true;
  }();
  (void)once;
  return the_pool.load(std::memory_order_acquire);
}


template <class F>
void parallel(int threads, int64_t items, F&& function) {
  pool()->run(threads, items, [](void* context, int64_t item) { (*static_cast<F*>(context))(item); }, &function);
}

// The cut of `count` things into items: things per item, so that every thread gets several of at least `least`.
inline int64_t share(int threads, int64_t count, int64_t least) {
  int64_t wanted = count / (static_cast<int64_t>(threads) * 8);
  return wanted > least ? wanted / least * least : least;
}

}  // namespace flash41
