// Stands before the compiler's header of this name, so that units of AVX-512, its BF16 instructions and tiles run on a
// CPU that has AVX2: the instructions they use, written out from the manual's definitions, one lane after the other.
//
// Tiles that were not configured, and shapes that do not agree, end the process, as the CPU would.
#pragma once
#include_next <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace emulated {

template <class T, class V>
struct Lanes {
  static constexpr int COUNT = sizeof(V) / sizeof(T);
  T at[COUNT];
  Lanes() : at{} {}
  explicit Lanes(V v) { std::memcpy(at, &v, sizeof v); }
  V vector() const {
    V v;
    std::memcpy(&v, at, sizeof v);
    return v;
  }
};

template <class T, class V, class F>
inline V make(F&& lane) {
  Lanes<T, V> out;
  for (int i = 0; i < out.COUNT; ++i) out.at[i] = static_cast<T>(lane(i));
  return out.vector();
}

using Words = Lanes<uint16_t, __m512i>;
using Bytes = Lanes<uint8_t, __m512i>;
using Ints = Lanes<uint32_t, __m512i>;
using Floats = Lanes<float, __m512>;

template <class To, class From>
inline To cut(From from) {
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

template <class To, class From>
inline To widened(From from) {
  To to{};
  std::memcpy(&to, &from, sizeof from);
  return to;
}

inline __m512i loadu(const void* at) { 
  __m512i v;
  std::memcpy(&v, at, sizeof v);
  return v;
}
inline void storeu(void* at, __m512i v) { std::memcpy(at, &v, sizeof v); }
inline __m512 set1_ps(float x) { return make<float, __m512>([&](int) { return x; }); }
inline __m512i set1_16(short x) { return make<uint16_t, __m512i>([&](int) { return x; }); }
inline __m512i set1_8(char x) { return make<uint8_t, __m512i>([&](int) { return x; }); }

template <class T, class V, class... X>
inline V setr(X... x) {
  const T all[] = {static_cast<T>(x)...};
  return make<T, V>([&](int i) { return all[i]; });
}

inline __m512 fmadd(__m512 a, __m512 b, __m512 c) {
  Floats x(a), y(b), z(c);
  return make<float, __m512>([&](int i) { return __builtin_fmaf(x.at[i], y.at[i], z.at[i]); });
}

// Halves are added, then quarters, and so on, as compilers do.
inline float reduce_add(__m512 v) {
  Floats x(v);
  for (int half = 8; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) x.at[i] += x.at[i + half];
  return x.at[0];
}

inline __m512i band(__m512i a, __m512i b) {
  Ints x(a), y(b);
  return make<uint32_t, __m512i>([&](int i) { return x.at[i] & y.at[i]; });
}
inline __m512i bor(__m512i a, __m512i b) {
  Ints x(a), y(b);
  return make<uint32_t, __m512i>([&](int i) { return x.at[i] | y.at[i]; });
}

template <class T>
inline __m512i left(__m512i a, unsigned count) {
  Lanes<T, __m512i> x(a);
  return make<T, __m512i>([&](int i) { return count < 8 * sizeof(T) ? x.at[i] << count : 0; });
}
template <class T>
inline __m512i right(__m512i a, unsigned count) {
  Lanes<T, __m512i> x(a);
  return make<T, __m512i>([&](int i) { return count < 8 * sizeof(T) ? x.at[i] >> count : 0; });
}
inline __m512i rights(__m512i a, __m512i counts) {
  Ints x(a), y(counts);
  return make<uint32_t, __m512i>([&](int i) { return y.at[i] < 32 ? x.at[i] >> y.at[i] : 0; });
}

template <class From, class To, class V>
inline __m512i convert(V v) {
  Lanes<From, V> x(v);
  return make<To, __m512i>([&](int i) { return static_cast<To>(x.at[i]); });
}
inline __m256i low_words(__m512i v) {
  Ints x(v);
  return make<uint16_t, __m256i>([&](int i) { return x.at[i]; });
}
inline __m512 from_fp16(__m256i v) {
  const __m128i first = _mm256_castsi256_si128(v), last = _mm256_extracti128_si256(v, 1);
  const __m256 parts[2] = {_mm256_cvtph_ps(first), _mm256_cvtph_ps(last)};
  __m512 out;
  std::memcpy(&out, parts, sizeof out);
  return out;
}

inline __m512i four_times(__m128i v) {
  const __m128i all[4] = {v, v, v, v};
  __m512i out;
  std::memcpy(&out, all, sizeof out);
  return out;
}
inline __m256i half(__m512i v, int number) {
  __m256i halves[2];
  std::memcpy(halves, &v, sizeof v);
  return halves[number & 1];
}
inline __m512i with_half(__m512i v, __m256i part, int number) {
  std::memcpy(reinterpret_cast<char*>(&v) + 32 * (number & 1), &part, sizeof part);
  return v;
}

inline __m512i permute_words(__m512i index, __m512i v) {
  Words x(index), y(v);
  return make<uint16_t, __m512i>([&](int i) { return y.at[x.at[i] & 31]; });
}
inline __m512 permute_floats(__m512i index, __m512 v) {
  Ints x(index);
  Floats y(v);
  return make<float, __m512>([&](int i) { return y.at[x.at[i] & 15]; });
}
inline __m512i permute_two(__m512i a, __m512i index, __m512i b) {
  Bytes x(a), y(index), z(b);
  return make<uint8_t, __m512i>([&](int i) { return (y.at[i] & 64 ? z : x).at[y.at[i] & 63]; });
}
inline __m512i shuffle(__m512i v, __m512i control) {
  Bytes x(v), y(control);
  return make<uint8_t, __m512i>([&](int i) { return y.at[i] & 128 ? 0 : x.at[i / 16 * 16 + (y.at[i] & 15)]; });
}
inline __m512i unpack(__m512i a, __m512i b, int from) {
  Bytes x(a), y(b);
  return make<uint8_t, __m512i>([&](int i) {
    int place = i / 16 * 16 + from + i % 16 / 2;
    return (i % 2 == 0 ? x : y).at[place];
  });
}

inline __m512 blend(__mmask16 mask, __m512 a, __m512 b) {
  Floats x(a), y(b);
  return make<float, __m512>([&](int i) { return (mask >> i & 1 ? y : x).at[i]; });
}
inline __m512i mask_add(__m512i old, __mmask32 mask, __m512i a, __m512i b) {
  Words x(a), y(b), z(old);
  return make<uint16_t, __m512i>([&](int i) { return mask >> i & 1 ? x.at[i] + y.at[i] : z.at[i]; });
}
inline __m512i maskz_add(__mmask32 mask, __m512i a, __m512i b) { return mask_add(__m512i{}, mask, a, b); }
inline __m512i sub_words(__m512i a, __m512i b) {
  Words x(a), y(b);
  return make<uint16_t, __m512i>([&](int i) { return x.at[i] - y.at[i]; });
}
template <class T, class M>
inline M test(__m512i a, __m512i b) {
  Lanes<T, __m512i> x(a), y(b);
  M mask = 0;
  for (int i = 0; i < x.COUNT; ++i) mask = static_cast<M>(mask | static_cast<M>((x.at[i] & y.at[i]) != 0) << i);
  return mask;
}

// Numbers of the BF16 units: a subnormal, whether operand or result, counts as zero.
inline float flushed(float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }
inline float from_bf16(uint16_t bits) { return flushed(cut<float>(static_cast<uint32_t>(bits) << 16)); }
inline float add_product(float total, uint16_t a, uint16_t b) {
  return flushed(__builtin_fmaf(from_bf16(a), from_bf16(b), total));
}

inline __m512 dot_pairs(__m512 totals, __m512bh a, __m512bh b) {
  Floats total(totals);
  Lanes<uint16_t, __m512bh> x(a), y(b);
  return make<float, __m512>([&](int i) {
    float odd = add_product(flushed(total.at[i]), x.at[2 * i + 1], y.at[2 * i + 1]);
    return add_product(odd, x.at[2 * i], y.at[2 * i]);
  });
}

struct Tiles {
  uint8_t palette = 0, rows[8] = {};
  uint16_t row_bytes[8] = {};
  uint8_t data[8][16][64] = {};
};

inline Tiles& tiles() {
  static thread_local Tiles state;
  return state;
}

inline void demand(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "emulated tiles: %s\n", what);
  std::abort();
}

