// The library of one CPU level: everything in one translation unit, so that no function built for a newer CPU can be
// linked where an older one is meant.  Each function returns 0, 1 where memory ran out, or 2 where
// the system refuses a thread what the level needs.
#pragma once
#include "api.h"
#include "pool.h"
#include "scratch.h"
#include "math.h"
#include "prepare.h"
#include "formats.h"
#if defined(FLASH41_HALVES)
#include "halves.h"
#else
#include "no_halves.h"
#endif
#include "ready.h"
#include "blocks.h"
#include "linear.h"
#if defined(FLASH41_TILES)
#include "permission.h"
#include "tiles.h"
#elif defined(FLASH41_HALVES)
#include "dots.h"
#endif
#include "product.h"
#include "products.h"
#include "expert.h"
#include "stored.h"
#include "grid.h"
#include "attention.h"
#include "full_attention.h"
#include "rows.h"
#include "table.h"
#include "index.h"
#include "mhc.h"
#include "stream.h"

namespace flash41 {

#if defined(FLASH41_TILES)
inline bool usable() { return ask_for_tiles(); }
#else
inline bool usable() { return true; }
#endif

template <class F>
int guarded(F&& function) {
  try {
    function();
    return 0;
  } catch (const std::bad_alloc&) {
    return 1;
  } catch (const Refused&) {
    return 2;
  }
}

}  // namespace flash41

#define FLASH41_EXPORT extern "C" __attribute__((visibility("default")))

// Two parts, so that they can be compiled side by side; without FLASH41_PART both at once.  The second one also holds the
// products of FP4 weights (product.h).
#if !defined(FLASH41_PART) || FLASH41_PART == 1

// What the caller was written for; another number means another layout of the records in api.h.
FLASH41_EXPORT int flash41_interface() { return 2; }

FLASH41_EXPORT int flash41_lanes() { return flash41::LANES; }

// Whether the system lets this process use the instructions of the level.
FLASH41_EXPORT int flash41_usable() { return flash41::usable() ? 1 : 0; }

// Whether an FP8 code among rows of codes is NaN: such a weight is left to the reference backend.
FLASH41_EXPORT int flash41_has_nan_code(const uint8_t* codes, int64_t rows, int64_t width, int64_t row_bytes) {
  uint64_t found = 0;
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t k = 0; k < width; ++k) found += (codes[row * row_bytes + k] & 0x7F) == 0x7F;
  return found != 0;
}

FLASH41_EXPORT int flash41_linear(int threads, const flash41::Matrix* weights, int64_t count, const flash41::Rows* x,
                                  int quantize, void* const* outputs, int out_dtype) {
  return flash41::guarded([&] { flash41::linear(threads, weights, count, x, quantize, outputs, out_dtype); });
}

FLASH41_EXPORT int flash41_grouped(int threads, const flash41::Matrix* weights, int64_t groups, const flash41::Rows* x,
                                   void* out, int64_t out_stride, int out_dtype) {
  return flash41::guarded([&] { flash41::grouped(threads, weights, groups, x, out, out_stride, out_dtype); });
}

FLASH41_EXPORT int flash41_experts(int threads, const flash41::Experts* job) {
  return flash41::guarded([&] { flash41::experts(threads, job); });
}

FLASH41_EXPORT int flash41_mixes(int threads, const flash41::Mixes* job) {
  return flash41::guarded([&] { flash41::mixes(threads, job); });
}

#endif
#if !defined(FLASH41_PART) || FLASH41_PART == 2

FLASH41_EXPORT int flash41_attention(int threads, const flash41::Attention* job) {
  return flash41::guarded([&] { flash41::attention(threads, job); });
}

FLASH41_EXPORT int flash41_full_attention(int threads, const flash41::FullAttention* job) {
  return flash41::guarded([&] { flash41::full_attention(threads, job); });
}

FLASH41_EXPORT int flash41_index_scores(int threads, const flash41::Scores* job) {
  return flash41::guarded([&] { flash41::index_scores(threads, job); });
}

FLASH41_EXPORT int flash41_select_rows(int threads, const float* scores, const uint8_t* allowed, int64_t rows,
                                       int64_t width, int64_t count, int64_t* out) {
  return flash41::guarded([&] { flash41::select_rows(threads, scores, allowed, rows, width, count, out); });
}

FLASH41_EXPORT int flash41_candidate_blocks(int threads, const float* scores, const int64_t* visible, int64_t rows,
                                            int64_t width, int64_t count, int64_t block_size, int64_t* out) {
  return flash41::guarded(
      [&] { flash41::candidate_blocks(threads, scores, visible, rows, width, count, block_size, out); });
}

