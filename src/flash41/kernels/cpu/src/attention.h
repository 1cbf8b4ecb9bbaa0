// Sparse attention of tokens over their lists of rows, keys and values at once.
//
// As in the reference: blocks of 64 keys folded with an online softmax, FP32 logits and denominator, probabilities rounded
// to the dtype of q before they meet V.  An item is one token and at most HEADS of its heads, for which the keys of a
// block are widened once.  Only the first counts[t] entries of a list are looked at.
#pragma once

namespace flash41 {

constexpr int64_t KEYS = 64;
constexpr int64_t HEADS = 16;
constexpr float EMPTY_MAXIMUM = -1e30f;

// Rows of floats, `width` of them in use, the rest zeros.
inline int64_t padded(int64_t width) { return (width + LANES - 1) / LANES * LANES; }

inline void widen(const void* data, int64_t dtype, int64_t at, int64_t width, float* out) {
  int64_t k = 0;
  for (; k + LANES <= width; k += LANES) store(out + k, load_values(data, dtype, at + k));
  for (int64_t rest = k; rest < width; ++rest) out[rest] = load_value(data, dtype, at + rest);
  for (int64_t rest = width; rest < padded(width); ++rest) out[rest] = 0.0f;
}

inline void prefetch_row(const void* data, int64_t dtype, int64_t row, int64_t width) {
  int64_t bytes = width * (dtype == BF16 ? 2 : 4);
  const char* start = static_cast<const char*>(data) + row * bytes;
  for (int64_t line = 0; line < bytes; line += 64) __builtin_prefetch(start + line, 0, 2);
}

// out[a][b] = left row a . right row b, rows `width` apart; lanes in order, then added.
template <int A, int B>
inline void dots(const float* left, const float* right, int64_t width, float* out, int64_t stride) {
  vf total[A][B] = {};
  for (int64_t k = 0; k < width; k += LANES)
    for (int a = 0; a < A; ++a) {
      vf l = load(left + a * width + k);
      for (int b = 0; b < B; ++b) total[a][b] = fma(l, load(right + b * width + k), total[a][b]);
    }
  for (int a = 0; a < A; ++a)
    for (int b = 0; b < B; ++b) out[a * stride + b] = sum(total[a][b]);
}

inline void all_dots(const float* left, int64_t rows, const float* right, int64_t columns, int64_t width, float* out,
                     int64_t stride) {
  int64_t a = 0;
  for (; a + 4 <= rows; a += 4) {
    int64_t b = 0;
    for (; b + 3 <= columns; b += 3) dots<4, 3>(left + a * width, right + b * width, width, out + a * stride + b, stride);
    for (; b < columns; ++b) dots<4, 1>(left + a * width, right + b * width, width, out + a * stride + b, stride);
  }
  for (; a < rows; ++a)
    for (int64_t b = 0; b < columns; ++b) dots<1, 1>(left + a * width, right + b * width, width, out + a * stride + b, 1);
}

// total[h] = total[h] * shrink[h] + sum_j weights[h][j] * keys[j], for N heads.
template <int N>
inline void mix(const float* weights, const float* shrink, const float* keys, int64_t count, int64_t width, float* total) {
  constexpr int WIDE = 2;
  for (int64_t k = 0; k < width; k += WIDE * LANES) {
    int steps = k + WIDE * LANES <= width ? WIDE : 1;
    vf part[N][WIDE] = {};
    for (int64_t j = 0; j < count; ++j)
      for (int i = 0; i < WIDE; ++i) {
        if (i >= steps) break;
        vf key = load(keys + j * width + k + LANES * i);
        for (int h = 0; h < N; ++h) part[h][i] = fma(all(weights[h * KEYS + j]), key, part[h][i]);
      }
    for (int h = 0; h < N; ++h)
      for (int i = 0; i < steps; ++i) {
        float* at = total + h * width + k + LANES * i;
        store(at, fma(load(at), all(shrink[h]), part[h][i]));
      }
  }
}

// Turns the logits of one head into probabilities; returns their sum.  Logits are padded to whole vectors with -inf.
inline float exponentials(float* logits, float maximum, int64_t count) {
  vf total = {};
  for (int64_t j = 0; j < count; j += LANES) {
    vf weight = exponential(load(logits + j) - maximum);
    store(logits + j, weight);
    total = total + weight;
  }
  return sum(total);
}

inline float exponential(float x) { return exponential(all(x))[0]; }

class AttentionItem {
 public:
  AttentionItem(const Attention& job, int64_t token, int64_t first_head)
      : job_(job), token_(token), first_(first_head), heads_(std::min(HEADS, job.heads - first_head)),
        width_(padded(job.width)) {}

