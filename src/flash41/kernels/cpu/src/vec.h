// Vectors of FLASH41_LANES floats: what every level has in common.  Included by the vec_*.h of a level.
//
// A group of 32 channels is STEPS vectors.  Its products are summed lane by lane, scaled, and added lane by lane to an
// accumulator; lanes are added at the end.  That order depends on the level alone.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

namespace flash41 {

constexpr int LANES = FLASH41_LANES;
constexpr int STEPS = 32 / LANES;

typedef float vf __attribute__((vector_size(4 * FLASH41_LANES)));
typedef int32_t vi __attribute__((vector_size(4 * FLASH41_LANES)));

inline vf as_float(vi v) { vf f; std::memcpy(&f, &v, sizeof f); return f; }
inline vi as_int(vf v) { vi i; std::memcpy(&i, &v, sizeof i); return i; }
inline vf load(const float* at) { vf v; std::memcpy(&v, at, sizeof v); return v; }
inline void store(float* at, vf v) { std::memcpy(at, &v, sizeof v); }
inline vf all(float value) { return value - vf{}; }  // minus 0 changes no value, so nothing but a broadcast is left
inline vf choose(vi mask, vf yes, vf no) { return as_float((mask & as_int(yes)) | (~mask & as_int(no))); }
inline vi choose(vi mask, vi yes, vi no) { return (mask & yes) | (~mask & no); }
inline vi larger(vi a, vi b) { return choose(a > b, a, b); }

// A NaN counts as second operand and is lost as first; callers look for NaN by bits where it matters.
inline vf maximum(vf a, vf b) { return choose(a > b, a, b); }
inline vf minimum(vf a, vf b) { return choose(a < b, a, b); }

inline float bf16_value(uint16_t bits) {
  uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

// Nearest, ties to even; a NaN stays one.
inline uint16_t bf16_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7FFFFFFF) > 0x7F800000) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

inline float rounded_bf16(float value) { return bf16_value(bf16_bits(value)); }

inline vf rounded_bf16(vf value) {
  vi bits = as_int(value);
  vi kept = (bits + 0x7FFF + ((bits >> 16) & 1)) & ~0xFFFF;
  return as_float(choose((bits & 0x7FFFFFFF) > 0x7F800000, bits | 0x400000, kept));
}

inline void store_bf16(uint16_t* at, vf value) {
  typedef uint16_t narrow __attribute__((vector_size(2 * FLASH41_LANES)));
  typedef uint32_t vu __attribute__((vector_size(4 * FLASH41_LANES)));
  vf kept = rounded_bf16(value);
  vu bits;
  std::memcpy(&bits, &kept, sizeof bits);
  narrow half = __builtin_convertvector(bits >> 16, narrow);
  std::memcpy(at, &half, sizeof half);
}

}  // namespace flash41
