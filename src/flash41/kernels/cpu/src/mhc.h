// Hyper-connections: coefficients of a sub-layer, collapse and application.  kernels.reference.mhc has the equations.
#pragma once

namespace flash41 {

constexpr int64_t MOST_STREAMS = 8;

// A row softmax, then columns and rows in turn, in FP64; ends on columns.
inline void sinkhorn(double* comb, int64_t n, int64_t iterations, double eps) {
  for (int64_t j = 0; j < n; ++j) {
    double most = comb[j * n], total = 0.0;
    for (int64_t k = 1; k < n; ++k) most = std::max(most, comb[j * n + k]);
    for (int64_t k = 0; k < n; ++k) total += comb[j * n + k] = std::exp(comb[j * n + k] - most);
    for (int64_t k = 0; k < n; ++k) comb[j * n + k] = comb[j * n + k] / total + eps;
  }
  for (int64_t turn = 0; turn < iterations; ++turn) {
    for (int64_t j = 0; turn > 0 && j < n; ++j) {
      double total = eps;
      for (int64_t k = 0; k < n; ++k) total += comb[j * n + k];
      for (int64_t k = 0; k < n; ++k) comb[j * n + k] /= total;
    }
    double totals[MOST_STREAMS];
    for (int64_t k = 0; k < n; ++k) {
      totals[k] = eps;
      for (int64_t j = 0; j < n; ++j) totals[k] += comb[j * n + k];
    }
    for (int64_t j = 0; j < n; ++j)
      for (int64_t k = 0; k < n; ++k) comb[j * n + k] /= totals[k];
  }
}

inline void coefficients(const Mixes& job, int64_t row, const float* product) {
  int64_t n = job.streams, width = job.streams * job.width;
  double mean = squares(job.x, job.dtype, row * width, width) / width;
  float factor = static_cast<float>(1.0 / std::sqrt(mean + job.norm_eps));
  for (int64_t i = 0; i < 2 * n; ++i) {
    float logit = product[i] * factor * job.scale[i / n] + job.base[i];
    float gate = static_cast<float>(sigmoid(static_cast<double>(logit)));
    if (i < n) job.pre[row * n + i] = gate + static_cast<float>(job.hc_eps);
    else job.post[row * n + i - n] = gate * 2.0f;
  }
  double comb[MOST_STREAMS * MOST_STREAMS];
  for (int64_t i = 0; i < n * n; ++i) comb[i] = product[2 * n + i] * factor * job.scale[2] + job.base[2 * n + i];
  sinkhorn(comb, n, job.iterations, job.hc_eps);
  for (int64_t i = 0; i < n * n; ++i) job.comb[row * n * n + i] = static_cast<float>(comb[i]);
}

inline void mixes(int threads, const Mixes* job) {
  static thread_local Scratch memory;
  int64_t width = job->streams * job->width, outputs = job->fn->rows;
  Rows x{job->x, job->rows, width, job->dtype, width};
  bool wanted[4] = {};
  wanted[job->fn->format] = true;
  threads = helpers(threads, job->rows * outputs * width * 4);
  Cutter counting(nullptr);
  Inputs(counting, x, false, wanted);
  counting.cut<float>(job->rows * outputs);
  Cutter cutter(memory.take(counting.used()));
  Inputs inputs(cutter, x, false, wanted);
  float* products = cutter.cut<float>(job->rows * outputs);
  parallel(x.rows > 8 ? threads : 1, x.rows, [&](int64_t row) { inputs.prepare(row, x); });
  constexpr int64_t step = 4;
  int64_t pieces = (outputs + step - 1) / step, blocks = (x.rows + PANEL_INPUTS - 1) / PANEL_INPUTS;
  parallel(threads, pieces * blocks, [&](int64_t item) {
    int64_t first = item % pieces * step, at = item / pieces * PANEL_INPUTS;
    product(*job->fn, first, std::min(outputs, first + step), inputs.rows(job->fn->format) + at,
            std::min(PANEL_INPUTS, x.rows - at), width, products + at * outputs + first, outputs);
  });
  parallel(threads, x.rows, [&](int64_t row) { coefficients(*job, row, products + row * outputs); });
}

// sum_j weights[j] * parts[j] at one place, ascending.
inline vf weighed(const float* weights, const vf* parts, int64_t count, int64_t step) {
  vf total = all(weights[0]) * parts[0];
  for (int64_t j = 1; j < count; ++j) total = fma(all(weights[j * step]), parts[j], total);
  return total;
}

inline void collapse(int threads, const void* x, const float* pre, void* out, int64_t rows, int64_t streams, int64_t width,
                     int dtype) {
  parallel(helpers(threads, rows * streams * width * 2), rows, [&](int64_t row) {
    const float* weights = pre + row * streams;
    int64_t k = 0;
    for (; k + LANES <= width; k += LANES) {
      vf parts[MOST_STREAMS] = {};
      for (int64_t j = 0; j < streams; ++j) parts[j] = load_values(x, dtype, (row * streams + j) * width + k);
      store_values(out, dtype, row * width + k, weighed(weights, parts, streams, 1));
    }
    for (; k < width; ++k) {
      vf parts[MOST_STREAMS] = {};
      for (int64_t j = 0; j < streams; ++j) parts[j] = all(load_value(x, dtype, (row * streams + j) * width + k));
      store_value(out, dtype, row * width + k, weighed(weights, parts, streams, 1)[0]);
    }
  });
}

// out[k] = sum_j comb[j, k] x[j] + post[k] y
inline void apply(int threads, const void* x, const void* y, const float* post, const float* comb, void* out, int64_t rows,
                  int64_t streams, int64_t width, int dtype) {
  parallel(helpers(threads, rows * streams * width * 2), rows, [&](int64_t row) {
    const float* mix = comb + row * streams * streams;
    const float* gates = post + row * streams;
    for (int64_t c = 0; c < width; c += c + LANES <= width ? LANES : 1) {
      bool whole = c + LANES <= width;
      auto at = [&](const void* data, int64_t place) {
        return whole ? load_values(data, dtype, place) : all(load_value(data, dtype, place));
      };
      vf parts[MOST_STREAMS] = {}, value = at(y, row * width + c);
      for (int64_t j = 0; j < streams; ++j) parts[j] = at(x, (row * streams + j) * width + c);
      for (int64_t k = 0; k < streams; ++k) {
        vf total = fma(all(gates[k]), value, weighed(mix + k, parts, streams, streams));
        int64_t place = (row * streams + k) * width + c;
        if (whole) store_values(out, dtype, place, total);
        else store_value(out, dtype, place, total[0]);
      }
    }
  });
}

}  // namespace flash41
