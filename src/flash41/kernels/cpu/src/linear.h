// Products of weights in their stored formats with prepared rows.
//
//     y[t, n] = sum_g s[n, g] * (sum_{k in g} w[n, k] x'[t, k])           g: groups of 32 channels
//
// Weights are taken in pieces, groups in FP32 (`Floats`), chunks of two groups in BF16 (dots.h).  Per piece each lane
// sums its own channels, first to last; the sum is scaled and added to the lane's total, pieces ascending; lanes are
// added last.  Both ways below keep this order to the bit:
//   direct   few rows: a weight is decoded in registers and meets all of them; memory-bound
//   panel    many rows: a tile of the weight is decoded once and used for 96 rows
#pragma once

namespace flash41 {

constexpr int64_t DIRECT_ROWS = 8;    // with more rows, tiles are decoded
constexpr int64_t TILE_ROWS = 16;     // weight rows per tile
constexpr int64_t TILE_PIECES = 8;    // 16 rows x 8 pieces x 128 bytes = 16 KiB: stays in the first-level cache
constexpr int64_t PANEL_ROWS = 64;    // weight rows that meet a piece of the input while it is in the second-level cache
constexpr int64_t PANEL_INPUTS = 96;  // input rows of that piece, 96 KiB

// The last channels of a plain weight whose width is no multiple of 32, padded with zeros.
template <int F>
inline void decode_rest(const uint8_t* codes, int64_t channels, vf out[STEPS]) {
  uint8_t padded[GROUP_BYTES<F>] = {};
  std::memcpy(padded, codes, static_cast<size_t>(channels * GROUP_BYTES<F> / GROUP));
  decode<F>(padded, out);
}

// Groups of 32 channels in FP32.
template <int F>
struct Floats {
  using Number = float;
  using Vector = vf;
  static constexpr int FORMAT = F, VECTORS = STEPS;
  static constexpr int64_t CHANNELS = GROUP, BYTES = GROUP_BYTES<F>;

  static const float* input(const Row& x) { return x.values; }
  static Vector load(const float* at) { return flash41::load(at); }
  static void store(float* at, Vector v) { flash41::store(at, v); }

  static void decode(const Walk<F>& walk, int row, int64_t g, int64_t width, Vector (&out)[STEPS]) {
    if constexpr (!SCALED<F>)
      if ((g + 1) * GROUP > width) return decode_rest<F>(walk.group(row, g), width % GROUP, out);
    flash41::decode<F>(walk.group(row, g), out);
  }

  static vf first(Vector w, Vector x) { return w * x; }
  static vf next(Vector w, Vector x, vf part) { return fma(w, x, part); }

