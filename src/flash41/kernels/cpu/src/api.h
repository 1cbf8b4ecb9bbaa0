// What crosses the border between Python and this library: plain records, plain pointers.
//
// Every function takes how many threads may help.  A row's result depends on the CPU level the library was built for and
// on nothing else: neither on the number of rows nor on the number of threads.
#pragma once
#include <cstdint>

namespace flash41 {

enum Dtype : int32_t { F32 = 0, BF16 = 1 };

enum Format : int32_t { FP8_32X32 = 0, FP4_1X32 = 1, PLAIN_BF16 = 2, PLAIN_F32 = 3 };

constexpr int64_t GROUP = 32;  // channels that share an activation scale and a weight scale

constexpr int64_t CHUNK = 64;  // channels that lie together whatever the layout
constexpr int64_t BAND = 32;   // weight rows that are multiplied together

// From one thing to the next of its kind, in bytes.  `row` counts inside a band, `chunk` inside a row:
//   rows of codes as in a checkpoint   band 32 * row    row: a row         chunk: a chunk of a row
//   bands (numerics/bands.py)          band 32 * row    row: a chunk       chunk: a chunk of 32 rows
// Only a level with tiles reads bands.
struct Strides {
  int64_t band, row, chunk;
};

// A weight [rows, K] where it lies, in its stored format.
struct Matrix {
  const uint8_t* codes;
  const uint8_t* scales;     // E8M0 bytes, or null
  int64_t rows;
  int64_t format;            // Format
  Strides code_bytes;
  Strides scale_bytes;       // rows of a band share one in FP8_32X32: `row` is 0
};

// Rows [rows, K], contiguous.
struct Rows {
  const void* data;
  int64_t rows;
  int64_t width;
  int64_t dtype;             // Dtype
  int64_t row_elements;      // from one row to the next
};

struct Expert {
  Matrix w1, w3, w2;
};

struct Experts {
  Rows x;
  const int64_t* ids;        // [rows, topk]
  const float* weights;      // [rows, topk]
  int64_t topk;
  const int64_t* visited;    // expert ids, ascending
  const Expert* bank;        // one per visited id, then the shared expert
  int64_t num_visited;
  float limit;
  int32_t quantize;
  float* routed;             // [rows, width]
  void* shared;              // [rows, width] in x's dtype
};

struct Mixes {
  const void* x;             // [rows, streams, width]
  const Matrix* fn;          // [2 * streams + streams^2, streams * width] FP32
  const float* base;
  const float* scale;        // [3]
  float* pre;                // [rows, streams]
  float* post;
  float* comb;               // [rows, streams, streams]
  int64_t rows, streams, width, dtype, iterations;
  double hc_eps, norm_eps;
};

}  // namespace flash41