inline void load_config(const void* at) {
  const uint8_t* bytes = static_cast<const uint8_t*>(at);
  Tiles state;
  state.palette = bytes[0];
  std::memcpy(state.row_bytes, bytes + 16, sizeof state.row_bytes);
  std::memcpy(state.rows, bytes + 48, sizeof state.rows);
  demand(state.palette == 1, "palette");
  for (int i = 0; i < 8; ++i) demand(state.rows[i] <= 16 && state.row_bytes[i] <= 64, "shape");
  tiles() = state;
}
inline void release() { tiles() = Tiles(); }
inline void check(int tile) { demand(tiles().palette == 1 && tiles().rows[tile] > 0, "a tile without a shape"); }
inline void zero(int tile) {
  check(tile);
  std::memset(tiles().data[tile], 0, sizeof tiles().data[tile]);
}
inline void load_tile(int tile, const void* base, int64_t stride) {
  zero(tile);
  for (int row = 0; row < tiles().rows[tile]; ++row)
    std::memcpy(tiles().data[tile][row], static_cast<const char*>(base) + row * stride, tiles().row_bytes[tile]);
}
inline void store_tile(int tile, void* base, int64_t stride) {
  check(tile);
  for (int row = 0; row < tiles().rows[tile]; ++row)
    std::memcpy(static_cast<char*>(base) + row * stride, tiles().data[tile][row], tiles().row_bytes[tile]);
}

