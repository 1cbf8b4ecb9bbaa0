// The indexer: scores, selections, candidate blocks, and the router's choice of experts.
#pragma once

namespace flash41 {

// What scores are made of: queries [requests, length, heads, width], and keys in pages, of which request r has
// pages[r * num_pages ..], `rows_per_page` rows each.
struct Scores {
  const void* q;
  const float* weights;      // [requests, length, heads]
  StoredRows keys;
  const int64_t* pages;
  float* scores;             // [requests, length, num_keys]
  int64_t requests, length, heads, width, dtype;
  int64_t num_pages, rows_per_page, num_keys;
  const int64_t* blocks;     // [requests, length, num_blocks]: blocks of rows a query wants scores of, or null for all
  int64_t num_blocks, block_size;
};

constexpr int64_t PIECE = 64;        // keys of an item
constexpr int64_t MOST_GROUPS = 64;  // of a key that is multiplied in integers

// Groups of 32 channels, or 0 where keys are multiplied as floats.
inline int64_t groups_of(int64_t width) {
  return width % GROUP == 0 && width / GROUP <= MOST_GROUPS ? width / GROUP : 0;
}

// All queries of a job in integers, and which of them are no such numbers.
class Queries {
 public:
  Queries(Cutter& cutter, const Scores& job) : job_(job), groups_(groups_of(job.width)) {
    int64_t rows = job.requests * job.length;
    grid_ = cutter.cut<uint8_t>(rows);
    codes_ = cutter.cut<int8_t>(rows * job.heads * groups_ * GROUP);
    units_ = cutter.cut<float>(rows * job.heads * groups_);
    offsets_ = cutter.cut<int32_t>(rows * job.heads * groups_);
    octets_ = job.blocks == nullptr ? 0 : (job.num_keys + GRID_KEYS - 1) / GRID_KEYS;
    wanted_ = cutter.cut<uint8_t>(rows * octets_);
  }

  void prepare(int64_t row) {
    want(row);
    static thread_local Scratch memory;
    float* values = reinterpret_cast<float*>(memory.take(static_cast<size_t>(padded(job_.width)) * sizeof(float)));
    grid_[row] = groups_ > 0;
    for (int64_t h = row * job_.heads; h < (row + 1) * job_.heads && grid_[row]; ++h) {
      widen(job_.q, job_.dtype, h * job_.width, job_.width, values);
      grid_[row] = grid_row(values, job_.width, codes_ + h * job_.width, units_ + h * groups_);
      for (int64_t g = 0; g < groups_ && grid_[row]; ++g) {
        int32_t sum = 0;
        for (int64_t c = 0; c < GROUP; ++c) sum += codes_[h * job_.width + g * GROUP + c];
        offsets_[h * groups_ + g] = KEY_OFFSET * sum;
      }
    }
  }

  bool on_grid(int64_t row) const { return grid_[row]; }

  // Whether a query wants scores of any of the GRID_KEYS rows from `key` on.
  bool wants(int64_t row, int64_t key) const { return octets_ == 0 || wanted_[row * octets_ + key / GRID_KEYS]; }

  GridQuery query(int64_t row) const {
    int64_t h = row * job_.heads;
    return {codes_ + h * job_.width, units_ + h * groups_, offsets_ + h * groups_};
  }

 private:
  void want(int64_t row) {
    if (octets_ == 0) return;
    std::memset(wanted_ + row * octets_, 0, static_cast<size_t>(octets_));
    for (int64_t i = 0; i < job_.num_blocks; ++i) {
      int64_t from = job_.blocks[row * job_.num_blocks + i] * job_.block_size;
      if (from < 0) continue;
      int64_t last = std::min(job_.num_keys, from + job_.block_size) - 1;
      for (int64_t octet = from / GRID_KEYS; octet <= last / GRID_KEYS && from <= last; ++octet)
        wanted_[row * octets_ + octet] = 1;
    }
  }

  const Scores& job_;
  int64_t groups_, octets_ = 0;
  uint8_t *grid_ = nullptr, *wanted_ = nullptr;
  int8_t* codes_ = nullptr;
  float* units_ = nullptr;
  int32_t* offsets_ = nullptr;
};

// Vectors of doubles that registers hold.
constexpr int64_t HALF = LANES / 2;
typedef float half_float __attribute__((vector_size(2 * FLASH41_LANES)));
typedef double half_double __attribute__((vector_size(4 * FLASH41_LANES)));

// PIECE keys of one request against all its queries.
class ScoreItem {
 public:
  ScoreItem(const Scores& job, const Queries& queries, int64_t request, int64_t from)
      : job_(job), queries_(queries), request_(request), from_(from), count_(std::min(PIECE, job.num_keys - from)),
        groups_(groups_of(job.width)), wide_(padded(job.width)), packed_(job.keys.format == ROW_FP4_32 && groups_ > 0) {}

