// Eight lanes: AVX2, FMA and F16C.
#pragma once
#include <immintrin.h>
#define FLASH41_LANES 8
#include "vec.h"

namespace flash41 {

inline vf fma(vf a, vf b, vf c) { return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }

// 32 consecutive codes; FP16 bits with the exponent of FP8 are 2^-8 of the value, subnormal codes included.
inline void decode_fp8(const uint8_t* codes, vf out[STEPS]) {
  const __m256i mask = _mm256_set1_epi16(static_cast<short>(0xBFFF));
  for (int half = 0; half < 2; ++half) {
    __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + 16 * half)));
    wide = _mm256_and_si256(_mm256_slli_epi16(wide, 7), mask);
    out[2 * half] = (vf)_mm256_cvtph_ps(_mm256_castsi256_si128(wide));
    out[2 * half + 1] = (vf)_mm256_cvtph_ps(_mm256_extracti128_si256(wide, 1));
  }
}

// 32 codes in 16 bytes.  Values are BF16 numbers: two tables give their halves, and BF16 is the upper half of FP32.
inline void decode_fp4(const uint8_t* codes, vf out[STEPS]) {
  const __m256i upper = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 0x3F, 0x3F, 0x3F, 0x40, 0x40, 0x40, 0x40, -0x80, -0x41, -0x41, -0x41, -0x40, -0x40, -0x40, -0x40));
  const __m256i lower = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 0, -0x80, -0x40, 0, 0x40, -0x80, -0x40, 0, 0, -0x80, -0x40, 0, 0x40, -0x80, -0x40));
  const __m256i odd = _mm256_set1_epi32(static_cast<int>(0xFFFF0000u));
  __m256i pairs = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
  pairs = _mm256_srlv_epi32(pairs, _mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4));  // low nibbles, then high nibbles
  pairs = _mm256_and_si256(pairs, _mm256_set1_epi8(15));
  __m256i high = _mm256_shuffle_epi8(upper, pairs), low = _mm256_shuffle_epi8(lower, pairs);
  __m256i first = _mm256_unpacklo_epi8(low, high), last = _mm256_unpackhi_epi8(low, high);
  out[0] = (vf)_mm256_castsi256_ps(_mm256_slli_epi32(first, 16));
  out[1] = (vf)_mm256_castsi256_ps(_mm256_and_si256(first, odd));
  out[2] = (vf)_mm256_castsi256_ps(_mm256_slli_epi32(last, 16));
  out[3] = (vf)_mm256_castsi256_ps(_mm256_and_si256(last, odd));
}

inline vf load_bf16(const uint16_t* at) {
  __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
  return (vf)_mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}

inline float sum(vf v) {
  __m128 four = _mm_add_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
  __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}

// Channel of a group of 32 that stands at lane `lane` of step `step` in the FP4 order.
inline int fp4_channel(int step, int lane) { return 16 * (step / 2) + 4 * (lane % 4) + 2 * (step % 2) + lane / 4; }

}  // namespace flash41
