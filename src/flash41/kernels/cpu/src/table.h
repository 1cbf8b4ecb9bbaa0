// Rows of a table of FP8 codes with a scale per 32 channels, wherever they lie in it: widened, scaled, stored side by side.
//
// Rows follow no order and a table may have 1e11 bytes, so each is a wait for memory; the lines of the next rows are
// asked for while one is decoded.
#pragma once

namespace flash41 {

constexpr int64_t TABLE_ROWS = 32;       // rows of an item
constexpr int64_t TABLE_ROWS_AHEAD = 4;  // rows whose lines are asked for, five or six each

struct Table {
  const uint8_t* codes;   // E4M3 [rows, width]
  const uint8_t* scales;  // E8M0 [rows, width / 32]
  int64_t width;
  int64_t row_bytes;        // from one row of codes to the next
  int64_t scale_row_bytes;  // from one row of scales to the next
};

// Inlined by force: a function that only prefetches has no effect in the eyes of gcc, which drops calls of it.
__attribute__((always_inline)) inline void ask_for_row(const Table& table, int64_t id) {
  const uint8_t* codes = table.codes + id * table.row_bytes;
  const uint8_t* scales = table.scales + id * table.scale_row_bytes;
  for (int64_t at = 0; at < table.width; at += 64) __builtin_prefetch(codes + at, 0, 3);
  __builtin_prefetch(codes + table.width - 1, 0, 3);  // rows need not begin a line
  __builtin_prefetch(scales, 0, 3);
}

// One row to out[at..]; whether a scale is NaN.  Products are exact in FP32; below the normal numbers of BF16 they may
// need more bits than it has, so both dtypes get the value rounded to BF16.
inline bool read_row(const Table& table, int64_t id, void* out, int dtype, int64_t at) {
  constexpr int32_t NAN_CODE = 0x3FF00000;  // 480 * 2^-8: what decoding makes of the code of NaN
  const uint8_t* codes = table.codes + id * table.row_bytes;
  const uint8_t* scales = table.scales + id * table.scale_row_bytes;
  bool odd = false;
  for (int64_t k = 0; k < table.width; k += GROUP) {
    vf v[STEPS];
    decode_fp8(codes + k, v);
    uint8_t byte = scales[k / GROUP];
    odd |= byte == 255;
    vf scale = all(scale_value(byte));
    for (int i = 0; i < STEPS; ++i) {
      vf value = v[i] * 256.0f * scale;  // in this order: neither product leaves FP32 before the value itself does
      vi is_nan = (as_int(v[i]) & 0x7FFFFFFF) == NAN_CODE;
      value = choose(is_nan, all(from_bits(0x7FC00000)), value);
      if (dtype == BF16) store_bf16(static_cast<uint16_t*>(out) + at + k + LANES * i, value);
      else store(static_cast<float*>(out) + at + k + LANES * i, rounded_bf16(value));
    }
  }
  return odd;
}

// Values [count, width] of rows `ids`, all of them rows of the table.  Sets `odd` where one has a scale that is NaN.
inline void table_rows(int threads, const Table& table, const int64_t* ids, int64_t count, void* out, int dtype,
                       int32_t* odd) {
  std::atomic<int32_t> found{0};
  int64_t items = (count + TABLE_ROWS - 1) / TABLE_ROWS;
  parallel(helpers(threads, count * table.width * 2), items, [&](int64_t item) {
    int64_t first = item * TABLE_ROWS, last = std::min(count, first + TABLE_ROWS);
    for (int64_t n = first; n < std::min(last, first + TABLE_ROWS_AHEAD); ++n) ask_for_row(table, ids[n]);
    bool some = false;
    for (int64_t n = first; n < last; ++n) {
      if (n + TABLE_ROWS_AHEAD < last) ask_for_row(table, ids[n + TABLE_ROWS_AHEAD]);
      some |= read_row(table, ids[n], out, dtype, n * table.width);
    }
    if (some) found = 1;
  });
  *odd = found;
}

}  // namespace flash41