  static vf add(vf total, vf part, const Walk<F>& walk, int row, int64_t g, int64_t) {
    if constexpr (SCALED<F>) return fma(part, all(walk.scale(row, g)), total);
    else return total + part;
  }
};

// What is read after a piece: further along the row, or along the band.
template <class P>
inline void prefetch(const Walk<P::FORMAT>& walk, int row, int64_t piece) {
  constexpr int64_t IN_CHUNK = CHUNK / P::CHANNELS, IN_LINE = P::BYTES < 64 ? 64 / P::BYTES : 1;
  if (piece % (walk.banded() ? IN_CHUNK : IN_LINE) != 0 || (walk.banded() && !walk.begins_line(row))) return;
  const uint8_t* codes = walk.group(row, piece * (P::CHANNELS / GROUP));
  for (int64_t line = 0; line < P::BYTES; line += 64) __builtin_prefetch(codes + AHEAD + line, 0, 2);
}

template <class P>
inline vf piece_sum(const typename P::Vector (&w)[P::VECTORS], const typename P::Number* x) {
  constexpr int64_t step = P::CHANNELS / P::VECTORS;
  vf part = P::first(w[0], P::load(x));
  for (int i = 1; i < P::VECTORS; ++i) part = P::next(w[i], P::load(x + step * i), part);
  return part;
}

template <class P, int N, int M>
inline void direct(const Walk<P::FORMAT>& walk, const Row* x, int64_t width, float* out, int64_t stride) {
  vf total[N][M] = {};
  int64_t pieces = (width + P::CHANNELS - 1) / P::CHANNELS;
  for (int64_t piece = 0; piece < pieces; ++piece)
    for (int n = 0; n < N; ++n) {
      typename P::Vector w[P::VECTORS];
      prefetch<P>(walk, n, piece);
      P::decode(walk, n, piece, width, w);
      for (int m = 0; m < M; ++m) {
        vf part = piece_sum<P>(w, P::input(x[m]) + piece * P::CHANNELS);
        total[n][m] = P::add(total[n][m], part, walk, n, piece, width);
      }
    }
  for (int n = 0; n < N; ++n)
    for (int m = 0; m < M; ++m) out[m * stride + n] = sum(total[n][m]);
}

// N weight rows against at most 8 input rows.
template <class P, int N>
inline void few(const Walk<P::FORMAT>& walk, const Row* x, int64_t rows, int64_t width, float* out, int64_t stride) {
  switch (rows) {
    case 1: direct<P, N, 1>(walk, x, width, out, stride); break;
    case 2: direct<P, N, 2>(walk, x, width, out, stride); break;
    case 3: direct<P, N, 3>(walk, x, width, out, stride); break;
    case 4: direct<P, N, 4>(walk, x, width, out, stride); break;
    case 5: direct<P, N, 5>(walk, x, width, out, stride); break;
    case 6: direct<P, N, 6>(walk, x, width, out, stride); break;
    case 7: direct<P, N, 7>(walk, x, width, out, stride); break;
    default: direct<P, N, 8>(walk, x, width, out, stride); break;
  }
}

// What a tile is used for: its numbers, where in the weight it lies, and the input rows.
template <class P>
struct Tile {
  const Walk<P::FORMAT>& walk;
  typename P::Number* numbers;
  int64_t height, first, pieces, width;

