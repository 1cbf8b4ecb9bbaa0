// Sixteen lanes: AVX-512 F, BW, DQ and VL (with FMA and F16C).
#pragma once
#include <immintrin.h>
#define FLASH41_LANES 16
#include "vec.h"

namespace flash41 {

inline vf fma(vf a, vf b, vf c) { return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }

// 32 consecutive codes; FP16 bits with the exponent of FP8 are 2^-8 of the value, subnormal codes included.
inline void decode_fp8(const uint8_t* codes, vf out[STEPS]) {
  __m512i wide = _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes)));
  wide = _mm512_and_si512(_mm512_slli_epi16(wide, 7), _mm512_set1_epi16(static_cast<short>(0xBFFF)));
  out[0] = (vf)_mm512_cvtph_ps(_mm512_castsi512_si256(wide));
  out[1] = (vf)_mm512_cvtph_ps(_mm512_extracti64x4_epi64(wide, 1));
}

// 32 codes in 16 bytes, four 32-bit words; step t holds nibbles 4t to 4t+3 of the words, four lanes each.
inline void decode_fp4(const uint8_t* codes, vf out[STEPS]) {
  const __m512 table = _mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f, -1.0f, -1.5f, -2.0f,
                                      -3.0f, -4.0f, -6.0f);
  const __m512i shifts = _mm512_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12);
  __m512i words = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
  words = _mm512_srlv_epi32(words, shifts);
  out[0] = (vf)_mm512_permutexvar_ps(words, table);  // reads 4 bits
  out[1] = (vf)_mm512_permutexvar_ps(_mm512_srli_epi32(words, 16), table);
}

inline vf load_bf16(const uint16_t* at) {
  __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
  return (vf)_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

inline float sum(vf v) { return _mm512_reduce_add_ps((__m512)v); }

// Channel of a group of 32 that stands at lane `lane` of step `step` in the FP4 order.
inline int fp4_channel(int step, int lane) { return 8 * (lane % 4) + 4 * step + lane / 4; }

}  // namespace flash41
