// The linear operations: one input with several weights, and groups with a weight each.
#pragma once

namespace flash41 {

constexpr int64_t SMALL_JOB = 1 << 16;  // weight bytes times rows below which waking threads costs more than it gives

inline int helpers(int threads, int64_t work) { return work < SMALL_JOB ? 1 : threads; }

inline int64_t weight_bytes(const Matrix& w) { return w.rows * (w.code_bytes.band / BAND); }

// What all items of a job share: for each distinct format the prepared rows.
class Inputs {
 public:
  Inputs() = default;
  Inputs(Cutter& cutter, const Rows& x, bool quantize, const bool (&wanted)[4]) {
    for (int format = 0; format < 4; ++format) {
      ready_[format] = Ready(cutter, wanted[format] ? x.rows : 0, x.width, format, quantize);
      rows_[format] = cutter.cut<Row>(wanted[format] ? x.rows : 0);
      blocks_[format] = Blocks(cutter, wanted[format] ? x.rows : 0, x.width, 1);
      wanted_[format] = wanted[format];
    }
  }

  void prepare(int64_t row, const Rows& x) {
    for (int format = 0; format < 4; ++format)
      if (wanted_[format]) {
        ready_[format].put_row(row, x.data, x.dtype, row * x.row_elements, x.width);
        rows_[format][row] = ready_[format].row(row);
      }
  }

  // Rows that all meet the same weights, after the last one was prepared.
  void pack(int threads, int64_t rows) {
    for (int format = 0; format < 4; ++format)
      if (wanted_[format] && rows > 0) {
        blocks_[format].add(rows_[format], rows, 0);
        blocks_[format].pack(threads);
      }
  }

  const Row* rows(int64_t format) const { return rows_[format]; }

 private:
  Ready ready_[4] = {};
  Blocks blocks_[4] = {};
  Row* rows_[4] = {};
  bool wanted_[4] = {};
};

// Where the i-th item of several weights lies: which weight, which of its rows.
struct Cut {
  const Matrix* weight;
  int64_t number, first, last;
};

inline Cut find_cut(const Matrix* weights, int64_t count, int64_t step, int64_t item) {
  for (int64_t number = 0; number < count; ++number) {
    int64_t pieces = (weights[number].rows + step - 1) / step;
    if (item < pieces) {
      int64_t first = item * step;
      return {&weights[number], number, first, std::min(weights[number].rows, first + step)};
    }
    item -= pieces;
  }
  return {weights, 0, 0, 0};
}

inline int64_t num_cuts(const Matrix* weights, int64_t count, int64_t step) {
  int64_t pieces = 0;
  for (int64_t number = 0; number < count; ++number) pieces += (weights[number].rows + step - 1) / step;
  return pieces;
}

inline void linear(int threads, const Matrix* weights, int64_t count, const Rows* x, int quantize, void* const* outputs,
                   int out_dtype) {
  static thread_local Scratch memory;
  bool wanted[4] = {};
  int64_t total_rows = 0, work = 0;
  for (int64_t number = 0; number < count; ++number) {
    wanted[weights[number].format] = true;
    total_rows += weights[number].rows;
    work += weight_bytes(weights[number]) * x->rows;
  }
  threads = helpers(threads, work);
  Cutter counting(nullptr);
  Inputs(counting, *x, quantize != 0, wanted);
  Cutter cutter(memory.take(counting.used()));
  Inputs inputs(cutter, *x, quantize != 0, wanted);
  parallel(x->rows > 8 ? threads : 1, x->rows, [&](int64_t row) { inputs.prepare(row, *x); });
  inputs.pack(threads, x->rows);
  int64_t step = share(threads, total_rows, 32);
  parallel(threads, num_cuts(weights, count, step), [&](int64_t item) {
    Cut cut = find_cut(weights, count, step, item);
    store_product(*cut.weight, cut.first, cut.last, inputs.rows(cut.weight->format), x->rows, x->width,
                  outputs[cut.number], cut.weight->rows, 0, out_dtype);
  });
}

// Group g: columns g*width.. of x [rows, groups * width] times weight g -> columns of out [rows, out_stride].
inline void grouped(int threads, const Matrix* weights, int64_t groups, const Rows* x, void* out, int64_t out_stride,
                    int out_dtype) {
  static thread_local Scratch memory;
  int64_t format = weights[0].format, rows = x->rows, work = 0;
  for (int64_t g = 0; g < groups; ++g) work += weight_bytes(weights[g]) * rows;
  threads = helpers(threads, work);
  Cutter counting(nullptr);
  Ready(counting, rows * groups, x->width, format, false);
  counting.cut<Row>(rows * groups);
  Blocks(counting, rows * groups, x->width, groups);
  Cutter cutter(memory.take(counting.used()));
  Ready ready(cutter, rows * groups, x->width, format, false);
  Row* prepared = cutter.cut<Row>(rows * groups);
  Blocks blocks(cutter, rows * groups, x->width, groups);
  parallel(rows > 8 ? threads : 1, rows * groups, [&](int64_t item) {  // group after group, so that its rows are neighbours
    int64_t g = item / rows, row = item % rows;
    ready.put_row(item, x->data, x->dtype, row * x->row_elements + g * x->width, x->width);
    prepared[item] = ready.row(item);
  });
  for (int64_t g = 0; g < groups && rows > 0; ++g) blocks.add(prepared + g * rows, rows, g * rows);
  blocks.pack(threads);
  int64_t step = share(threads, weights[0].rows * groups, 32);
  parallel(threads, num_cuts(weights, groups, step), [&](int64_t item) {
    Cut cut = find_cut(weights, groups, step, item);
    int64_t column = cut.number * weights[0].rows;
    store_product(*cut.weight, cut.first, cut.last, prepared + cut.number * rows, rows, x->width, out, out_stride, column,
                  out_dtype);
  });
}

}  // namespace flash41