  typename P::Number* at(int64_t row, int64_t piece) const {
    return numbers + (row * TILE_PIECES + piece) * P::CHANNELS;
  }
};

// N rows of a tile against M input rows: totals [M][PANEL_ROWS] go on.
template <class P, int N, int M>
inline void chunk(const Tile<P>& tile, int row, const Row* x, vf* totals) {
  constexpr int64_t step = P::CHANNELS / P::VECTORS;
  vf total[N][M];
  for (int n = 0; n < N; ++n)
    for (int m = 0; m < M; ++m) total[n][m] = totals[m * PANEL_ROWS + row + n];
  for (int64_t piece = 0; piece < tile.pieces; ++piece) {
    vf part[N][M];
    for (int i = 0; i < P::VECTORS; ++i)
      for (int n = 0; n < N; ++n) {
        auto weight = P::load(tile.at(row + n, piece) + step * i);
        for (int m = 0; m < M; ++m) {
          auto input = P::load(P::input(x[m]) + (tile.first + piece) * P::CHANNELS + step * i);
          part[n][m] = i == 0 ? P::first(weight, input) : P::next(weight, input, part[n][m]);
        }
      }
    for (int n = 0; n < N; ++n)
      for (int m = 0; m < M; ++m)
        total[n][m] = P::add(total[n][m], part[n][m], tile.walk, row + n, tile.first + piece, tile.width);
  }
  for (int n = 0; n < N; ++n)
    for (int m = 0; m < M; ++m) totals[m * PANEL_ROWS + row + n] = total[n][m];
}

template <class P, int M>
inline void chunk_rows(const Tile<P>& tile, const Row* x, vf* totals) {
  int row = 0;
  for (; row + 4 <= tile.height; row += 4) chunk<P, 4, M>(tile, row, x, totals);
  for (; row < tile.height; ++row) chunk<P, 1, M>(tile, row, x, totals);
}

// Decodes a tile, and asks for the one behind it.
template <class P>
inline void decode_tile(const Tile<P>& tile) {
  for (int row = 0; row < tile.height; ++row)
    for (int64_t piece = 0; piece < tile.pieces; ++piece) {
      typename P::Vector w[P::VECTORS];
      if (piece % std::max<int64_t>(1, 64 / P::BYTES) == 0) {
        const uint8_t* codes = tile.walk.group(row, (tile.first + piece + TILE_PIECES) * (P::CHANNELS / GROUP));
        for (int64_t line = 0; line < P::BYTES; line += 64) __builtin_prefetch(codes + line, 0, 2);
      }
      P::decode(tile.walk, row, tile.first + piece, tile.width, w);
      for (int i = 0; i < P::VECTORS; ++i) P::store(tile.at(row, piece) + P::CHANNELS / P::VECTORS * i, w[i]);
    }
}

// At most PANEL_ROWS weight rows from `first` and PANEL_INPUTS input rows.
template <class P>
void panel(const Matrix& weight, int64_t first, int64_t weight_rows, const Row* x, int64_t rows, int64_t width, float* out,
           int64_t stride) {
  static thread_local Scratch memory;
  constexpr int64_t tile_bytes = TILE_ROWS * TILE_PIECES * P::CHANNELS * static_cast<int64_t>(sizeof(typename P::Number));
  constexpr int64_t row_bytes = PANEL_ROWS * LANES * 4;
  uint8_t* start = memory.take(static_cast<size_t>(tile_bytes + rows * row_bytes));
  vf* totals = reinterpret_cast<vf*>(start + tile_bytes);
  std::memset(static_cast<void*>(totals), 0, static_cast<size_t>(rows * row_bytes));
  int64_t all_pieces = (width + P::CHANNELS - 1) / P::CHANNELS;
  for (int64_t from = 0; from < all_pieces; from += TILE_PIECES) {
    int64_t pieces = std::min(TILE_PIECES, all_pieces - from);
    for (int64_t n = 0; n < weight_rows; n += TILE_ROWS) {
      Walk<P::FORMAT> walk(weight, first + n);
      int64_t height = std::min(TILE_ROWS, weight_rows - n), m = 0;
      Tile<P> tile{walk, reinterpret_cast<typename P::Number*>(start), height, from, pieces, width};
      decode_tile<P>(tile);
      vf* here = totals + n;
      for (; m + 3 <= rows; m += 3) chunk_rows<P, 3>(tile, x + m, here + m * PANEL_ROWS);
      if (rows - m == 2) chunk_rows<P, 2>(tile, x + m, here + m * PANEL_ROWS);
      if (rows - m == 1) chunk_rows<P, 1>(tile, x + m, here + m * PANEL_ROWS);
    }
  }
  for (int64_t m = 0; m < rows; ++m)
    for (int n = 0; n < weight_rows; ++n) out[m * stride + n] = sum(totals[m * PANEL_ROWS + n]);
}

template <class P>
__attribute__((noinline)) void multiply(const Matrix& w, int64_t first, int64_t last, const Row* x, int64_t rows,
                                        int64_t width, float* out, int64_t stride) {
  constexpr int F = P::FORMAT;
  if (rows <= DIRECT_ROWS) {
    int64_t n = first;
    if constexpr (F == FP4_1X32)  // longer sums of a lane hide behind more rows; needs registers, so for one input only
      for (; rows == 1 && n + 8 <= last; n += 8) direct<P, 8, 1>(Walk<F>(w, n), x, width, out + n - first, stride);
    for (; n + 4 <= last; n += 4) few<P, 4>(Walk<F>(w, n), x, rows, width, out + n - first, stride);
    for (; n < last; ++n)  // a last few rows, of which no weight of a model has any
      for (int64_t m = 0; m < rows; ++m) direct<P, 1, 1>(Walk<F>(w, n), x + m, width, out + m * stride + n - first, stride);
    return;
  }
  for (int64_t n = first; n < last; n += PANEL_ROWS)
    for (int64_t at = 0; at < rows; at += PANEL_INPUTS)
      panel<P>(w, n, std::min(PANEL_ROWS, last - n), x + at, std::min(PANEL_INPUTS, rows - at), width,
               out + at * stride + n - first, stride);
}

}  // namespace flash41