inline void multiply(int out, int left, int right) {
  check(out);
  Tiles& t = tiles();
  const int pairs = t.row_bytes[left] / 4, columns = t.row_bytes[out] / 4;
  demand(t.rows[out] == t.rows[left] && t.rows[right] == pairs && t.row_bytes[right] == t.row_bytes[out], "shapes");
  for (int row = 0; row < t.rows[out]; ++row) {
    float even[16] = {}, odd[16] = {}, totals[16];
    uint16_t a[32], b[32];
    std::memcpy(a, t.data[left][row], sizeof a);
    std::memcpy(totals, t.data[out][row], sizeof totals);
    for (int k = 0; k < pairs; ++k) {
      std::memcpy(b, t.data[right][k], sizeof b);
      for (int n = 0; n < columns; ++n) {
        even[n] = add_product(even[n], a[2 * k], b[2 * n]);
        odd[n] = add_product(odd[n], a[2 * k + 1], b[2 * n + 1]);
      }
    }
    for (int n = 0; n < columns; ++n) totals[n] = flushed(flushed(totals[n]) + flushed(even[n] + odd[n]));
    std::memcpy(t.data[out][row], totals, sizeof totals);
  }
}

}  // namespace emulated

#undef _mm512_setr_epi32
#undef _mm512_setr_ps
#define _mm512_and_si512 emulated::band
#define _mm512_broadcast_i32x4 emulated::four_times
#define _mm512_castsi256_si512 emulated::widened<__m512i>
#define _mm512_castsi512_ps emulated::cut<__m512>
#define _mm512_castsi512_si256 emulated::cut<__m256i>
#define _mm512_cvtepi32_epi16 emulated::low_words
#define _mm512_cvtepi8_epi16 emulated::convert<int8_t, int16_t>
#define _mm512_cvtepu16_epi32 emulated::convert<uint16_t, uint32_t>
#define _mm512_cvtepu8_epi16 emulated::convert<uint8_t, uint16_t>
#define _mm512_cvtph_ps emulated::from_fp16
#define _mm512_dpbf16_ps emulated::dot_pairs
#define _mm512_extracti64x4_epi64 emulated::half
#define _mm512_fmadd_ps emulated::fmadd
#define _mm512_inserti64x4 emulated::with_half
#define _mm512_loadu_si512 emulated::loadu
#define _mm512_mask_add_epi16 emulated::mask_add
#define _mm512_mask_blend_ps emulated::blend
#define _mm512_maskz_add_epi16 emulated::maskz_add
#define _mm512_or_si512 emulated::bor
#define _mm512_permutex2var_epi8 emulated::permute_two
#define _mm512_permutexvar_epi16 emulated::permute_words
#define _mm512_permutexvar_ps emulated::permute_floats
#define _mm512_reduce_add_ps emulated::reduce_add
#define _mm512_set1_epi16 emulated::set1_16
#define _mm512_set1_epi8 emulated::set1_8
#define _mm512_set1_ps emulated::set1_ps
#define _mm512_setr_epi32 emulated::setr<uint32_t, __m512i>
#define _mm512_setr_ps emulated::setr<float, __m512>
#define _mm512_setzero_ps() __m512{}
#define _mm512_shuffle_epi8 emulated::shuffle
#define _mm512_slli_epi16 emulated::left<uint16_t>
#define _mm512_slli_epi32 emulated::left<uint32_t>
#define _mm512_srli_epi16 emulated::right<uint16_t>
#define _mm512_srli_epi32 emulated::right<uint32_t>
#define _mm512_srlv_epi32 emulated::rights
#define _mm512_store_si512 emulated::storeu
#define _mm512_storeu_si512 emulated::storeu
#define _mm512_sub_epi16 emulated::sub_words
#define _mm512_test_epi16_mask emulated::test<uint16_t, __mmask32>
#define _mm512_test_epi32_mask emulated::test<uint32_t, __mmask16>
#define _mm512_unpackhi_epi8(a, b) emulated::unpack(a, b, 8)
#define _mm512_unpacklo_epi8(a, b) emulated::unpack(a, b, 0)
#define _mm512_zextsi256_si512 emulated::widened<__m512i>

#undef _tile_dpbf16ps
#undef _tile_loadconfig
#undef _tile_loadd
#undef _tile_release
#undef _tile_stored
#undef _tile_zero
#define _tile_dpbf16ps emulated::multiply
#define _tile_loadconfig emulated::load_config
#define _tile_loadd emulated::load_tile
#define _tile_release emulated::release
#define _tile_stored emulated::store_tile
#define _tile_zero emulated::zero