  void run(Scratch& memory) {
    Cutter counting(nullptr);
    lay_out(counting);
    Cutter cutter(memory.take(counting.used()));
    lay_out(cutter);
    read_keys();
    for (int64_t l = 0; l < job_.length; ++l) score(request_ * job_.length + l);
  }

 private:
  void lay_out(Cutter& cutter) {
    rows_ = cutter.cut<int8_t>(GRID_KEYS * groups_ * GROUP);
    words_ = cutter.cut<uint8_t>(PIECE * groups_ * GROUP);
    units_ = cutter.cut<float>(PIECE * groups_);
    values_ = cutter.cut<float>(PIECE * wide_);
    query_ = cutter.cut<float>(job_.heads * wide_);
    dots_ = cutter.cut<float>(job_.heads * PIECE);
    other_ = cutter.cut<float>(job_.heads * PIECE);
  }

  int64_t number(int64_t j) const {
    int64_t row = from_ + j, page = row / job_.rows_per_page;
    return job_.pages[request_ * job_.num_pages + page] * job_.rows_per_page + row - page * job_.rows_per_page;
  }

  void read_keys() {
    for (int64_t first = 0; first < count_; first += GRID_KEYS) {
      if (!wanted(first)) continue;
      for (int64_t j = first; j < first + GRID_KEYS; ++j) read_key(j, rows_ + (j - first) * groups_ * GROUP);
      for (int64_t g = 0; g < groups_; ++g)
        interleave(rows_ + g * GROUP, groups_ * GROUP, words_ + (first / GRID_KEYS * groups_ + g) * GRID_BYTES);
    }
  }

  bool wanted(int64_t first) const {
    for (int64_t l = 0; l < job_.length; ++l)
      if (queries_.wants(request_ * job_.length + l, from_ + first)) return true;
    return false;
  }

  void read_key(int64_t j, int8_t* codes) {
    float units[MOST_GROUPS];
    bool grid = false;
    if (j < count_) {
      int64_t row = number(j);
      RowAhead(job_.keys, row + PIECE).ask(0, 1);  // mostly the next item's, and harmless where it is nobody's
      if (packed_) grid = grid_codes(row_codes(job_.keys, row), row_scales(job_.keys, row), job_.width, codes, units);
      else read_row(job_.keys, row, values_ + j * wide_);
      if (!packed_ && groups_ > 0) grid = grid_row(values_ + j * wide_, job_.width, codes, units);
      any_apart_ = any_apart_ || !grid;
    }
    apart_[j] = j < count_ && !grid;
    if (!grid) std::memset(codes, 0, static_cast<size_t>(groups_ * GROUP));
    int64_t first = j / GRID_KEYS * GRID_KEYS;
    for (int64_t g = 0; g < groups_; ++g)
      units_[(first * groups_) + g * GRID_KEYS + j - first] = grid ? units[g] : 0.0f;
  }

  void score(int64_t row) {
    float* dots = dots_;
    if (queries_.on_grid(row)) {
      std::memset(dots_, 0, static_cast<size_t>(job_.heads * PIECE) * sizeof(float));
      GridQuery query = queries_.query(row);
      for (int64_t first = 0; first < count_; first += GRID_KEYS) {
        if (!queries_.wants(row, from_ + first)) continue;
        for (int64_t g = 0; g < groups_; ++g)
          grid_dots(words_ + (first / GRID_KEYS * groups_ + g) * GRID_BYTES, units_ + first * groups_ + g * GRID_KEYS, query,
                    job_.heads, job_.width, g, dots_ + first, PIECE);
      }
      if (any_apart_) {
        floating(row, other_);
        for (int64_t h = 0; h < job_.heads; ++h)
          for (int64_t j = 0; j < count_; ++j)
            if (apart_[j]) dots_[h * PIECE + j] = other_[h * PIECE + j];
      }
    } else {
      floating(row, other_);
      dots = other_;
    }
    fold(row, dots);
  }

  // Dots of values that are no small integers, in FP32: lanes in order, then added.
  void floating(int64_t row, float* out) {
    bool unread = packed_ || job_.blocks != nullptr;
    for (int64_t j = 0; j < count_ && unread; ++j) read_row(job_.keys, number(j), values_ + j * wide_);
    for (int64_t h = 0; h < job_.heads; ++h)
      widen(job_.q, job_.dtype, (row * job_.heads + h) * job_.width, job_.width, query_ + h * wide_);
    for (int64_t near = 0; near < count_; near += NEAR_KEYS)
      near_dots(query_, job_.heads, values_ + near * wide_, std::min(NEAR_KEYS, count_ - near), wide_, wide_, out + near,
                PIECE);
  }

