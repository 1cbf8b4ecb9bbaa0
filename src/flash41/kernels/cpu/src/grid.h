// Rows whose values are small integers times a power of two in each group of 32 channels, as FP4/32 leaves them, and
// their dots in integers.
//
//     x[c] = n[c] * unit[g],   |n| <= 15,   g = c / 32
//     q . k = sum over g, ascending, of  (sum_{c in g} n_q[c] n_k[c]) * unit_q[g] * unit_k[g]
//
// The sum of a group is exact and groups are added in FP32, so whatever finds the same values finds the same bits: codes
// of a packed plane, BF16 values, any CPU level.  (Products of units below 2^-126 are left to rounding.)
#pragma once

namespace flash41 {

constexpr int64_t GRID_KEYS = 8;        // keys whose dots are made together
constexpr int64_t KEY_WORD = 4;            // channels of a key that lie together: one 32-bit word
constexpr int64_t KEY_WORDS = GROUP / KEY_WORD;
constexpr int64_t GRID_BYTES = GROUP * GRID_KEYS;  // of a group of channels of GRID_KEYS keys
constexpr int KEY_OFFSET = 16;          // makes a key's integers positive

#if defined(__AVX2__) && FLASH41_LANES == 8
inline void narrow(const vi (&n)[STEPS], int8_t* out) {
  __m256i low = _mm256_packs_epi32((__m256i)n[0], (__m256i)n[1]), high = _mm256_packs_epi32((__m256i)n[2], (__m256i)n[3]);
  __m256i mixed = _mm256_packs_epi16(low, high);
  mixed = _mm256_permutevar8x32_epi32(mixed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), mixed);
}
#else
inline void narrow(const vi (&n)[STEPS], int8_t* out) {
  typedef int8_t bytes __attribute__((vector_size(FLASH41_LANES)));
  for (int i = 0; i < STEPS; ++i) {
    bytes part = __builtin_convertvector(n[i], bytes);
    std::memcpy(out + LANES * i, &part, sizeof part);
  }
}
#endif

// Integers and unit of a group of 32 floats; false where they are not of this kind.
inline bool grid_group(const float* values, int8_t* out, float* unit) {
  constexpr float SHIFT = 12582912.0f;  // 1.5 * 2^23: an integer added to it stands in its low bits
  vf v[STEPS];
  for (int i = 0; i < STEPS; ++i) v[i] = load(values + LANES * i);
  int32_t exponent = largest_bits(v) >> 23;
  vi n[STEPS] = {};
  *unit = 1.0f;
  if (exponent == 0 || exponent > 250) {
    narrow(n, out);
    return exponent == 0 && largest_bits(v) == 0;
  }
  if (exponent < 10) return false;
  *unit = from_bits((exponent - 3) << 23);
  vf inverse = all(from_bits((257 - exponent) << 23));
  vi wrong = {};
  for (int i = 0; i < STEPS; ++i) {
    vf scaled = v[i] * inverse, shifted = scaled + SHIFT;
    wrong = wrong | (shifted - SHIFT != scaled);
    n[i] = as_int(shifted) - 0x4B400000;
  }
  for (int lane = 0; lane < LANES; ++lane)
    if (wrong[lane]) return false;
  narrow(n, out);
  return true;
}

// The same for a row of whole groups.
inline bool grid_row(const float* values, int64_t width, int8_t* out, float* units) {
  for (int64_t g = 0; g < width / GROUP; ++g)
    if (!grid_group(values + g * GROUP, out + g * GROUP, units + g)) return false;
  return true;
}

// The same from the codes and scales of an FP4/32 row, whose integers are twice its code values.
inline bool grid_codes(const uint8_t* codes, const uint8_t* scales, int64_t width, int8_t* out, float* units) {
  for (int64_t g = 0; g < width / GROUP; ++g) {
    if (scales[g] < 10 || scales[g] > 250) return false;
    units[g] = from_bits((scales[g] - 1) << 23);
#if defined(__AVX2__)
    const __m128i table = _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12), low = _mm_set1_epi8(15);
    __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + 16 * g));
    __m128i even = _mm_shuffle_epi8(table, _mm_and_si128(bytes, low));
    __m128i odd = _mm_shuffle_epi8(table, _mm_and_si128(_mm_srli_epi16(bytes, 4), low));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + GROUP * g), _mm_unpacklo_epi8(even, odd));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + GROUP * g + 16), _mm_unpackhi_epi8(even, odd));
#else
    for (int64_t pair = 0; pair < GROUP / 2; ++pair)
      for (int half = 0; half < 2; ++half)
        out[GROUP * g + 2 * pair + half] = static_cast<int8_t>(2.0f * PAIRS.values[codes[16 * g + pair]][half]);
#endif
  }
  return true;
}

