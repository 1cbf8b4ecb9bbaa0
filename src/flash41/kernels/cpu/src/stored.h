// Rows of caches where they lie, in the formats of a pool: codes, and scales where the format packs.
//
//     row r:     codes + (r / inner) * outer_bytes + (r % inner) * row_bytes, its scales likewise
//     channel c: run_bytes * (c / run) + c % run bytes further, where a row's codes lie in runs
//
// A row read here has the bits that the same row has in BF16: a code times its scale has at most six significant bits.
#pragma once

namespace flash41 {

enum RowFormat : int64_t { ROW_F32 = 0, ROW_BF16 = 1, ROW_FP8_32 = 2, ROW_FP4_16 = 3, ROW_FP4_32 = 4, ROW_FP8_ROW = 5 };

struct StoredRows {
  const uint8_t* codes;
  const uint8_t* scales;
  int64_t format;              // RowFormat
  int64_t channels;
  int64_t inner;               // rows of one record
  int64_t outer_bytes;         // from one record to the next
  int64_t row_bytes;           // from one row of a record to the next
  int64_t scale_outer_bytes;
  int64_t scale_row_bytes;
  int64_t run;                 // channels that lie together
  int64_t run_bytes;           // from one run of a row to the next
};

// Values of both codes of an FP4 byte, the lower one first.
struct PairTable {
  float values[256][2];
};
constexpr PairTable make_pairs() {
  constexpr float magnitudes[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  PairTable table{};
  for (int byte = 0; byte < 256; ++byte)
    for (int half = 0; half < 2; ++half) {
      int code = half == 0 ? byte & 15 : byte >> 4;
      table.values[byte][half] = code & 8 ? -magnitudes[code & 7] : magnitudes[code & 7];
    }
  return table;
}
constexpr PairTable PAIRS = make_pairs();

// Values of E4M3 codes.
struct E4M3Table {
  float values[256];
};
constexpr E4M3Table make_e4m3() {
  E4M3Table table{};
  for (int code = 0; code < 256; ++code) {
    float size = static_cast<float>(code & 7) * 0.125f + (code >> 3 & 15 ? 1.0f : 0.0f), factor = 0x1p-6f;
    for (int exponent = 1; exponent < (code >> 3 & 15); ++exponent) factor *= 2.0f;
    table.values[code] = (code & 0x7F) == 0x7F ? __builtin_nanf("") : (code & 0x80 ? -size : size) * factor;
  }
  return table;
}
constexpr E4M3Table E4M3 = make_e4m3();

// Rows of floats, `width` of them in use, the rest zeros.
inline int64_t padded(int64_t width) { return (width + LANES - 1) / LANES * LANES; }

inline void widen(const void* data, int64_t dtype, int64_t at, int64_t width, float* out) {
  int64_t k = 0;
  for (; k + LANES <= width; k += LANES) store(out + k, load_values(data, dtype, at + k));
  for (int64_t rest = k; rest < width; ++rest) out[rest] = load_value(data, dtype, at + rest);
  for (int64_t rest = width; rest < padded(width); ++rest) out[rest] = 0.0f;
}

inline const uint8_t* row_codes(const StoredRows& rows, int64_t number) {
  return rows.codes + number / rows.inner * rows.outer_bytes + number % rows.inner * rows.row_bytes;
}

inline const uint8_t* row_scales(const StoredRows& rows, int64_t number) {
  return rows.scales + number / rows.inner * rows.scale_outer_bytes + number % rows.inner * rows.scale_row_bytes;
}

inline int64_t code_bytes(const StoredRows& rows) {
  switch (rows.format) {
    case ROW_F32: return rows.channels * 4;
    case ROW_BF16: return rows.channels * 2;
    case ROW_FP4_16:
    case ROW_FP4_32: return rows.channels / 2;
    default: return rows.channels;
  }
}

// A row that will be read: its lines can be asked for part by part, since few requests can be under way at a time.
class RowAhead {
 public:
  RowAhead() = default;
  RowAhead(const StoredRows& rows, int64_t number) {
    if (rows.run < rows.channels) return;  // tiles are read in order
    codes_ = row_codes(rows, number);
    bytes_ = code_bytes(rows);
    if (rows.scales != nullptr) scales_ = row_scales(rows, number);
  }

  void ask(int64_t part, int64_t parts) const {
    for (int64_t line = 64 * part; line < bytes_; line += 64 * parts) __builtin_prefetch(codes_ + line, 0, 2);
    if (part == 0 && scales_ != nullptr) __builtin_prefetch(scales_, 0, 2);
  }

 private:
  const uint8_t* codes_ = nullptr;
  const uint8_t* scales_ = nullptr;
  int64_t bytes_ = 0;
};

// `count` channels at `out` times a factor.
inline void scale_channels(float* out, int64_t count, float factor) {
  for (int64_t k = 0; k + LANES <= count; k += LANES) store(out + k, load(out + k) * factor);
}

#if defined(__AVX2__)
// 16 codes, a byte each, times a factor.  A value is a BF16 number; two tables give its bytes.
inline void store_fp4(__m128i codes, float factor, float* out) {
  const __m128i upper = _mm_setr_epi8(0, 0x3F, 0x3F, 0x3F, 0x40, 0x40, 0x40, 0x40, -0x80, -0x41, -0x41, -0x41, -0x40, -0x40,
                                      -0x40, -0x40);
  const __m128i lower = _mm_setr_epi8(0, 0, -0x80, -0x40, 0, 0x40, -0x80, -0x40, 0, 0, -0x80, -0x40, 0, 0x40, -0x80, -0x40);
  __m128i high = _mm_shuffle_epi8(upper, codes), low = _mm_shuffle_epi8(lower, codes);
  const __m128i halves[2] = {_mm_unpacklo_epi8(low, high), _mm_unpackhi_epi8(low, high)};
  for (int half = 0; half < 2; ++half) {
    __m256 values = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves[half]), 16));
    _mm256_storeu_ps(out + 8 * half, _mm256_mul_ps(values, _mm256_set1_ps(factor)));
  }
}
#else
inline void store_fp4(const uint8_t* codes, float factor, float* out) {
  for (int64_t pair = 0; pair < 8; ++pair)
    for (int half = 0; half < 2; ++half) out[2 * pair + half] = PAIRS.values[codes[pair]][half] * factor;
}
#endif

