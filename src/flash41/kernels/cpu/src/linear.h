// Products of weights in their stored formats with prepared rows.
//
//     y[t, n] = sum_g s[n, g] * (sum_{k in g} w[n, k] x'[t, k])           g: groups of 32 channels
//
// Per group each lane sums its own channels, first to last; the sum is scaled and added to the lane's total, groups
// ascending; lanes are added last.  All ways below keep this order to the bit:
//   direct   few rows: a weight is decoded in registers and meets all of them; memory-bound
//   panel    many rows: a tile of the weight is decoded once to FP32 and used for 96 rows
#pragma once

namespace flash41 {

constexpr int64_t AHEAD = 16384;      // bytes between what is read and what is prefetched
constexpr int64_t DIRECT_ROWS = 8;    // with more rows, tiles are decoded
constexpr int64_t TILE_ROWS = 16;     // weight rows per tile
constexpr int64_t TILE_GROUPS = 8;    // 16 rows x 8 groups x 128 bytes = 16 KiB: stays in the first-level cache
constexpr int64_t PANEL_ROWS = 64;    // weight rows that meet a piece of the input while it is in the second-level cache
constexpr int64_t PANEL_INPUTS = 96;  // input rows of that piece, 96 KiB

// Powers of two by E8M0 byte: 0 is 2^-127, a subnormal; 255 is NaN.
struct ScaleTable {
  uint32_t bits[256];
};
constexpr ScaleTable make_scales() {
  ScaleTable table{};
  for (uint32_t byte = 0; byte < 256; ++byte) table.bits[byte] = byte << 23;
  table.bits[0] = 0x00400000;
  table.bits[255] = 0x7FC00000;
  return table;
}
constexpr ScaleTable SCALES = make_scales();

inline float scale_value(uint8_t byte) {
  float value;
  std::memcpy(&value, &SCALES.bits[byte], sizeof value);
  return value;
}

template <int F>
constexpr int64_t GROUP_BYTES = F == FP4_1X32 ? 16 : F == FP8_32X32 ? 32 : F == PLAIN_BF16 ? 64 : 128;
template <int F>
constexpr bool SCALED = F == FP8_32X32 || F == FP4_1X32;

template <int F>
inline void decode(const uint8_t* codes, vf out[STEPS]) {
  if constexpr (F == FP8_32X32) decode_fp8(codes, out);
  else if constexpr (F == FP4_1X32) decode_fp4(codes, out);
  else if constexpr (F == PLAIN_BF16)
    for (int i = 0; i < STEPS; ++i) out[i] = load_bf16(reinterpret_cast<const uint16_t*>(codes) + LANES * i);
  else
    for (int i = 0; i < STEPS; ++i) out[i] = load(reinterpret_cast<const float*>(codes) + LANES * i);
}

template <int F>
inline void prefetch(const uint8_t* codes, int64_t group) {
  constexpr int64_t bytes = GROUP_BYTES<F>;
  if (bytes < 64 && group % (64 / bytes) != 0) return;
  for (int64_t line = 0; line < bytes; line += 64) __builtin_prefetch(codes + group * bytes + AHEAD + line, 0, 2);
}

// Rows first.. of a weight, as the loops below walk them.
template <int F>
struct Walk {
  const uint8_t* codes;
  const uint8_t* scales;
  int64_t row_bytes, scale_row_bytes;

  Walk(const Matrix& w, int64_t first)
      : codes(w.codes + first * w.row_bytes),
        scales(w.scales + (F == FP8_32X32 ? first / 32 : first) * w.scale_row_bytes),
        row_bytes(w.row_bytes),
        scale_row_bytes(F == FP8_32X32 ? 0 : w.scale_row_bytes) {}