// Puts the integers [GRID_KEYS][GROUP] of one group, rows `stride` apart, into words: [chunk][key][channel of the chunk],
// KEY_OFFSET added.
inline void interleave(const int8_t* rows, int64_t stride, uint8_t* out) {
#if defined(__AVX2__)
  __m256i r[8], t[8];
  for (int j = 0; j < 8; ++j)
    r[j] = _mm256_add_epi8(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows + j * stride)),
                           _mm256_set1_epi8(KEY_OFFSET));
  for (int j = 0; j < 8; j += 2) {
    t[j] = _mm256_unpacklo_epi32(r[j], r[j + 1]);
    t[j + 1] = _mm256_unpackhi_epi32(r[j], r[j + 1]);
  }
  for (int j = 0; j < 8; j += 4)
    for (int half = 0; half < 2; ++half) {
      r[j + 2 * half] = _mm256_unpacklo_epi64(t[j + half], t[j + 2 + half]);
      r[j + 2 * half + 1] = _mm256_unpackhi_epi64(t[j + half], t[j + 2 + half]);
    }
  for (int c = 0; c < 4; ++c) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 32 * c), _mm256_permute2x128_si256(r[c], r[c + 4], 0x20));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 32 * (c + 4)), _mm256_permute2x128_si256(r[c], r[c + 4], 0x31));
  }
#else
  for (int64_t chunk = 0; chunk < KEY_WORDS; ++chunk)
    for (int64_t key = 0; key < GRID_KEYS; ++key)
      for (int64_t c = 0; c < KEY_WORD; ++c)
        *out++ = static_cast<uint8_t>(rows[key * stride + chunk * KEY_WORD + c] + KEY_OFFSET);
#endif
}

// A query head made ready: integers, units and, for each group, KEY_OFFSET times the sum of its integers.
struct GridQuery {
  const int8_t* codes;
  const float* units;
  const int32_t* offsets;
};

#if defined(__AVX2__)
inline __m256i word(const int8_t* codes, int chunk) {
  int32_t bits;
  std::memcpy(&bits, codes + KEY_WORD * chunk, sizeof bits);
  return _mm256_set1_epi32(bits);
}
#endif

// Adds one group's share to the dots of all heads with GRID_KEYS keys: dots[h * stride + key].
inline void grid_dots(const uint8_t* keys, const float* key_units, const GridQuery& query, int64_t heads, int64_t width,
                      int64_t g, float* dots, int64_t stride) {
  int64_t groups = width / GROUP;
#if defined(__AVX2__)
  __m256i k[KEY_WORDS];
  for (int c = 0; c < KEY_WORDS; ++c) k[c] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(keys + 32 * c));
  const __m256i ones = _mm256_set1_epi16(1);
  const __m256 units = _mm256_loadu_ps(key_units);
  for (int64_t h = 0; h < heads; ++h) {
    const int8_t* codes = query.codes + h * width + g * GROUP;
    __m256i even = _mm256_maddubs_epi16(k[0], word(codes, 0));
    __m256i odd = _mm256_maddubs_epi16(k[1], word(codes, 1));
    for (int c = 2; c < KEY_WORDS; c += 2) {
      even = _mm256_add_epi16(even, _mm256_maddubs_epi16(k[c], word(codes, c)));
      odd = _mm256_add_epi16(odd, _mm256_maddubs_epi16(k[c + 1], word(codes, c + 1)));
    }
    __m256i sums = _mm256_madd_epi16(_mm256_add_epi16(even, odd), ones);
    sums = _mm256_sub_epi32(sums, _mm256_set1_epi32(query.offsets[h * groups + g]));
    __m256 part = _mm256_mul_ps(_mm256_cvtepi32_ps(sums), units);
    float* at = dots + h * stride;
    _mm256_storeu_ps(at, _mm256_fmadd_ps(part, _mm256_set1_ps(query.units[h * groups + g]), _mm256_loadu_ps(at)));
  }
#else
  for (int64_t h = 0; h < heads; ++h) {
    const int8_t* codes = query.codes + h * width + g * GROUP;
    int32_t sums[GRID_KEYS] = {};
    for (int64_t chunk = 0; chunk < KEY_WORDS; ++chunk)
      for (int64_t key = 0; key < GRID_KEYS; ++key)
        for (int64_t c = 0; c < KEY_WORD; ++c)
          sums[key] += keys[(chunk * GRID_KEYS + key) * KEY_WORD + c] * codes[chunk * KEY_WORD + c];
    for (int64_t key = 0; key < GRID_KEYS; ++key) {
      float part = static_cast<float>(sums[key] - query.offsets[h * groups + g]) * key_units[key];
      dots[h * stride + key] += part * query.units[h * groups + g];
    }
  }
#endif
}

}  // namespace flash41
