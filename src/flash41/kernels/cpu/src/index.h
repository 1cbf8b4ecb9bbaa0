// The indexer: scores, selections, candidate blocks, and the router's choice of experts.
#pragma once

namespace flash41 {

// scores[r, l, j] = sum_h weights[r, l, h] * relu(q[r, l, h] . keys[r, j]); the sum over heads in FP64, ascending.
inline void index_scores(int threads, const void* q, const void* keys, const float* weights, float* scores,
                         int64_t requests, int64_t length, int64_t heads, int64_t width, int64_t num_keys,
                         int64_t key_rows, int dtype) {
  constexpr int64_t ROWS = 96;
  int64_t pieces = (num_keys + ROWS - 1) / ROWS, wide = padded(width);
  threads = helpers(threads, requests * length * heads * num_keys * width);
  parallel(threads, requests * pieces, [&](int64_t item) {
    static thread_local Scratch memory;
    int64_t request = item / pieces, from = item % pieces * ROWS, count = std::min(ROWS, num_keys - from);
    Cutter cutter(memory.take(static_cast<size_t>((ROWS + heads) * wide + heads * ROWS + 64) * sizeof(float)));
    float* key = cutter.cut<float>(ROWS * wide);
    float* query = cutter.cut<float>(heads * wide);
    float* dot = cutter.cut<float>(heads * ROWS);
    for (int64_t j = 0; j < count; ++j)
      widen(keys, dtype, (request * key_rows + from + j) * width, width, key + j * wide);
    for (int64_t l = 0; l < length; ++l) {
      int64_t row = request * length + l;
      for (int64_t h = 0; h < heads; ++h) widen(q, dtype, (row * heads + h) * width, width, query + h * wide);
      all_dots(query, heads, key, count, wide, dot, ROWS);
      for (int64_t j = 0; j < count; ++j) {
        double total = 0.0;
        for (int64_t h = 0; h < heads; ++h) {
          float value = dot[h * ROWS + j];
          // Not max(): a NaN must stay one.
          total += static_cast<double>(weights[row * heads + h]) * (value < 0.0f ? 0.0 : static_cast<double>(value));
        }
        scores[row * num_keys + from + j] = static_cast<float>(total);
      }
    }
  });
}

// A score as an integer that ascends with falling score; NaN and -inf come last of all, +inf counts as the largest
// finite number, -0 as 0.
inline uint32_t rank(float score) {
  if (score != score || score < -3.402823466e38f) score = -3.402823466e38f;
  if (score > 3.402823466e38f) score = 3.402823466e38f;
  if (score == 0.0f) score = 0.0f;
  uint32_t bits;
  std::memcpy(&bits, &score, sizeof bits);
  uint32_t ascending = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return ~ascending;
}

// The `count` first entries in order of rank, ties to the smaller number, as numbers in ascending order, -1 behind them.
inline void best(uint64_t* entries, int64_t num_entries, int64_t count, int64_t* out) {
  if (num_entries > count) std::nth_element(entries, entries + count, entries + num_entries);
  int64_t kept = std::min(num_entries, count);
  for (int64_t i = 0; i < kept; ++i) out[i] = static_cast<int64_t>(entries[i] & 0xFFFFFFFFu);
  std::sort(out, out + kept);
  for (int64_t i = kept; i < count; ++i) out[i] = -1;
}

inline uint64_t entry(uint32_t order, int64_t number) {
  return static_cast<uint64_t>(order) << 32 | static_cast<uint64_t>(number);
}

inline void select_rows(int threads, const float* scores, const uint8_t* allowed, int64_t rows, int64_t width,
                        int64_t count, int64_t* out) {
  parallel(helpers(threads, rows * width * 8), rows, [&](int64_t row) {
    static thread_local Scratch memory;
    uint64_t* entries = reinterpret_cast<uint64_t*>(memory.take(static_cast<size_t>(width + 1) * sizeof(uint64_t)));
    int64_t found = 0;
    for (int64_t j = 0; j < width; ++j)
      if (allowed[row * width + j]) entries[found++] = entry(rank(scores[row * width + j]), j);
    best(entries, found, count, out + row * count);
  });
}

// A block ranks as its best visible row; the block of the newest visible row comes before all others.
inline void candidate_blocks(int threads, const float* scores, const int64_t* visible, int64_t rows, int64_t width,
                             int64_t count, int64_t block_size, int64_t* out) {
  parallel(helpers(threads, rows * width * 8), rows, [&](int64_t row) {
    static thread_local Scratch memory;
    int64_t seen = std::min(visible[row], width);
    uint64_t* entries = reinterpret_cast<uint64_t*>(memory.take(static_cast<size_t>(width + 1) * sizeof(uint64_t)));
    int64_t blocks = 0;
    for (int64_t from = 0; from < seen; from += block_size, ++blocks) {
      uint32_t order = 0xFFFFFFFFu;
      for (int64_t j = from; j < std::min(seen, from + block_size); ++j)
        order = std::min(order, rank(scores[row * width + j]));
      entries[blocks] = entry(from / block_size == (visible[row] - 1) / block_size ? 0 : order, blocks);
    }
    best(entries, blocks, count, out + row * count);
  });
}

// Ids of the k largest s + bias, ties to the lowest id, ascending; weights from s; s = sqrt(softplus(logit)) in FP64.
inline void route(int threads, const float* logits, const float* bias, int64_t bias_stride, int64_t rows, int64_t experts,
                  int64_t topk, float route_scale, int64_t* ids, float* weights) {
  parallel(helpers(threads, rows * experts * 64), rows, [&](int64_t row) {
    static thread_local Scratch memory;
    Cutter cutter(memory.take(static_cast<size_t>(experts) * 16 + 256));
    uint64_t* entries = cutter.cut<uint64_t>(experts);
    float* scores = cutter.cut<float>(experts);
    for (int64_t e = 0; e < experts; ++e) {
      double z = logits[row * experts + e];
      scores[e] = static_cast<float>(std::sqrt(std::max(z, 0.0) + std::log1p(std::exp(-std::fabs(z)))));
      float key = scores[e] + bias[row * bias_stride + e];
      // As a stable descending sort would place it: a NaN before every number.
      entries[e] = entry(key != key ? 0 : rank(key), e);
    }
    int64_t* chosen = ids + row * topk;
    best(entries, experts, topk, chosen);
    double total = 0.0;
    for (int64_t i = 0; i < topk; ++i) total += scores[chosen[i]];
    float sum = static_cast<float>(total) + 1e-20f;
    for (int64_t i = 0; i < topk; ++i) weights[row * topk + i] = scores[chosen[i]] / sum * route_scale;
  });
}

}  // namespace flash41
