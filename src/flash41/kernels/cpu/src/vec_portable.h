// Four lanes of whatever the compiler targets (SSE2, NEON, ...): arithmetic by vector extensions, decoding by integers.
#pragma once
#define FLASH41_LANES 4
#include "vec.h"

namespace flash41 {

inline vf fma(vf a, vf b, vf c) { return a * b + c; }

inline vi bytes_at(const uint8_t* codes) {
  typedef uint8_t four __attribute__((vector_size(4)));
  four narrow;
  std::memcpy(&narrow, codes, sizeof narrow);
  return __builtin_convertvector(narrow, vi);
}

// 32 consecutive codes; values are 2^-8 of what the code stands for, as in the other levels.
inline void decode_fp8(const uint8_t* codes, vf out[STEPS]) {
  for (int i = 0; i < STEPS; ++i) {
    vi code = bytes_at(codes + LANES * i), magnitude = code & 0x7F;
    vf normal = as_float((magnitude << 20) + ((120 - 8) << 23));        // (1 + m/8) 2^(e-15), right for e > 0
    vf subnormal = (normal - 0x1p-15f) * 2.0f;                          // m/8 2^-14, right for e = 0
    out[i] = as_float(as_int(choose(magnitude < 8, subnormal, normal)) | ((code & 0x80) << 24));
  }
}

// 32 codes in 16 bytes; step t holds nibble 2t of each 32-bit word, then nibble 2t+1 of each.
inline void decode_fp4(const uint8_t* codes, vf out[STEPS]) {
  vi words;
  std::memcpy(&words, codes, sizeof words);
  for (int i = 0; i < STEPS; ++i) {
    vi code = (words >> (4 * i)) & 15, magnitude = code & 7;
    vf normal = as_float((magnitude << 22) + (126 << 23));              // (1 + m/2) 2^(e-1), right for e > 0
    vf subnormal = normal - 0.5f;                                       // m/2 2^-1 doubled below
    out[i] = as_float(as_int(choose(magnitude < 2, subnormal * 2.0f, normal)) | ((code & 8) << 28));
  }
}

inline vf load_bf16(const uint16_t* at) {
  typedef uint16_t narrow_type __attribute__((vector_size(2 * LANES)));
  narrow_type narrow;
  std::memcpy(&narrow, at, sizeof narrow);
  return as_float(__builtin_convertvector(narrow, vi) << 16);
}

inline float sum(vf v) { return (v[0] + v[2]) + (v[1] + v[3]); }

// Channel of a group of 32 that stands at lane `lane` of step `step` in the FP4 order.
inline int fp4_channel(int step, int lane) { return 8 * lane + step; }

}  // namespace flash41
