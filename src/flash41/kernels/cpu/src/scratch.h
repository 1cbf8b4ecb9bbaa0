// Working memory of one thread that grows and is used again; freed when the thread ends.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace flash41 {

class Scratch {
 public:
  ~Scratch() { std::free(start_); }

  // At least `bytes` bytes, aligned to 64; what an earlier call returned is no longer valid.
  uint8_t* take(size_t bytes) {
    if (bytes > size_) {
      std::free(start_);
      size_ = (bytes + bytes / 4 + 4095) / 4096 * 4096;
      start_ = static_cast<uint8_t*>(std::aligned_alloc(64, size_));
      if (start_ == nullptr) {
        size_ = 0;
        throw std::bad_alloc();
      }
    }
    return start_;
  }

 private:
  uint8_t* start_ = nullptr;
  size_t size_ = 0;
};

// Cuts a piece of memory into aligned parts.  With a null start it only counts.
class Cutter {
 public:
  explicit Cutter(uint8_t* start) : start_(start) {}

  template <class T>
  T* cut(int64_t count) {
    size_t first = used_;
    used_ += (static_cast<size_t>(count) * sizeof(T) + 63) / 64 * 64;
    return start_ == nullptr ? nullptr : reinterpret_cast<T*>(start_ + first);
  }

  size_t used() const { return used_; }

 private:
  uint8_t* start_;
  size_t used_ = 0;
};

}  // namespace flash41
