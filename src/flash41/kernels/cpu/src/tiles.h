// Products in BF16 by tiles: 16 weight rows x 32 channels times 32 channels x up to 16 input rows.
//
// A chunk of 64 channels of a band of 32 rows is decoded, scales folded in, to four tiles in the first-level cache: from
// 32 rows of a checkpoint, or from one place where the weight lies in bands (numerics/bands.py).  Inputs lie as the instruction reads them (blocks.h).  A result is one accumulator,
// to which tiles are added in K order; inside, the instruction adds 16 products of even and 16 of odd places.  Few rows
// keep their accumulators in registers; many leave them in memory between pieces of K, which changes no bit.
//
// Scales are folded in where none of a band of 32 rows is outside 2^-40..2^40 (halves.h); other bands stay in FP32.
#pragma once

namespace flash41 {

constexpr int64_t TILE = 512;           // BF16 numbers of a tile
constexpr int64_t CHUNK_TILES = 4;      // first rows, first vector | second rows, first vector | ... second vector
constexpr int64_t PANEL_CHUNKS = 4;     // chunks whose tiles are kept for many input blocks: 16 KiB
constexpr int64_t TILED_INPUTS = 512;   // input rows that use them
constexpr int64_t BAND_AHEAD = 65536;   // bytes between what is read and what is prefetched, in bands
constexpr int SMALLEST_SCALE = 127 - 40, NUM_SCALES = 81;

struct alignas(64) TileShapes {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};

// The compiler does not see that tile instructions read and write memory.
inline void memory_barrier() { asm volatile("" ::: "memory"); }

// Tiles of this thread, given back at the end.  Accumulators 0 to 3, weights 4 and 5, inputs 6 and 7; those of inputs 0
// have n0 columns (6; 0 and 1), those of inputs 1 have n1 (7; 2 and 3).
class TileRegisters {
 public:
  TileRegisters() {
    static thread_local const bool allowed = ask_for_tiles();
    if (!allowed) throw Refused{};
  }
  TileRegisters(const TileRegisters&) = delete;
  TileRegisters& operator=(const TileRegisters&) = delete;
  ~TileRegisters() {
    if (n0_ != 0) _tile_release();
  }

  void shape(int64_t n0, int64_t n1) {
    if (n0 == n0_ && n1 == n1_) return;
    n0_ = n0;
    n1_ = n1;
    TileShapes shapes{};
    shapes.palette = 1;
    const int64_t columns[8] = {n0, n0, n1, n1, 16, 16, n0, n1};
    for (int number = 0; number < 8; ++number) {
      shapes.rows[number] = 16;
      shapes.row_bytes[number] = static_cast<uint16_t>(4 * columns[number]);
    }
    // Without it the stores above are dropped: the instruction is said to read eight bytes only.
    asm volatile("" : : "r"(&shapes) : "memory");
    _tile_loadconfig(&shapes);
  }