  const uint8_t* group(int row, int64_t g) const { return codes + row * row_bytes + g * GROUP_BYTES<F>; }
  float scale(int row, int64_t g) const { return scale_value(scales[row * scale_row_bytes + g]); }
};

inline vf group_sum(const vf (&w)[STEPS], const float* x) {
  vf part = w[0] * load(x);
  for (int i = 1; i < STEPS; ++i) part = fma(w[i], load(x + LANES * i), part);
  return part;
}

template <int F>
inline vf add_group(vf total, vf part, const Walk<F>& walk, int row, int64_t g) {
  if constexpr (SCALED<F>) return fma(part, all(walk.scale(row, g)), total);
  else return total + part;
}

// The last channels of a plain weight whose width is no multiple of 32, padded with zeros.
template <int F>
inline void decode_rest(const uint8_t* codes, int64_t channels, vf out[STEPS]) {
  uint8_t padded[GROUP_BYTES<F>] = {};
  std::memcpy(padded, codes, static_cast<size_t>(channels * GROUP_BYTES<F> / GROUP));
  decode<F>(padded, out);
}

template <int F, int N, int M>
inline void direct(const Walk<F>& walk, const Row* x, int64_t width, float* out, int64_t stride) {
  vf total[N][M] = {};
  int64_t groups = width / GROUP;
  for (int64_t g = 0; g < groups; ++g)
    for (int n = 0; n < N; ++n) {
      vf w[STEPS];
      const uint8_t* codes = walk.group(n, g);
      prefetch<F>(walk.codes + n * walk.row_bytes, g);
      decode<F>(codes, w);
      for (int m = 0; m < M; ++m)
        total[n][m] = add_group<F>(total[n][m], group_sum(w, x[m].values + g * GROUP), walk, n, g);
    }
  if constexpr (!SCALED<F>)
    if (width % GROUP != 0)
      for (int n = 0; n < N; ++n) {
        vf w[STEPS];
        decode_rest<F>(walk.group(n, groups), width % GROUP, w);
        for (int m = 0; m < M; ++m) total[n][m] = total[n][m] + group_sum(w, x[m].values + groups * GROUP);
      }
  for (int n = 0; n < N; ++n)
    for (int m = 0; m < M; ++m) out[m * stride + n] = sum(total[n][m]);
}

// N weight rows against at most 8 input rows.
template <int F, int N>
inline void few(const Walk<F>& walk, const Row* x, int64_t rows, int64_t width, float* out, int64_t stride) {
  switch (rows) {
    case 1: direct<F, N, 1>(walk, x, width, out, stride); break;
    case 2: direct<F, N, 2>(walk, x, width, out, stride); break;
    case 3: direct<F, N, 3>(walk, x, width, out, stride); break;
    case 4: direct<F, N, 4>(walk, x, width, out, stride); break;
    case 5: direct<F, N, 5>(walk, x, width, out, stride); break;
    case 6: direct<F, N, 6>(walk, x, width, out, stride); break;
    case 7: direct<F, N, 7>(walk, x, width, out, stride); break;
    default: direct<F, N, 8>(walk, x, width, out, stride); break;
  }
}

// One chunk of K of a decoded tile against M input rows: totals [M][PANEL_ROWS] go on.
template <int F, int N, int M>
inline void chunk(const Walk<F>& walk, int row, const float* tile, int64_t first_group, int64_t groups, const Row* x,
                  vf* totals) {
  vf total[N][M];
  for (int n = 0; n < N; ++n)
    for (int m = 0; m < M; ++m) total[n][m] = totals[m * PANEL_ROWS + row + n];
  for (int64_t g = 0; g < groups; ++g) {
    vf part[N][M];
    const float* w = tile + (row * TILE_GROUPS + g) * GROUP;
    for (int i = 0; i < STEPS; ++i)
      for (int n = 0; n < N; ++n) {
        vf weight = load(w + n * TILE_GROUPS * GROUP + LANES * i);
        for (int m = 0; m < M; ++m) {
          vf input = load(x[m].values + (first_group + g) * GROUP + LANES * i);
          part[n][m] = i == 0 ? weight * input : fma(weight, input, part[n][m]);
        }
      }
    for (int n = 0; n < N; ++n)
      for (int m = 0; m < M; ++m) total[n][m] = add_group<F>(total[n][m], part[n][m], walk, row + n, first_group + g);
  }
  for (int n = 0; n < N; ++n)
    for (int m = 0; m < M; ++m) totals[m * PANEL_ROWS + row + n] = total[n][m];
}

template <int F, int M>
inline void chunk_rows(const Walk<F>& walk, int64_t rows, const float* tile, int64_t first_group, int64_t groups,
                       const Row* x, vf* totals) {
  int row = 0;
  for (; row + 4 <= rows; row += 4) chunk<F, 4, M>(walk, row, tile, first_group, groups, x, totals);
  for (; row < rows; ++row) chunk<F, 1, M>(walk, row, tile, first_group, groups, x, totals);
}

// Decodes a chunk of K of some weight rows to `tile`, and asks for the chunk behind it.
template <int F>
inline void decode_tile(const Walk<F>& walk, int64_t rows, int64_t from, int64_t groups, int64_t width, float* tile) {
  int64_t whole = width / GROUP;
  for (int row = 0; row < rows; ++row)
    for (int64_t g = 0; g < groups; ++g) {
      vf w[STEPS];
      const uint8_t* codes = walk.group(row, from + g);
      if (g % std::max<int64_t>(1, 64 / GROUP_BYTES<F>) == 0)
        for (int64_t line = 0; line < GROUP_BYTES<F>; line += 64)
          __builtin_prefetch(codes + TILE_GROUPS * GROUP_BYTES<F> + line, 0, 2);
      if (from + g < whole) decode<F>(codes, w);
      else decode_rest<F>(codes, width % GROUP, w);
      for (int i = 0; i < STEPS; ++i) store(tile + (row * TILE_GROUPS + g) * GROUP + LANES * i, w[i]);
    }
}

// At most PANEL_ROWS weight rows from `first` and PANEL_INPUTS input rows.
template <int F>
void panel(const Matrix& weight, int64_t first, int64_t weight_rows, const Row* x, int64_t rows, int64_t width, float* out,
           int64_t stride) {
  static thread_local Scratch memory;
  constexpr int64_t tile_bytes = TILE_ROWS * TILE_GROUPS * GROUP * 4, row_bytes = PANEL_ROWS * LANES * 4;
  uint8_t* start = memory.take(static_cast<size_t>(tile_bytes + rows * row_bytes));
  float* tile = reinterpret_cast<float*>(start);
  vf* totals = reinterpret_cast<vf*>(start + tile_bytes);
  std::memset(static_cast<void*>(totals), 0, static_cast<size_t>(rows * row_bytes));
  int64_t all_groups = (width + GROUP - 1) / GROUP;
  for (int64_t from = 0; from < all_groups; from += TILE_GROUPS) {
    int64_t groups = std::min(TILE_GROUPS, all_groups - from);
    for (int64_t n = 0; n < weight_rows; n += TILE_ROWS) {
      Walk<F> walk(weight, first + n);
      int64_t height = std::min(TILE_ROWS, weight_rows - n), m = 0;
      decode_tile<F>(walk, height, from, groups, width, tile);
      vf* here = totals + n;
      for (; m + 3 <= rows; m += 3) chunk_rows<F, 3>(walk, height, tile, from, groups, x + m, here + m * PANEL_ROWS);
      if (rows - m == 2) chunk_rows<F, 2>(walk, height, tile, from, groups, x + m, here + m * PANEL_ROWS);
      if (rows - m == 1) chunk_rows<F, 1>(walk, height, tile, from, groups, x + m, here + m * PANEL_ROWS);
    }
  }
  for (int64_t m = 0; m < rows; ++m)
    for (int n = 0; n < weight_rows; ++n) out[m * stride + n] = sum(totals[m * PANEL_ROWS + n]);
}

template <int F>
__attribute__((noinline)) void multiply(const Matrix& w, int64_t first, int64_t last, const Row* x, int64_t rows,
                                        int64_t width, float* out, int64_t stride) {
  if (rows <= DIRECT_ROWS) {
    int64_t n = first;
    if constexpr (F == FP4_1X32)  // longer sums of a lane hide behind more rows; needs registers, so for one input only
      for (; rows == 1 && n + 8 <= last; n += 8) direct<F, 8, 1>(Walk<F>(w, n), x, width, out + n - first, stride);
    for (; n + 4 <= last; n += 4) few<F, 4>(Walk<F>(w, n), x, rows, width, out + n - first, stride);
    for (; n < last; ++n)  // a last few rows, of which no weight of a model has any
      for (int64_t m = 0; m < rows; ++m) direct<F, 1, 1>(Walk<F>(w, n), x + m, width, out + m * stride + n - first, stride);
    return;
  }
  for (int64_t n = first; n < last; n += PANEL_ROWS)
    for (int64_t at = 0; at < rows; at += PANEL_INPUTS)
      panel<F>(w, n, std::min(PANEL_ROWS, last - n), x + at, std::min(PANEL_INPUTS, rows - at), width,
               out + at * stride + n - first, stride);
}

// out[m, n - first] for rows first..last-1 of a weight and all prepared rows m.  `first` is a multiple of 4.
inline void product(const Matrix& w, int64_t first, int64_t last, const Row* x, int64_t rows, int64_t width, float* out,
                    int64_t stride) {
  if (rows == 0) return;
  switch (w.format) {
    case FP8_32X32: multiply<FP8_32X32>(w, first, last, x, rows, width, out, stride); break;
    case FP4_1X32: multiply<FP4_1X32>(w, first, last, x, rows, width, out, stride); break;
    case PLAIN_BF16: multiply<PLAIN_BF16>(w, first, last, x, rows, width, out, stride); break;
    default: multiply<PLAIN_F32>(w, first, last, x, rows, width, out, stride); break;
  }
}

// The same, converted and stored at column `column` of rows [rows, out_stride].
inline void store_product(const Matrix& w, int64_t first, int64_t last, const Row* x, int64_t rows, int64_t width,
                          void* out, int64_t out_stride, int64_t column, int64_t dtype) {
  if (dtype == F32) {
    product(w, first, last, x, rows, width, static_cast<float*>(out) + column + first, out_stride);
    return;
  }
  static thread_local Scratch memory;
  int64_t span = last - first;
  float* values = reinterpret_cast<float*>(memory.take(static_cast<size_t>(rows * span) * sizeof(float)));
  product(w, first, last, x, rows, width, values, span);
  for (int64_t m = 0; m < rows; ++m)
    for (int64_t n = 0; n < span; ++n)
      static_cast<uint16_t*>(out)[m * out_stride + column + first + n] = bf16_bits(values[m * span + n]);
}

}  // namespace flash41
