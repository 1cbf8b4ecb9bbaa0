// Attention of every row to all rows, one set of keys and values per head, no mask, no sink: the vision tower.
//
// Blocks of 64 keys are folded with an online softmax; logits, weights, sums and denominator are FP32.  An item is one head
// and some queries; the order of additions of a query depends on the keys alone.
#pragma once

namespace flash41 {

struct FullAttention {
  const void* q;   // [rows, heads, width]
  const void* k;
  const void* v;
  void* out;
  int64_t rows, heads, width, dtype;
  float scale;
};

constexpr int64_t QUERIES = 32;  // of an item

class FullAttentionItem {
 public:
  FullAttentionItem(const FullAttention& job, int64_t head, int64_t first)
      : job_(job), head_(head), first_(first), count_(std::min(QUERIES, job.rows - first)), width_(padded(job.width)),
        row_(spread(job.width)) {}

  void run(Scratch& memory) {
    Cutter cutter(memory.take(static_cast<size_t>((2 * QUERIES + 2 * KEYS) * row_ + QUERIES * KEYS + 256) * sizeof(float)));
    float* q = cutter.cut<float>(QUERIES * row_);
    float* total = cutter.cut<float>(QUERIES * row_);
    float* keys = cutter.cut<float>(KEYS * row_);
    float* values = cutter.cut<float>(KEYS * row_);
    float* logits = cutter.cut<float>(QUERIES * KEYS);
    float maximum[QUERIES], denominator[QUERIES], shrink[QUERIES];
    std::memset(total, 0, static_cast<size_t>(QUERIES * row_) * sizeof(float));
    for (int64_t i = 0; i < count_; ++i) {
      read(job_.q, first_ + i, q + i * row_);
      maximum[i] = EMPTY_MAXIMUM;
      denominator[i] = 0.0f;
    }
    for (int64_t from = 0; from < job_.rows; from += KEYS) {
      int64_t count = std::min(KEYS, job_.rows - from);
      for (int64_t j = 0; j < count; ++j) {
        read(job_.k, from + j, keys + j * row_);
        read(job_.v, from + j, values + j * row_);
      }
      for (int64_t near = 0; near < count; near += NEAR_KEYS)
        near_dots(q, count_, keys + near * row_, std::min(NEAR_KEYS, count - near), row_, width_, logits + near, KEYS);
      for (int64_t i = 0; i < count_; ++i)
        shrink[i] = weigh(logits + i * KEYS, count, job_.scale, false, maximum[i], denominator[i]);
      mix_all(logits, shrink, values, count, row_, width_, count_, total);
    }
    for (int64_t i = 0; i < count_; ++i)
      store_quotient(job_.out, job_.dtype, place(first_ + i), job_.width, total + i * row_, denominator[i]);
  }

 private:
  int64_t place(int64_t row) const { return (row * job_.heads + head_) * job_.width; }
  void read(const void* data, int64_t row, float* out) const { widen(data, job_.dtype, place(row), job_.width, out); }

  const FullAttention& job_;
  int64_t head_, first_, count_, width_, row_;
};

inline void full_attention(int threads, const FullAttention* job) {
  int64_t bands = (job->rows + QUERIES - 1) / QUERIES;
  threads = helpers(threads, job->rows * job->rows * job->heads * job->width);
  parallel(threads, bands * job->heads, [&](int64_t item) {
    static thread_local Scratch memory;
    FullAttentionItem(*job, item / bands, item % bands * QUERIES).run(memory);
  });
}

}  // namespace flash41