  void run(Scratch& memory) {
    Cutter cutter(memory.take(static_cast<size_t>((2 * HEADS + KEYS) * width_ + HEADS * KEYS + 256) * sizeof(float)));
    q_ = cutter.cut<float>(HEADS * width_);
    total_ = cutter.cut<float>(HEADS * width_);
    keys_ = cutter.cut<float>(KEYS * width_);
    logits_ = cutter.cut<float>(HEADS * KEYS);
    for (int64_t h = 0; h < heads_; ++h) {
      widen(job_.q, job_.dtype, ((token_ * job_.heads) + first_ + h) * job_.width, job_.width, q_ + h * width_);
      maximum_[h] = EMPTY_MAXIMUM;
      denominator_[h] = 0.0f;
    }
    std::memset(total_, 0, static_cast<size_t>(heads_ * width_) * sizeof(float));
    int64_t count = std::min(job_.counts[token_], job_.length);
    for (int64_t from = 0; from < count; from += KEYS) fold(from, std::min(KEYS, count - from), count);
    for (int64_t h = 0; h < heads_; ++h) finish(h);
  }

 private:
  void fold(int64_t from, int64_t count, int64_t all_keys) {
    const int64_t* index = job_.index + token_ * job_.index_stride + from;
    for (int64_t j = 0; j < count; ++j) {
      if (from + j + 4 < all_keys) prefetch_row(job_.keys, job_.dtype, index[j + 4], job_.width);
      widen(job_.keys, job_.dtype, index[j] * job_.width, job_.width, keys_ + j * width_);
    }
    all_dots(q_, heads_, keys_, count, width_, logits_, KEYS);
    for (int64_t h = 0; h < heads_; ++h) {
      float* logits = logits_ + h * KEYS;
      float most = maximum_[h];
      for (int64_t j = 0; j < count; ++j) {
        logits[j] *= job_.scale;
        most = logits[j] > most ? logits[j] : most;
      }
      for (int64_t j = count; j < KEYS; ++j) logits[j] = -HUGE_VALF;
      shrink_[h] = exponential(maximum_[h] - most);
      denominator_[h] = denominator_[h] * shrink_[h] + exponentials(logits, most, padded(count));
      maximum_[h] = most;
      if (job_.dtype == BF16)
        for (int64_t j = 0; j < KEYS; j += LANES) store(logits + j, rounded_bf16(load(logits + j)));
    }
    int64_t h = 0;
    for (; h + 4 <= heads_; h += 4) mix<4>(logits_ + h * KEYS, shrink_ + h, keys_, count, width_, total_ + h * width_);
    for (; h < heads_; ++h) mix<1>(logits_ + h * KEYS, shrink_ + h, keys_, count, width_, total_ + h * width_);
  }

  void finish(int64_t h) {
    float denominator = denominator_[h] + exponential(job_.sink[first_ + h] - maximum_[h]);
    int64_t at = (token_ * job_.heads + first_ + h) * job_.width, k = 0;
    for (; k + LANES <= job_.width; k += LANES)
      store_values(job_.out, job_.dtype, at + k, load(total_ + h * width_ + k) / denominator);
    for (; k < job_.width; ++k) store_value(job_.out, job_.dtype, at + k, total_[h * width_ + k] / denominator);
  }

  const Attention& job_;
  int64_t token_, first_, heads_, width_;
  float *q_ = nullptr, *total_ = nullptr, *keys_ = nullptr, *logits_ = nullptr;
  float maximum_[HEADS], denominator_[HEADS], shrink_[HEADS];
};

inline void attention(int threads, const Attention* job) {
  int64_t groups = (job->heads + HEADS - 1) / HEADS;
  parallel(helpers(threads, job->rows * job->heads * job->length * job->width), job->rows * groups, [&](int64_t item) {
    static thread_local Scratch memory;
    AttentionItem(*job, item / groups, item % groups * HEADS).run(memory);
  });
}

}  // namespace flash41
