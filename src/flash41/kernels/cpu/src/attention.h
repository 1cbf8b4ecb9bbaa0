// Sparse attention of tokens over their lists of rows, keys and values at once.
//
// As in the reference: blocks of 64 keys folded with an online softmax, FP32 logits and denominator, probabilities rounded
// to the dtype of q before they meet V.  An item is one token and some of its heads, for which a block of keys is read
// once, from whatever format it is stored in.  The order of additions of a head depends on its list alone: neither on the
// heads and tokens beside it nor on how many of them an item takes.  Only the first counts[t] entries of a list are
// looked at.
#pragma once

namespace flash41 {

constexpr int64_t KEYS = 64;
constexpr int64_t MOST_HEADS = 32;    // of an item: their queries and a block of keys stay in the second-level cache
constexpr int64_t LEAST_HEADS = 8;    // of an item: with fewer, reading the keys costs as much as multiplying them
constexpr int64_t NEAR_KEYS = 6;      // keys that meet all heads while they are in the first-level cache
constexpr float EMPTY_MAXIMUM = -1e30f;

struct Attention {
  const void* q;             // [rows, heads, width]
  StoredRows own;            // entries below num_own name rows of these,
  StoredRows plane;          // others, less num_own, rows of these
  int64_t num_own;
  const int64_t* index;      // [rows, length], row stride index_stride
  const int64_t* counts;     // [rows]
  const float* sink;         // [heads]
  void* out;                 // [rows, heads, width]
  int64_t rows, heads, width, length, index_stride;
  int64_t dtype;
  float scale;
};

// From one row of floats to the next: no power of two, which would put a column of a block into few sets of a cache.
inline int64_t spread(int64_t width) { return padded(width) + 16; }

// out[a][b] = left row a . right row b over `width` lanes; lanes in order, then added.
template <int A, int B>
inline void dots(const float* left, int64_t left_stride, const float* right, int64_t right_stride, int64_t width, float* out,
                 int64_t stride) {
  vf total[A][B] = {};
  for (int64_t k = 0; k < width; k += LANES) {
    vf r[B];
    for (int b = 0; b < B; ++b) r[b] = load(right + b * right_stride + k);
    for (int a = 0; a < A; ++a) {
      vf l = load(left + a * left_stride + k);
      for (int b = 0; b < B; ++b) total[a][b] = fma(l, r[b], total[a][b]);
    }
  }
  for (int a = 0; a < A; ++a)
    for (int b = 0; b < B; ++b) out[a * stride + b] = sum(total[a][b]);
}

// The same for any number of left rows and at most NEAR_KEYS right ones; `between(part)` is called before each four left
// rows.
template <class F>
inline void near_dots(const float* left, int64_t rows, const float* right, int64_t columns, int64_t row, int64_t width,
                      float* out, int64_t stride, F&& between) {
  int64_t a = 0;
  for (; a + 4 <= rows; a += 4) {
    int64_t b = 0;
    between(a / 4);
    for (; b + 3 <= columns; b += 3)
      dots<4, 3>(left + a * row, row, right + b * row, row, width, out + a * stride + b, stride);
    for (; b < columns; ++b) dots<4, 1>(left + a * row, row, right + b * row, row, width, out + a * stride + b, stride);
  }
  for (; a < rows; ++a)
    for (int64_t b = 0; b < columns; ++b)
      dots<1, 1>(left + a * row, row, right + b * row, row, width, out + a * stride + b, stride);
}

inline void near_dots(const float* left, int64_t rows, const float* right, int64_t columns, int64_t row, int64_t width,
                      float* out, int64_t stride) {
  near_dots(left, rows, right, columns, row, width, out, stride, [](int64_t) {});
}

// total[h] = total[h] * shrink[h] + sum_j weights[h][j] * keys[j] at W vectors of N heads.
template <int N, int W>
inline void mix(const float* weights, const float* shrink, const float* keys, int64_t count, int64_t row, float* total) {
  vf part[N][W] = {};
  for (int64_t j = 0; j < count; ++j) {
    vf key[W];
    for (int i = 0; i < W; ++i) key[i] = load(keys + j * row + LANES * i);
    for (int h = 0; h < N; ++h) {
      vf weight = all(weights[h * KEYS + j]);
      for (int i = 0; i < W; ++i) part[h][i] = fma(weight, key[i], part[h][i]);
    }
  }
  for (int h = 0; h < N; ++h)
    for (int i = 0; i < W; ++i) {
      float* at = total + h * row + LANES * i;
      store(at, fma(load(at), all(shrink[h]), part[h][i]));
    }
}

template <int W>
inline void mix_heads(const float* weights, const float* shrink, const float* keys, int64_t count, int64_t row, int64_t heads,
                      float* total) {
  int64_t h = 0;
  for (; h + 4 <= heads; h += 4) mix<4, W>(weights + h * KEYS, shrink + h, keys, count, row, total + h * row);
  for (; h < heads; ++h) mix<1, W>(weights + h * KEYS, shrink + h, keys, count, row, total + h * row);
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

// Logits of a block to what its keys are weighed with, which `coarse` rounds to BF16; maximum and denominator go on.
// Returns what earlier blocks shrink by.
inline float weigh(float* logits, int64_t count, float scale, bool coarse, float& maximum_so_far, float& denominator) {
  for (int64_t j = count; j < padded(count); ++j) logits[j] = -HUGE_VALF;
  vf most = all(maximum_so_far);
  for (int64_t j = 0; j < padded(count); j += LANES) {
    vf scaled = load(logits + j) * scale;
    store(logits + j, scaled);
    most = maximum(scaled, most);  // a NaN logit is lost here and shows in its weight
  }
  float largest = most[0];
  for (int lane = 1; lane < LANES; ++lane) largest = most[lane] > largest ? most[lane] : largest;
  float shrink = exponential(maximum_so_far - largest);
  denominator = denominator * shrink + exponentials(logits, largest, padded(count));
  maximum_so_far = largest;
  for (int64_t j = 0; coarse && j < padded(count); j += LANES) store(logits + j, rounded_bf16(load(logits + j)));
  return shrink;
}

// `mix` of whole rows: a column of keys meets all heads while it is in the first-level cache.
inline void mix_all(const float* weights, const float* shrink, const float* keys, int64_t count, int64_t row, int64_t width,
                    int64_t heads, float* total) {
  constexpr int64_t WIDE = 3 * LANES;
  int64_t k = 0;
  // One vector alone would leave the multipliers waiting for its sums.
  for (; k + WIDE <= width && width - k != 4 * LANES; k += WIDE) mix_heads<3>(weights, shrink, keys + k, count, row, heads, total + k);
  for (; k + 2 * LANES <= width; k += 2 * LANES) mix_heads<2>(weights, shrink, keys + k, count, row, heads, total + k);
  for (; k < width; k += LANES) mix_heads<1>(weights, shrink, keys + k, count, row, heads, total + k);
}

inline void store_quotient(void* out, int64_t dtype, int64_t at, int64_t width, const float* total, float denominator) {
  int64_t k = 0;
  for (; k + LANES <= width; k += LANES) store_values(out, dtype, at + k, load(total + k) / denominator);
  for (; k < width; ++k) store_value(out, dtype, at + k, total[k] / denominator);
}

class AttentionItem {
 public:
  AttentionItem(const Attention& job, int64_t token, int64_t first_head, int64_t heads)
      : job_(job), token_(token), first_(first_head), heads_(std::min(heads, job.heads - first_head)),
        width_(padded(job.width)), row_(spread(job.width)), index_(job.index + token * job.index_stride),
        count_(std::min(job.counts[token], job.length)) {}

  void run(Scratch& memory) {
    Cutter counting(nullptr);
    lay_out(counting);
    Cutter cutter(memory.take(counting.used()));
    lay_out(cutter);
    for (int64_t h = 0; h < heads_; ++h) {
      widen(job_.q, job_.dtype, ((token_ * job_.heads) + first_ + h) * job_.width, job_.width, q_ + h * row_);
      maximum_[h] = EMPTY_MAXIMUM;
      denominator_[h] = 0.0f;
    }
    std::memset(total_, 0, static_cast<size_t>(heads_ * row_) * sizeof(float));
    for (int64_t j = 0; j < std::min(KEYS, count_); ++j) ahead(j).ask(0, 1);
    for (int64_t from = 0; from < count_; from += KEYS) fold(from, std::min(KEYS, count_ - from));
    for (int64_t h = 0; h < heads_; ++h) finish(h);
  }

 private:
  void lay_out(Cutter& cutter) {
    q_ = cutter.cut<float>(heads_ * row_);
    total_ = cutter.cut<float>(heads_ * row_);
    keys_ = cutter.cut<float>(KEYS * row_);
    logits_ = cutter.cut<float>(heads_ * KEYS);
  }

  RowAhead ahead(int64_t entry) const {
    int64_t number = index_[entry];
    return number < job_.num_own ? RowAhead(job_.own, number) : RowAhead(job_.plane, number - job_.num_own);
  }

  void read(int64_t entry, float* out) const {
    int64_t number = index_[entry];
    if (number < job_.num_own) read_row(job_.own, number, out);
    else read_row(job_.plane, number - job_.num_own, out);
  }

  void fold(int64_t from, int64_t count) {
    for (int64_t near = 0; near < count; near += NEAR_KEYS) {
      int64_t some = std::min(NEAR_KEYS, count - near);
      RowAhead next[NEAR_KEYS];  // rows of the next block, which arrive while this one is multiplied
      for (int64_t j = near; j < near + some; ++j) {
        read(from + j, keys_ + j * row_);
        if (from + KEYS + j < count_) next[j - near] = ahead(from + KEYS + j);
      }
      near_dots(q_, heads_, keys_ + near * row_, some, row_, width_, logits_ + near, KEYS, [&](int64_t part) {
        for (const RowAhead& row : next) row.ask(part, std::max<int64_t>(1, heads_ / 4));
      });
    }
    for (int64_t h = 0; h < heads_; ++h)
      shrink_[h] = weigh(logits_ + h * KEYS, count, job_.scale, job_.dtype == BF16, maximum_[h], denominator_[h]);
    mix_all(logits_, shrink_, keys_, count, row_, width_, heads_, total_);
  }

  void finish(int64_t h) {
    float denominator = denominator_[h] + exponential(job_.sink[first_ + h] - maximum_[h]);
    store_quotient(job_.out, job_.dtype, (token_ * job_.heads + first_ + h) * job_.width, job_.width, total_ + h * row_,
                   denominator);
  }

  const Attention& job_;
  int64_t token_, first_, heads_, width_, row_;
  const int64_t* index_;
  int64_t count_;
  float *q_ = nullptr, *total_ = nullptr, *keys_ = nullptr, *logits_ = nullptr;
  float maximum_[MOST_HEADS], denominator_[MOST_HEADS], shrink_[MOST_HEADS];
};

// Heads of an item: as many as leave every thread one.
inline int64_t heads_of_item(int threads, int64_t rows, int64_t heads) {
  int64_t wanted = (heads * rows + threads - 1) / threads;
  wanted = std::min(MOST_HEADS, std::max(LEAST_HEADS, wanted));
  return (wanted + 3) / 4 * 4;
}

inline void attention(int threads, const Attention* job) {
  threads = helpers(threads, job->rows * job->heads * job->length * job->width);
  int64_t heads = heads_of_item(threads, job->rows, job->heads), groups = (job->heads + heads - 1) / heads;
  parallel(threads, job->rows * groups, [&](int64_t item) {
    static thread_local Scratch memory;
    AttentionItem(*job, item / groups, item % groups * heads, heads).run(memory);
  });
}

}  // namespace flash41
