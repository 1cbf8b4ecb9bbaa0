// Numbers in BF16: which rows it holds, and in which order channels stand.
//
// Every FP8 and FP4 code and every FP8-quantised activation is a BF16 number, so products lose nothing.  But the
// instructions that multiply BF16 take subnormals, operands and results alike, for zero.  So a row is multiplied in BF16
// only if each of its numbers is 0 or a BF16 number of a size between 2^-70 and 2^70: then no product and no sum of
// products with codes (2^-9 to 448), or with codes times scales of at most 2^40 either way, is subnormal.
//
// Channels come in chunks of 64, two vectors of 32, in the order that decoding gives.  Of both vectors the first half
// belongs to the first group of 32 channels and the second half to the second:
//   FP4   even channels | odd channels
//   FP8   channels 0-7, 16-23, 32-39, 48-55 | channels 8-15, 24-31, 40-47, 56-63
// An odd last group is followed by zeros.
#pragma once

namespace flash41 {

constexpr bool HALVES = true;
constexpr int32_t SMALLEST_HALF = (127 - 70) << 23, LARGEST_HALF = (127 + 70) << 23;

inline int64_t padded_halves(int64_t width) { return (width + CHUNK - 1) / CHUNK * CHUNK; }

inline bool halves_hold(const vf (&v)[STEPS]) {
  vi wrong = {};
  for (int i = 0; i < STEPS; ++i) {
    vi bits = as_int(v[i]), size = bits & 0x7FFFFFFF;
    wrong |= ((bits & 0xFFFF) != 0) | ((size != 0) & ((size < SMALLEST_HALF) | (size > LARGEST_HALF)));
  }
  return _mm512_test_epi32_mask((__m512i)wrong, (__m512i)wrong) == 0;
}

alignas(64) constexpr uint16_t FP4_ORDER[32] = {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30,
                                                1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31};
alignas(64) constexpr uint16_t FP8_ORDER[32] = {0, 1, 2,  3,  4,  5,  6,  7,  16, 17, 18, 19, 20, 21, 22, 23,
                                                8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31};

// Group number `group` of the `groups` of a row, in natural order; all of them BF16 numbers, or the row is not used.
inline void put_halves(uint16_t* row, int64_t format, int64_t group, int64_t groups, const vf (&v)[STEPS]) {
  __m256i first = _mm512_cvtepi32_epi16(_mm512_srli_epi32((__m512i)v[0], 16));
  __m256i second = _mm512_cvtepi32_epi16(_mm512_srli_epi32((__m512i)v[1], 16));
  __m512i natural = _mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1);
  __m512i order = _mm512_loadu_si512(format == FP4_1X32 ? FP4_ORDER : FP8_ORDER);
  __m512i sorted = _mm512_permutexvar_epi16(order, natural);
  uint16_t* at = row + group / 2 * CHUNK + group % 2 * 16;
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), _mm512_castsi512_si256(sorted));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(at + 32), _mm512_extracti64x4_epi64(sorted, 1));
  if (group + 1 < groups || group % 2 != 0) return;
  std::memset(at + 16, 0, 32);
  std::memset(at + 48, 0, 32);
}

// Upper and lower bytes of the BF16 numbers of E4M3 codes 0 to 126, and of E2M1 codes.
struct HalfTables {
  uint8_t low[128], high[128];
  uint16_t fp4[32];
};
constexpr HalfTables make_half_tables() {
  HalfTables tables{};
  for (int code = 0; code < 128; ++code) {
    int exponent = code >> 3, mantissa = code & 7;
    if (exponent == 0 && mantissa != 0) {  // mantissa 2^-9, made normal
      int shift = mantissa >= 4 ? 1 : mantissa >= 2 ? 2 : 3;
      exponent = 1 - shift;
      mantissa = (mantissa << shift) & 7;
    } else if (exponent == 0) {
      exponent = 7 - 127;
    }
    int bits = (exponent + 127 - 7) << 7 | mantissa << 4;
    tables.low[code] = static_cast<uint8_t>(bits & 255);
    tables.high[code] = static_cast<uint8_t>(bits >> 8);
  }
  constexpr uint16_t magnitudes[8] = {0, 0x3F00, 0x3F80, 0x3FC0, 0x4000, 0x4040, 0x4080, 0x40C0};
  for (int place = 0; place < 32; ++place)  // twice, because permutes read five bits
    tables.fp4[place] = static_cast<uint16_t>(magnitudes[place & 7] | (place & 8) << 12);
  return tables;
}
alignas(64) constexpr HalfTables HALF_TABLES = make_half_tables();

// 32 bytes of two FP4 codes each as words; 16 where `both` is false.
inline __m512i load_fp4_pairs(const uint8_t* codes, bool both) {
  return _mm512_cvtepu8_epi16(
      both ? _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes))
           : _mm256_zextsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes))));
}

// The codes of a chunk as BF16 numbers; of its first group only where `both` is false.
template <int F>
inline void decode_chunk(const uint8_t* codes, bool both, __m512i (&out)[2]) {
  static_assert(SCALED<F>, "plain weights are multiplied in FP32");
  if constexpr (F == FP4_1X32) {
    const __m512i table = _mm512_loadu_si512(HALF_TABLES.fp4);
    const __m512i pairs = load_fp4_pairs(codes, both);
    out[0] = _mm512_permutexvar_epi16(pairs, table);
    out[1] = _mm512_permutexvar_epi16(_mm512_srli_epi16(pairs, 4), table);
  } else {
    __m512i code = both ? _mm512_loadu_si512(codes)
                        : _mm512_zextsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes)));
    const __m512i sign = _mm512_set1_epi8(static_cast<char>(0x80));
    __m512i low = _mm512_permutex2var_epi8(_mm512_loadu_si512(HALF_TABLES.low), code,
                                           _mm512_loadu_si512(HALF_TABLES.low + 64));
    __m512i high = _mm512_permutex2var_epi8(_mm512_loadu_si512(HALF_TABLES.high), code,
                                            _mm512_loadu_si512(HALF_TABLES.high + 64));
    high = _mm512_or_si512(high, _mm512_and_si512(code, sign));
    out[0] = _mm512_unpacklo_epi8(low, high);
    out[1] = _mm512_unpackhi_epi8(low, high);
  }
}

}  // namespace flash41
