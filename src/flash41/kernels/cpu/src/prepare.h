// Rows made ready to meet weights: rounded to the FP8/32 grid where the model asks for it, in FP32, in the order in which
// the weight's format is decoded.
//
//     a = max(max|x|, 1e-4);   s = smallest power of two >= a * fp32(1/448);   x' = s * E4M3(x / s)
//
// A group with a NaN or an infinity becomes NaN as a whole.
#pragma once
#include <algorithm>

namespace flash41 {

constexpr float INVERSE_448 = 0x924925p-32f;
constexpr float INVERSE_6 = 0xAAAAABp-26f;
constexpr int32_t INFINITY_BITS = 0x7F800000;
constexpr int32_t MANTISSA_BITS = 0x007FFFFF;

struct Row {
  const float* values;  // FP32 in the order of the format; 2^8 times as large for FP8, whose codes decode to 2^-8
};

template <int COUNT>
inline int32_t largest_bits(const vf (&v)[COUNT]) {
  vi most = as_int(v[0]) & 0x7FFFFFFF;
  for (int i = 1; i < COUNT; ++i) most = larger(most, as_int(v[i]) & 0x7FFFFFFF);
  int32_t result = most[0];
  for (int lane = 1; lane < LANES; ++lane) result = std::max(result, most[lane]);
  return result;
}

inline float from_bits(int32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline int32_t to_bits(float value) {
  int32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float power_of_two_scale(float t) { return from_bits((to_bits(t) + MANTISSA_BITS) & INFINITY_BITS); }

// Nearest code values, ties to even, saturating; numerics.rounding explains the constants.
inline vf nearest(vf x, float limit, int32_t smallest_normal, int32_t shift) {
  vf inside = minimum(maximum(x, all(-limit)), all(limit));
  vf magic = as_float(larger(as_int(inside) & INFINITY_BITS, vi{} + smallest_normal) + (shift << 23 | 0x00400000));
  return (inside + magic) - magic;
}

inline vf nearest_e4m3(vf x) { return nearest(x, 448.0f, (127 - 6) << 23, 20); }
inline vf nearest_e2m1(vf x) { return nearest(x, 6.0f, 127 << 23, 22); }

// Replaces a group by its E4M3 code values; returns their scale, NaN for a group that is not finite.
inline float quantize_fp8(vf (&v)[STEPS]) {
  int32_t bits = largest_bits(v);
  if (bits >= INFINITY_BITS) {
    for (auto& part : v) part = vf{};
    return from_bits(0x7FC00000);
  }
  float scale = power_of_two_scale(std::max(from_bits(bits), 1e-4f) * INVERSE_448);
  float inverse = 1.0f / scale;  // exact: a power of two
  for (auto& part : v) part = nearest_e4m3(part * inverse);
  return scale;
}

inline vf load_values(const void* data, int64_t dtype, int64_t at) {
  return dtype == BF16 ? load_bf16(static_cast<const uint16_t*>(data) + at) : load(static_cast<const float*>(data) + at);
}

inline float load_value(const void* data, int64_t dtype, int64_t at) {
  return dtype == BF16 ? bf16_value(static_cast<const uint16_t*>(data)[at]) : static_cast<const float*>(data)[at];
}

inline void store_value(void* data, int64_t dtype, int64_t at, float value) {
  if (dtype == BF16) static_cast<uint16_t*>(data)[at] = bf16_bits(value);
  else static_cast<float*>(data)[at] = value;
}

inline void store_values(void* data, int64_t dtype, int64_t at, vf value) {
  if (dtype == BF16) store_bf16(static_cast<uint16_t*>(data) + at, value);
  else store(static_cast<float*>(data) + at, value);
}

// Where the rows of one format and one width are made ready.
class Ready {
 public:
  Ready() = default;
  Ready(Cutter& cutter, int64_t rows, int64_t width, int64_t format, bool quantize)
      : width_((width + GROUP - 1) / GROUP * GROUP), format_(format), quantize_(quantize) {
    values_ = cutter.cut<float>(rows * width_);
  }

  Row row(int64_t number) const { return {values_ + number * width_}; }

  // One group of a row; `v` are its channels in their natural order and is lost.
  void put(int64_t number, int64_t group, vf (&v)[STEPS]) {
    float scale = quantize_ ? quantize_fp8(v) : 1.0f;
    float* values = values_ + number * width_ + group * GROUP;
    if (format_ != FP4_1X32) {
      float factor = format_ == FP8_32X32 ? scale * 256.0f : scale;
      for (int i = 0; i < STEPS; ++i) store(values + LANES * i, v[i] * factor);
      return;
    }
    float natural[GROUP];
    for (int i = 0; i < STEPS; ++i) store(natural + LANES * i, v[i]);
    for (int i = 0; i < STEPS; ++i)
      for (int lane = 0; lane < LANES; ++lane) values[LANES * i + lane] = natural[fp4_channel(i, lane)] * scale;
  }

  void put_row(int64_t number, const void* data, int64_t dtype, int64_t first, int64_t width) {
    vf v[STEPS];
    int64_t whole = width / GROUP;
    for (int64_t group = 0; group < whole; ++group) {
      for (int i = 0; i < STEPS; ++i) v[i] = load_values(data, dtype, first + group * GROUP + LANES * i);
      put(number, group, v);
    }
    if (whole * GROUP == width) return;
    float rest[GROUP] = {};
    for (int64_t k = whole * GROUP; k < width; ++k) rest[k - whole * GROUP] = load_value(data, dtype, first + k);
    for (int i = 0; i < STEPS; ++i) v[i] = load(rest + LANES * i);
    put(number, whole, v);
  }

 private:
  int64_t width_ = 0, format_ = 0;
  bool quantize_ = false;
  float* values_ = nullptr;
};

}  // namespace flash41
