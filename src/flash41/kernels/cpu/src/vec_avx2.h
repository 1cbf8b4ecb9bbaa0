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

// 32 codes in 16 bytes, four 32-bit words; step t holds nibble 2t of each word, then nibble 2t+1 of each.
inline void decode_fp4(const uint8_t* codes, vf out[STEPS]) {
  const __m256 table = _mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f);
  const __m256i sign = _mm256_set1_epi32(static_cast<int>(0x80000000u));
  __m256i words = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
  words = _mm256_srlv_epi32(words, _mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4));
  for (int step = 0; step < STEPS; ++step) {
    __m256 magnitude = _mm256_permutevar8x32_ps(table, _mm256_srli_epi32(words, 8 * step));  // reads 3 bits
    __m256i negative = _mm256_and_si256(_mm256_slli_epi32(words, 28 - 8 * step), sign);
    out[step] = (vf)_mm256_xor_ps(magnitude, _mm256_castsi256_ps(negative));
  }
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
inline int fp4_channel(int step, int lane) { return 8 * (lane % 4) + 2 * step + lane / 4; }

// One group of FP4 weights against one group of codes of the input, in integers: the same exact lane sums as the
// floating-point way, at twice its speed where a weight meets one or two rows.
//   input: 4 x 32 bytes in the order of the packed nibbles (low ones, then high ones): bits 0-5, 6-11 and 12-17 of the
//   magnitude in units of 2^-9, and the sign as -1 or 1.  Result in units of 2^-10.
constexpr bool INTEGER_FP4 = true;

inline vf fp4_dot(const uint8_t* codes, const uint8_t* input) {
  const __m256i table = _mm256_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12,
                                         0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
  const __m256i* x = reinterpret_cast<const __m256i*>(input);
  __m256i words = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
  words = _mm256_srlv_epi32(words, _mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4));
  __m256i doubled = _mm256_shuffle_epi8(table, _mm256_and_si256(words, _mm256_set1_epi8(15)));
  doubled = _mm256_sign_epi8(doubled, _mm256_loadu_si256(x + 3));
  __m256i low = _mm256_maddubs_epi16(_mm256_loadu_si256(x), doubled);
  __m256i middle = _mm256_maddubs_epi16(_mm256_loadu_si256(x + 1), doubled);
  __m256i high = _mm256_maddubs_epi16(_mm256_loadu_si256(x + 2), doubled);
  __m256i total = _mm256_add_epi32(
      _mm256_add_epi32(_mm256_madd_epi16(low, _mm256_set1_epi16(1)), _mm256_madd_epi16(middle, _mm256_set1_epi16(64))),
      _mm256_madd_epi16(high, _mm256_set1_epi16(4096)));
  return (vf)_mm256_cvtepi32_ps(total);
}

}  // namespace flash41