 private:
  int64_t n0_ = 0, n1_ = 0;
};

// Whether no scale of a band leaves the range.
template <int F>
inline bool foldable(const Walk<F>& walk, int64_t height, int64_t groups) {
  int64_t runs = F == FP8_32X32 ? 1 : height, length = groups;
  if (F == FP4_1X32 && walk.banded()) {  // scales of a band lie together
    length *= runs;
    runs = 1;
  }
  unsigned outside = 0;
  for (int64_t run = 0; run < runs; ++run)
    for (int64_t i = 0; i < length; ++i)
      outside |= static_cast<uint8_t>(walk.scales[run * walk.scale_bytes.row + i] - SMALLEST_SCALE) >= NUM_SCALES;
  return outside == 0;
}

// What scales add to the exponents of a chunk: those of its first group in the first half, of the second in the second.
// `both` false: the chunk has one group.
template <int F>
inline __m512i scale_exponents(const Walk<F>& walk, int row, int64_t piece, bool both) {
  const uint8_t* scales = walk.scale_bytes_at(row, 2 * piece);
  int16_t pair = scales[0];
  if (both) std::memcpy(&pair, scales, sizeof pair);
  __m512i bytes = _mm512_set1_epi16(pair);
  const __m512i pick = _mm512_inserti64x4(_mm512_set1_epi16(static_cast<short>(0x8000)),
                                          _mm256_set1_epi16(static_cast<short>(0x8001)), 1);
  return _mm512_slli_epi16(_mm512_shuffle_epi8(bytes, pick), 7);
}

// BF16 numbers with powers of two multiplied in; zeros stay zeros.
inline __m512i scaled(__m512i numbers, __m512i exponents) {
  return _mm512_mask_add_epi16(numbers, _mm512_test_epi16_mask(numbers, _mm512_set1_epi16(0x7FFF)), numbers, exponents);
}

// 64 FP4 codes with scales folded in: the table is scaled, its first half by the first group's scale and its second half
// by the second's, and the place of a code says which half it looks into.
inline void decode_scaled_fp4(const uint8_t* codes, bool both, __m512i exponents, __m512i (&out)[2]) {
  constexpr __mmask32 NUMBERS = 0xFEFEFEFE;  // all codes but 0 and -0
  const __m512i table = _mm512_maskz_add_epi16(NUMBERS, _mm512_loadu_si512(HALF_TABLES.fp4), exponents);
  const __m512i half = _mm512_inserti64x4(_mm512_set1_epi16(0), _mm256_set1_epi16(16), 1), code = _mm512_set1_epi16(15);
  const __m512i pairs = load_fp4_pairs(codes, both);
  out[0] = _mm512_permutexvar_epi16(_mm512_or_si512(_mm512_and_si512(pairs, code), half), table);
  out[1] = _mm512_permutexvar_epi16(_mm512_or_si512(_mm512_srli_epi16(pairs, 4), half), table);
}

// One chunk of a band to CHUNK_TILES tiles; rows the weight does not have are left as they are.
template <int F>
inline void decode_band(const Walk<F>& walk, int64_t height, int64_t piece, int64_t width, uint16_t* tiles) {
  const bool both = (2 * piece + 1) * GROUP < width;
  const __m512i one = _mm512_set1_epi16(127 << 7);
  const __m512i shared = _mm512_sub_epi16(scale_exponents(walk, 0, piece, both), one);
  // Of rows the lines of the next band, of bands those that are so far away.
  const int64_t ahead = walk.banded() ? BAND_AHEAD : walk.code_bytes.band;
  const bool lines = F == FP8_32X32 || walk.banded() || piece % 2 == 0;
  for (int64_t row = 0; row < height; ++row) {
    const uint8_t* codes = walk.group(static_cast<int>(row), 2 * piece);
    if (lines && (!walk.banded() || walk.begins_line(static_cast<int>(row)))) __builtin_prefetch(codes + ahead, 0, 2);
    __m512i out[2];
    if constexpr (F == FP4_1X32) {
      __m512i exponents = _mm512_sub_epi16(scale_exponents(walk, static_cast<int>(row), piece, both), one);
      decode_scaled_fp4(codes, both, exponents, out);
    } else {
      decode_chunk<F>(codes, both, out);
      out[0] = scaled(out[0], shared);
      out[1] = scaled(out[1], shared);
    }
    uint16_t* at = tiles + row / 16 * TILE + row % 16 * 32;
    _mm512_store_si512(at, out[0]);
    _mm512_store_si512(at + 2 * TILE, out[1]);
  }
}

// Input columns of accumulators to rows of the output.
inline void scatter(const float* totals, int64_t n, int64_t height, float* out, int64_t stride) {
  for (int64_t m = 0; m < n; ++m)
    for (int64_t row = 0; row < height; ++row) out[m * stride + row] = totals[row * 16 + m];
}

// One block of up to 16 input rows.  A chunk is decoded while the tiles of the one before are multiplied.
template <int F>
inline void band_few(TileRegisters& registers, const Walk<F>& walk, int64_t height, const Row* x, int64_t rows,
                     int64_t width, uint16_t* tiles, float* totals, float* out, int64_t stride) {
  const int64_t pieces = (width + CHUNK - 1) / CHUNK, step = 32 * rows;
  registers.shape(rows, rows);
  _tile_zero(0);
  _tile_zero(1);
  decode_band<F>(walk, height, 0, width, tiles);
  for (int64_t piece = 0; piece < pieces; ++piece) {
    const uint16_t* weights = tiles + piece % 2 * CHUNK_TILES * TILE;
    const uint16_t* inputs = x->block + 2 * piece * step;
    if (piece + 1 < pieces)
      decode_band<F>(walk, height, piece + 1, width, tiles + (piece + 1) % 2 * CHUNK_TILES * TILE);
    memory_barrier();
    _tile_loadd(6, inputs, 4 * rows);
    _tile_loadd(4, weights, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(5, weights + TILE, 64);
    _tile_dpbf16ps(1, 5, 6);
    _tile_loadd(7, inputs + step, 4 * rows);
    _tile_loadd(4, weights + 2 * TILE, 64);
    _tile_dpbf16ps(0, 4, 7);
    _tile_loadd(5, weights + 3 * TILE, 64);
    _tile_dpbf16ps(1, 5, 7);
    memory_barrier();
  }
  _tile_stored(0, totals, 64);
  _tile_stored(1, totals + 256, 64);
  memory_barrier();
  scatter(totals, rows, height, out, stride);
}

// `steps` tiles of a band times one or two blocks; accumulators come from `totals` unless they begin, and go there.
inline void meet(const uint16_t* weights, int64_t steps, const uint16_t* left, int64_t n0, const uint16_t* right, int64_t n1,
                 bool begin, float* totals) {
  if (begin) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  } else {
    _tile_loadd(0, totals, 64);
    _tile_loadd(1, totals + 256, 64);
    if (right != nullptr) _tile_loadd(2, totals + 512, 64);
    if (right != nullptr) _tile_loadd(3, totals + 768, 64);
  }
  for (int64_t i = 0; i < steps; ++i) {
    _tile_loadd(4, weights + 2 * i * TILE, 64);
    _tile_loadd(6, left + 32 * n0 * i, 4 * n0);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(5, weights + (2 * i + 1) * TILE, 64);
    _tile_dpbf16ps(1, 5, 6);
    if (right == nullptr) continue;
    _tile_loadd(7, right + 32 * n1 * i, 4 * n1);
    _tile_dpbf16ps(2, 4, 7);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, totals, 64);
  _tile_stored(1, totals + 256, 64);
  if (right == nullptr) return;
  _tile_stored(2, totals + 512, 64);
  _tile_stored(3, totals + 768, 64);
}

// Any number of input rows, at most TILED_INPUTS: tiles of some chunks are decoded once and meet blocks two by two.
template <int F>
inline void band_many(TileRegisters& registers, const Walk<F>& walk, int64_t height, const Row* x, int64_t rows,
                      int64_t width, uint16_t* tiles, float* totals, float* out, int64_t stride) {
  const int64_t pieces = (width + CHUNK - 1) / CHUNK;
  for (int64_t from = 0; from < pieces; from += PANEL_CHUNKS) {
    const int64_t count = std::min(PANEL_CHUNKS, pieces - from);
    for (int64_t i = 0; i < count; ++i) decode_band<F>(walk, height, from + i, width, tiles + i * CHUNK_TILES * TILE);
    memory_barrier();
    for (int64_t m = 0; m < rows; m += 32) {
      int64_t n0 = std::min<int64_t>(16, rows - m), n1 = std::min<int64_t>(16, rows - m - n0);
      registers.shape(n0, n1 > 0 ? n1 : n0);
      const uint16_t* right = n1 > 0 ? x[m + 16].block + 64 * n1 * from : nullptr;
      meet(tiles, 2 * count, x[m].block + 64 * n0 * from, n0, right, n1, from == 0, totals + m * BAND);
    }
    memory_barrier();
  }
  for (int64_t m = 0; m < rows; m += 16)
    scatter(totals + m * BAND, std::min<int64_t>(16, rows - m), height, out + m * stride, stride);
}

template <int F>
__attribute__((noinline)) void multiply_tiles(const Matrix& w, int64_t first, int64_t last, const Row* x, int64_t rows,
                                              int64_t width, float* out, int64_t stride) {
  static thread_local Scratch memory;
  constexpr int64_t numbers = PANEL_CHUNKS * CHUNK_TILES * TILE;
  const int64_t inputs = std::min(rows, TILED_INPUTS), sums = (inputs + 31) / 32 * 32 * BAND;
  uint16_t* tiles = reinterpret_cast<uint16_t*>(memory.take(static_cast<size_t>(numbers * 2 + sums * 4)));
  float* totals = reinterpret_cast<float*>(tiles + numbers);
  if ((last - first) % BAND != 0) std::memset(tiles, 0, static_cast<size_t>(numbers * 2));
  TileRegisters registers;
  for (int64_t n = first; n < last; n += BAND) {
    const Walk<F> walk(w, n);
    const int64_t height = std::min(BAND, last - n);
    if (!foldable<F>(walk, height, width / GROUP)) {
      multiply<Floats<F>>(w, n, n + height, x, rows, width, out + n - first, stride);
      continue;
    }
    for (int64_t at = 0; at < rows; at += TILED_INPUTS) {
      const int64_t count = std::min(TILED_INPUTS, rows - at);
      auto band = count > 16 ? band_many<F> : band_few<F>;
      band(registers, walk, height, x + at, count, width, tiles, totals, out + at * stride + n - first, stride);
    }
  }
}

}  // namespace flash41
