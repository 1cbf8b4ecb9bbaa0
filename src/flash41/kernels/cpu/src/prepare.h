// Rounding of activations to the grids of FP8 and FP4 groups.
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

}  // namespace flash41
