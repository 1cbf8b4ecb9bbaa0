// Weights in their stored formats: scales, bytes of a group, decoding, and the way through some rows.
#pragma once

namespace flash41 {

#if defined(FLASH41_TILES)
constexpr bool BANDS = true;          // whether weights may lie in bands, which only tiles are quick to read
#else
constexpr bool BANDS = false;
#endif
constexpr int64_t AHEAD = 16384;      // bytes between what is read and what is prefetched

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

// Rows first.. of a weight, none beyond the end of a band, as the loops of a product walk them.
template <int F>
struct Walk {
  const uint8_t* codes;
  const uint8_t* scales;
  Strides code_bytes, scale_bytes;

  Walk(const Matrix& w, int64_t first)
      : codes(start(w.codes, w.code_bytes, first)),
        scales(start(w.scales, w.scale_bytes, first)),
        code_bytes(w.code_bytes),
        scale_bytes(w.scale_bytes) {}

  const uint8_t* group(int row, int64_t g) const {
    if constexpr (!BANDS) return codes + row * code_bytes.row + g * GROUP_BYTES<F>;
    return codes + row * code_bytes.row + g / 2 * code_bytes.chunk + g % 2 * GROUP_BYTES<F>;
  }
  // Of a group and the next one of its chunk.
  const uint8_t* scale_bytes_at(int row, int64_t g) const {
    if constexpr (F == FP8_32X32) return scales + g;
    if constexpr (!BANDS) return scales + row * scale_bytes.row + g;
    return scales + row * scale_bytes.row + g / 2 * scale_bytes.chunk + g % 2;
  }
  uint8_t scale_byte(int row, int64_t g) const { return *scale_bytes_at(row, g); }
  float scale(int row, int64_t g) const { return scale_value(scale_byte(row, g)); }

  bool banded() const { return BANDS && code_bytes.chunk == BAND * 2 * GROUP_BYTES<F>; }
  // Whether the chunk of a row begins a cache line, in a band that begins one.
  static constexpr bool begins_line(int row) { return 2 * GROUP_BYTES<F> >= 64 || row % 2 == 0; }

 private:
  static const uint8_t* start(const uint8_t* at, const Strides& bytes, int64_t first) {
    return at + first / BAND * bytes.band + first % BAND * bytes.row;
  }
};

}  // namespace flash41
