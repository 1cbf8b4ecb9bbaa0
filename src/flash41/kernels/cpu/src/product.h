// Which way a product is computed.  It depends on the weight and on the row alone, never on the rows beside it.
#pragma once

namespace flash41 {

// The fast way of this level for rows that BF16 holds.
template <int F>
inline void multiply_exact(const Matrix& w, int64_t first, int64_t last, const Row* x, int64_t rows, int64_t width,
                           float* out, int64_t stride) {
#if defined(FLASH41_TILES)
  multiply_tiles<F>(w, first, last, x, rows, width, out, stride);
#elif defined(FLASH41_HALVES)
  multiply<Halves<F>>(w, first, last, x, rows, width, out, stride);
#else
  multiply<Floats<F>>(w, first, last, x, rows, width, out, stride);
#endif
}

// A scaled weight: all rows in BF16, and again in FP32 those that BF16 does not hold.
template <int F>
void multiply_scaled(const Matrix& w, int64_t first, int64_t last, const Row* x, int64_t rows, int64_t width,
                            float* out, int64_t stride) {
  if constexpr (!HALVES) return multiply<Floats<F>>(w, first, last, x, rows, width, out, stride);
  int64_t exact = std::count_if(x, x + rows, [](const Row& row) { return row.exact; });
  if (exact == 0) return multiply<Floats<F>>(w, first, last, x, rows, width, out, stride);
  multiply_exact<F>(w, first, last, x, rows, width, out, stride);
  if (exact == rows) return;
  static thread_local Scratch memory;
  int64_t others = rows - exact, span = last - first;
  Cutter counting(nullptr);
  counting.cut<Row>(others);
  counting.cut<float>(others * span);
  Cutter cutter(memory.take(counting.used()));
  Row* list = cutter.cut<Row>(others);
  float* values = cutter.cut<float>(others * span);
  std::copy_if(x, x + rows, list, [](const Row& row) { return !row.exact; });
  multiply<Floats<F>>(w, first, last, list, others, width, values, span);
  for (int64_t m = 0; m < rows; ++m) {
    if (x[m].exact) continue;
    std::memcpy(out + m * stride, values, static_cast<size_t>(span) * sizeof(float));
    values += span;
  }
}

#if defined(FLASH41_PART)
// Compiled in the second part only.
#if FLASH41_PART == 1
extern
#endif
    template void multiply_scaled<FP4_1X32>(const Matrix&, int64_t, int64_t, const Row*, int64_t, int64_t, float*, int64_t);
#endif

// out[m, n - first] for rows first..last-1 of a weight and all prepared rows m.  `first` is a multiple of 32.
inline void product(const Matrix& w, int64_t first, int64_t last, const Row* x, int64_t rows, int64_t width, float* out,
                    int64_t stride) {
  if (rows == 0) return;
  switch (w.format) {
    case FP8_32X32: multiply_scaled<FP8_32X32>(w, first, last, x, rows, width, out, stride); break;
    case FP4_1X32: multiply_scaled<FP4_1X32>(w, first, last, x, rows, width, out, stride); break;
    case PLAIN_BF16: multiply<Floats<PLAIN_BF16>>(w, first, last, x, rows, width, out, stride); break;
    default: multiply<Floats<PLAIN_F32>>(w, first, last, x, rows, width, out, stride); break;
  }
}

// The same, converted and stored at column `column` of rows [rows, out_stride].
inline void store_product(const Matrix& w, int64_t first, int64_t last, const Row* x, int64_t rows, int64_t width,
                          void* out, int64_t out_stride, int64_t column, int64_t dtype) {
  if (dtype == F32) {
    product(w, first, last, x, rows, width, static_cast<float*>(out) + column + first, out_stride);
    return;
  }
  static thread_local Scratch memory;
  int64_t span = last - first;
  float* values = reinterpret_cast<float*>(memory.take(static_cast<size_t>(rows * span) * sizeof(float)));
  product(w, first, last, x, rows, width, values, span);
  for (int64_t m = 0; m < rows; ++m)
    for (int64_t n = 0; n < span; ++n)
      static_cast<uint16_t*>(out)[m * out_stride + column + first + n] = bf16_bits(values[m * span + n]);
}

}  // namespace flash41
