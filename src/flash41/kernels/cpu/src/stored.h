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

inline float e4m3_value(uint8_t code) {
  int exponent = code >> 3 & 15, mantissa = code & 7;
  if ((code & 0x7F) == 0x7F) return from_bits(0x7FC00000);
  float size = exponent == 0 ? static_cast<float>(mantissa) * 0x1p-9f
                             : from_bits((exponent + 120) << 23 | mantissa << 20);
  return code & 0x80 ? -size : size;
}

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

inline void prefetch_row(const StoredRows& rows, int64_t number) {
  const uint8_t* start = row_codes(rows, number);
  if (rows.run < rows.channels) return;  // tiles are read in order
  for (int64_t line = 0, bytes = code_bytes(rows); line < bytes; line += 64) __builtin_prefetch(start + line, 0, 2);
  if (rows.scales != nullptr) __builtin_prefetch(row_scales(rows, number), 0, 2);
}

// `count` channels at `out` times a factor.
inline void scale_channels(float* out, int64_t count, float factor) {
  for (int64_t k = 0; k + LANES <= count; k += LANES) store(out + k, load(out + k) * factor);
}

inline void read_fp4(const uint8_t* codes, int64_t channels, float* out) {
  for (int64_t pair = 0; pair < channels / 2; ++pair) std::memcpy(out + 2 * pair, PAIRS.values[codes[pair]], 8);
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
    int64_t group = rows.format == ROW_FP4_16 ? 16 : 32;
    read_fp4(codes, rows.channels, out);
    for (int64_t k = 0; k < rows.channels; k += group)
      scale_channels(out + k, group, group == 16 ? e4m3_value(scales[k / 16]) : scale_value(scales[k / 32]));
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
