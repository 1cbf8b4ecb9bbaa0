// Products in BF16 by the dot product of pairs: a chunk of 64 channels is two instructions.
//
// An instruction adds, per lane, the products of two channels; both are of one group, whose scale the sum of the chunk
// then meets in FP32, where no scale is subnormal to the arithmetic.
#pragma once

namespace flash41 {

template <int F>
struct Halves {
  using Number = uint16_t;
  using Vector = __m512i;
  static constexpr int FORMAT = F, VECTORS = 2;
  static constexpr int64_t CHANNELS = CHUNK, BYTES = 2 * GROUP_BYTES<F>;

  static const uint16_t* input(const Row& x) { return x.halves; }
  static Vector load(const uint16_t* at) { return _mm512_loadu_si512(at); }
  static void store(uint16_t* at, Vector v) { _mm512_storeu_si512(at, v); }

  static void decode(const Walk<F>& walk, int row, int64_t piece, int64_t width, Vector (&out)[2]) {
    decode_chunk<F>(walk.group(row, 2 * piece), (2 * piece + 1) * GROUP < width, out);
  }

  static vf first(Vector w, Vector x) { return next(w, x, vf{}); }
  static vf next(Vector w, Vector x, vf part) { return (vf)_mm512_dpbf16_ps((__m512)part, (__m512bh)w, (__m512bh)x); }

  // Lanes 0 to 7 hold the first group of the chunk, lanes 8 to 15 the second.
  static vf add(vf total, vf part, const Walk<F>& walk, int row, int64_t piece, int64_t width) {
    bool both = (2 * piece + 1) * GROUP < width;
    __m512 low = _mm512_set1_ps(walk.scale(row, 2 * piece));
    __m512 high = both ? _mm512_set1_ps(walk.scale(row, 2 * piece + 1)) : _mm512_setzero_ps();
    return fma(part, (vf)_mm512_mask_blend_ps(0xFF00, low, high), total);
  }
};

}  // namespace flash41