// 32 codes in 16 bytes, the first 16 times one factor and the others times another.
inline void read_fp4(const uint8_t* codes, float first, float second, float* out) {
#if defined(__AVX2__)
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)), nibble = _mm_set1_epi8(15);
  const __m128i even = _mm_and_si128(bytes, nibble), odd = _mm_and_si128(_mm_srli_epi16(bytes, 4), nibble);
  store_fp4(_mm_unpacklo_epi8(even, odd), first, out);
  store_fp4(_mm_unpackhi_epi8(even, odd), second, out + 16);
#else
  store_fp4(codes, first, out);
  store_fp4(codes + 8, second, out + 16);
#endif
}

inline void read_fp8(const StoredRows& rows, const uint8_t* codes, float* out) {
  uint8_t together[GROUP] = {};
  for (int64_t k = 0; k < rows.channels; k += GROUP) {
    int64_t count = std::min(GROUP, rows.channels - k);
    const uint8_t* from = codes + k;
    if (rows.run < rows.channels || count < GROUP) {
      for (int64_t c = k; c < k + count; ++c) together[c - k] = codes[c / rows.run * rows.run_bytes + c % rows.run];
      from = together;
    }
    vf v[STEPS];
    float values[GROUP];
    decode_fp8(from, v);
    for (int i = 0; i < STEPS; ++i) store(values + LANES * i, v[i] * 256.0f);
    std::memcpy(out + k, values, static_cast<size_t>(count) * sizeof(float));
  }
}

// Row `number` as floats, zeros from its last channel to `padded(channels)`.
inline void read_row(const StoredRows& rows, int64_t number, float* out) {
  const uint8_t* codes = row_codes(rows, number);
  if (rows.format == ROW_F32 || rows.format == ROW_BF16) {
    widen(codes, rows.format == ROW_BF16 ? BF16 : F32, 0, rows.channels, out);
    return;
  }
  const uint8_t* scales = row_scales(rows, number);
  for (int64_t rest = rows.channels; rest < padded(rows.channels); ++rest) out[rest] = 0.0f;
  if (rows.format == ROW_FP4_16 || rows.format == ROW_FP4_32) {
    const bool small = rows.format == ROW_FP4_16;
    for (int64_t k = 0; k < rows.channels; k += GROUP) {
      float first = small ? E4M3.values[scales[k / 16]] : scale_value(scales[k / GROUP]);
      read_fp4(codes + k / 2, first, small ? E4M3.values[scales[k / 16 + 1]] : first, out + k);
    }
    return;
  }
  read_fp8(rows, codes, out);
  if (rows.format == ROW_FP8_32) {
    for (int64_t k = 0; k < rows.channels; k += GROUP) scale_channels(out + k, GROUP, scale_value(scales[k / GROUP]));
    return;
  }
  float factor;
  std::memcpy(&factor, scales, sizeof factor);
  for (int64_t k = 0; k < rows.channels; ++k) out[k] *= factor;
}

}  // namespace flash41