  // scores[j] = sum_h weights[h] * relu(dots[h][j]), in FP64, heads ascending.
  void fold(int64_t row, const float* dots) {
    const float* weights = job_.weights + row * job_.heads;
    float* scores = job_.scores + row * job_.num_keys + from_;
    for (int64_t j = 0; j < count_; j += HALF) {
      if (!queries_.wants(row, from_ + j)) continue;
      half_double total = {};
      for (int64_t h = 0; h < job_.heads; ++h) {
        half_float dot;
        std::memcpy(&dot, dots + h * PIECE + j, sizeof dot);
        half_double wide = __builtin_convertvector(dot, half_double);
        wide = wide < 0.0 ? half_double{} : wide;  // a NaN stays one
        total = total + static_cast<double>(weights[h]) * wide;
      }
      half_float found = __builtin_convertvector(total, half_float);
      std::memcpy(scores + j, &found, static_cast<size_t>(std::min<int64_t>(HALF, count_ - j)) * sizeof(float));
    }
  }

  const Scores& job_;
  const Queries& queries_;
  int64_t request_, from_, count_, groups_, wide_;
  bool packed_;
  int8_t* rows_ = nullptr;
  uint8_t* words_ = nullptr;
  float *units_ = nullptr, *values_ = nullptr, *query_ = nullptr, *dots_ = nullptr, *other_ = nullptr;
  bool apart_[PIECE] = {}, any_apart_ = false;
};

// scores[r, l, j] = sum_h weights[r, l, h] * relu(q[r, l, h] . keys[r, j])
inline void index_scores(int threads, const Scores* job) {
  static thread_local Scratch memory;
  threads = helpers(threads, job->requests * job->length * job->heads * job->num_keys * job->width);
  Cutter counting(nullptr);
  Queries(counting, *job);
  Cutter cutter(memory.take(counting.used()));
  Queries queries(cutter, *job);
  int64_t rows = job->requests * job->length, pieces = (job->num_keys + PIECE - 1) / PIECE;
  parallel(rows > 8 ? threads : 1, rows, [&](int64_t row) { queries.prepare(row); });
  parallel(threads, job->requests * pieces, [&](int64_t item) {
    static thread_local Scratch own;
    ScoreItem(*job, queries, item / pieces, item % pieces * PIECE).run(own);
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

// Ranks are counted by their upper bits first, so that only the bucket the last chosen one falls into is ordered.
constexpr int RANK_BITS = 11;

inline void select_rows(int threads, const float* scores, const uint8_t* allowed, int64_t rows, int64_t width,
                        int64_t count, int64_t* out) {
  parallel(helpers(threads, rows * width * 8), rows, [&](int64_t row) {
    static thread_local Scratch memory;
    Cutter cutter(memory.take(static_cast<size_t>(width) * 12 + 256));
    uint64_t* entries = cutter.cut<uint64_t>(width);
    uint32_t* ranks = cutter.cut<uint32_t>(width);
    int64_t buckets[1 << RANK_BITS] = {}, total = 0, found = 0;
    for (int64_t j = 0; j < width; ++j) {
      ranks[j] = rank(scores[row * width + j]);
      buckets[ranks[j] >> (32 - RANK_BITS)] += allowed[row * width + j];
    }
    uint32_t last = 0;
    while (last + 1 < (1u << RANK_BITS) && (total += buckets[last]) < count) ++last;
    for (int64_t j = 0; j < width; ++j) {
      entries[found] = entry(ranks[j], j);
      found += allowed[row * width + j] && ranks[j] >> (32 - RANK_BITS) <= last;
    }
    best(entries, found, count, out + row * count);
  });
}

// Which of num_rows rows lie in the candidate blocks of each row; -1 names none.  `out` is all zeros.
inline void inside_blocks(int threads, const int64_t* candidates, int64_t rows, int64_t count, int64_t num_rows,
                          int64_t block_size, uint8_t* out) {
  parallel(helpers(threads, rows * count * block_size), rows, [&](int64_t row) {
    for (int64_t i = 0; i < count; ++i) {
      int64_t from = candidates[row * count + i] * block_size;
      if (from < 0 || from >= num_rows) continue;
      std::memset(out + row * num_rows + from, 1, static_cast<size_t>(std::min(block_size, num_rows - from)));
    }
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