FLASH41_EXPORT int flash41_inside_blocks(int threads, const int64_t* candidates, int64_t rows, int64_t count,
                                         int64_t num_rows, int64_t block_size, uint8_t* out) {
  return flash41::guarded(
      [&] { flash41::inside_blocks(threads, candidates, rows, count, num_rows, block_size, out); });
}

FLASH41_EXPORT int flash41_route(int threads, const float* logits, const float* bias, int64_t bias_stride, int64_t rows,
                                 int64_t experts, int64_t topk, float route_scale, int64_t* ids, float* weights) {
  return flash41::guarded([&] {
    flash41::route(threads, logits, bias, bias_stride, rows, experts, topk, route_scale, ids, weights);
  });
}

FLASH41_EXPORT int flash41_rms_norm(int threads, const flash41::Rows* x, const void* weight, int weight_dtype, double eps,
                                    void* out) {
  return flash41::guarded([&] { flash41::rms_norm(threads, x, weight, weight_dtype, eps, out); });
}

FLASH41_EXPORT int flash41_rotate(int threads, const void* x, const float* cos, const float* sin, int inverse, void* out,
                                  int64_t rows, int64_t heads, int64_t width, int64_t pairs, int dtype) {
  return flash41::guarded(
      [&] { flash41::rotate(threads, x, cos, sin, inverse, out, rows, heads, width, pairs, dtype); });
}

FLASH41_EXPORT int flash41_pool_group(int threads, const float* values, const float* scores, float* out, int64_t rows,
                                      int64_t ratio, int64_t width) {
  return flash41::guarded([&] { flash41::pool_group(threads, values, scores, out, rows, ratio, width); });
}

FLASH41_EXPORT int flash41_fake_quantize(int threads, const flash41::Rows* x, int kind, void* out) {
  return flash41::guarded([&] { flash41::fake_quantize(threads, x, kind, out); });
}

FLASH41_EXPORT int flash41_quantize(int threads, const flash41::Rows* x, int kind, uint8_t* codes, uint8_t* scales,
                                    int32_t* odd) {
  return flash41::guarded([&] { flash41::quantize(threads, x, kind, codes, scales, odd); });
}

FLASH41_EXPORT int flash41_table_rows(int threads, const uint8_t* codes, const uint8_t* scales, const int64_t* ids,
                                      int64_t width, int64_t row_bytes, int64_t scale_row_bytes, int64_t count,
                                      int dtype, void* out, int32_t* odd) {
  return flash41::guarded([&] {
    flash41::Table table{codes, scales, width, row_bytes, scale_row_bytes};
    flash41::table_rows(threads, table, ids, count, out, dtype, odd);
  });
}

FLASH41_EXPORT int flash41_engram_gate(int threads, const void* x, const void* key, const void* q_weight,
                                       const void* k_weight, int dtype, int q_dtype, int k_dtype, double eps,
                                       int64_t rows, int64_t streams, int64_t width, float* gate) {
  return flash41::guarded([&] {
    flash41::engram_gate(threads, x, key, q_weight, k_weight, dtype, q_dtype, k_dtype, eps, rows, streams, width, gate);
  });
}

FLASH41_EXPORT int flash41_engram_apply(int threads, const void* x, const float* gate, const void* value, void* out,
                                        int64_t rows, int64_t streams, int64_t width, int dtype) {
  return flash41::guarded([&] { flash41::engram_apply(threads, x, gate, value, out, rows, streams, width, dtype); });
}

FLASH41_EXPORT int flash41_collapse(int threads, const void* x, const float* pre, void* out, int64_t rows,
                                    int64_t streams, int64_t width, int dtype) {
  return flash41::guarded([&] { flash41::collapse(threads, x, pre, out, rows, streams, width, dtype); });
}

FLASH41_EXPORT int flash41_apply(int threads, const void* x, const void* y, const float* post, const float* comb, void* out,
                                 int64_t rows, int64_t streams, int64_t width, int dtype) {
  return flash41::guarded([&] { flash41::apply(threads, x, y, post, comb, out, rows, streams, width, dtype); });
}

FLASH41_EXPORT int flash41_stream(int threads, const uint8_t* bytes, int64_t num_bytes, uint64_t* total) {
  return flash41::guarded([&] { flash41::stream(threads, bytes, num_bytes, total); });
}

#endif
