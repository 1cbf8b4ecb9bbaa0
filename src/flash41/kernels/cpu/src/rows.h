// Operations that treat rows one by one: norm, rotation, pooling, fake quantisation, Engram gate.
#pragma once

namespace flash41 {

typedef double vd __attribute__((vector_size(8 * FLASH41_LANES)));

inline double sum(vd v) {
  double total = 0.0;
  for (int lane = 0; lane < LANES; ++lane) total += v[lane];
  return total;
}

inline vd widened(vf v) { return __builtin_convertvector(v, vd); }

// Sum of squares in FP64, lane by lane, then over the lanes.
inline double squares(const void* data, int64_t dtype, int64_t at, int64_t width) {
  vd total = {};
  int64_t k = 0;
  for (; k + LANES <= width; k += LANES) {
    vd v = widened(load_values(data, dtype, at + k));
    total = total + v * v;
  }
  double result = sum(total);
  for (; k < width; ++k) {
    double v = load_value(data, dtype, at + k);
    result += v * v;
  }
  return result;
}

inline void rms_norm(int threads, const Rows* x, const void* weight, int weight_dtype, double eps, void* out) {
  int64_t width = x->width;
  parallel(helpers(threads, x->rows * width * 2), x->rows, [&](int64_t row) {
    int64_t at = row * width, k = 0;
    float inverse = static_cast<float>(1.0 / std::sqrt(squares(x->data, x->dtype, at, width) / width + eps));
    for (; k + LANES <= width; k += LANES)
      store_values(out, x->dtype, at + k,
                   load_values(x->data, x->dtype, at + k) * inverse * load_values(weight, weight_dtype, k));
    for (; k < width; ++k)
      store_value(out, x->dtype, at + k,
                  load_value(x->data, x->dtype, at + k) * inverse * load_value(weight, weight_dtype, k));
  });
}

// Pairs (2i, 2i+1) of the last 2 * pairs channels of x [rows, heads, width] turn by the angle of their row.
inline void rotate(int threads, const void* x, const float* cos, const float* sin, int inverse, void* out, int64_t rows,
                   int64_t heads, int64_t width, int64_t pairs, int dtype) {
  int64_t bytes = dtype == BF16 ? 2 : 4, before = width - 2 * pairs;
  parallel(helpers(threads, rows * heads * width * 2), rows, [&](int64_t row) {
    for (int64_t head = 0; head < heads; ++head) {
      int64_t at = (row * heads + head) * width;
      std::memcpy(static_cast<char*>(out) + at * bytes, static_cast<const char*>(x) + at * bytes,
                  static_cast<size_t>(before * bytes));
      for (int64_t i = 0; i < pairs; ++i) {
        float a = load_value(x, dtype, at + before + 2 * i), b = load_value(x, dtype, at + before + 2 * i + 1);
        float c = cos[row * pairs + i], s = inverse ? -sin[row * pairs + i] : sin[row * pairs + i];
        store_value(out, dtype, at + before + 2 * i, a * c - b * s);
        store_value(out, dtype, at + before + 2 * i + 1, a * s + b * c);
      }
    }
  });
}

// Per channel a softmax over the members of a group weighs their values.
inline void pool_group(int threads, const float* values, const float* scores, float* out, int64_t rows, int64_t ratio,
                       int64_t width) {
  parallel(helpers(threads, rows * ratio * width * 4), rows, [&](int64_t row) {
    for (int64_t k = 0; k < width; k += LANES) {
      int64_t count = std::min<int64_t>(LANES, width - k);
      vf most = all(-HUGE_VALF), total = {}, mixed = {};
      auto part = [&](const float* from, int64_t i) {
        float lanes[LANES] = {};
        std::memcpy(lanes, from + (row * ratio + i) * width + k, static_cast<size_t>(count) * sizeof(float));
        return load(lanes);
      };
      for (int64_t i = 0; i < ratio; ++i) most = maximum(most, part(scores, i));
      for (int64_t i = 0; i < ratio; ++i) {
        vf weight = exponential(part(scores, i) - most);
        total = total + weight;
        mixed = fma(weight, part(values, i), mixed);
      }
      mixed = mixed / total;
      std::memcpy(out + row * width + k, &mixed, static_cast<size_t>(count) * sizeof(float));
    }
  });
}

enum Rounding : int { TO_FP8_32 = 0, TO_FP4_32 = 1, TO_FP4_16 = 2 };

// Scale of a group whose largest magnitude is given; numerics.scaled has the rules.
inline float group_scale(float most, int kind) {
  if (kind == TO_FP8_32) return power_of_two_scale(std::max(most, 1e-4f) * INVERSE_448);
  if (kind == TO_FP4_32) return power_of_two_scale(std::max(most, 0x6p-126f) * INVERSE_6);
  return nearest_e4m3(all(std::max(most, 0x6p-9f) / 6.0f))[0];
}

// What a group of COUNT vectors reads after storage.  A group that is not finite is NaN.
template <int COUNT>
inline void round_group(vf (&v)[COUNT], int kind) {
  int32_t bits = largest_bits(v);
  if (bits >= INFINITY_BITS) {
    for (auto& part : v) part = all(from_bits(0x7FC00000));
    return;
  }
  float scale = group_scale(from_bits(bits), kind);
  for (auto& part : v) part = (kind == TO_FP8_32 ? nearest_e4m3(part / scale) : nearest_e2m1(part / scale)) * scale;
}

inline void fake_quantize(int threads, const Rows* x, int kind, void* out) {
  constexpr int64_t HALF = STEPS >= 2 ? STEPS / 2 : 1;
  parallel(helpers(threads, x->rows * x->width * 4), x->rows, [&](int64_t row) {
    for (int64_t k = 0; k < x->width; k += kind == TO_FP4_16 ? GROUP / 2 : GROUP) {
      int64_t at = row * x->width + k;
      if (kind == TO_FP4_16) {
        vf v[HALF];
        for (int64_t i = 0; i < HALF; ++i) v[i] = load_values(x->data, x->dtype, at + LANES * i);
        round_group(v, kind);
        for (int64_t i = 0; i < HALF; ++i) store_values(out, x->dtype, at + LANES * i, v[i]);
      } else {
        vf v[STEPS];
        for (int64_t i = 0; i < STEPS; ++i) v[i] = load_values(x->data, x->dtype, at + LANES * i);
        round_group(v, kind);
        for (int64_t i = 0; i < STEPS; ++i) store_values(out, x->dtype, at + LANES * i, v[i]);
      }
    }
  });
}

// Codes of values that codes have.
inline uint8_t e4m3_code(float value) {
  float size = std::fabs(value);
  int32_t code = size < 0x1p-6f ? static_cast<int32_t>(size * 512.0f) : (to_bits(size) >> 20) - (120 << 3);
  return static_cast<uint8_t>(code | (to_bits(value) >> 24 & 0x80));
}

inline uint8_t e2m1_code(float value) {
  float size = std::fabs(value);
  int32_t code = size < 1.0f ? static_cast<int32_t>(size * 2.0f) : (to_bits(size) >> 22) - (126 << 1);
  return static_cast<uint8_t>(code | (to_bits(value) >> 28 & 8));
}

// Codes and scale bytes of one group; false for a group that is not finite.
template <int COUNT>
inline bool quantize_group(vf (&v)[COUNT], int kind, uint8_t* codes, uint8_t* scale_byte) {
  constexpr int CHANNELS = COUNT * LANES;
  int32_t bits = largest_bits(v);
  if (bits >= INFINITY_BITS) return false;
  float scale = group_scale(from_bits(bits), kind), values[CHANNELS];
  for (int i = 0; i < COUNT; ++i) {
    vf near = kind == TO_FP8_32 ? nearest_e4m3(v[i] / scale) : nearest_e2m1(v[i] / scale);
    vi signed_near = (as_int(near) & 0x7FFFFFFF) | (as_int(v[i]) & ~0x7FFFFFFF);  // what rounds to zero keeps its sign
    store(values + LANES * i, as_float(signed_near));
  }
  *scale_byte = kind == TO_FP4_16 ? e4m3_code(scale) : static_cast<uint8_t>(to_bits(scale) >> 23);
  for (int k = 0; k < CHANNELS; ++k) {
    if (kind == TO_FP8_32) codes[k] = e4m3_code(values[k]);
    else if (k % 2 == 0) codes[k / 2] = static_cast<uint8_t>(e2m1_code(values[k]) | e2m1_code(values[k + 1]) << 4);
  }
  return true;
}

// Codes [rows, width] or, of FP4, [rows, width / 2], and a scale byte for each group of 32, or 16, channels.  Sets `odd`
// where a group is not finite.
inline void quantize(int threads, const Rows* x, int kind, uint8_t* codes, uint8_t* scales, int32_t* odd) {
  constexpr int64_t PART = STEPS >= 2 ? STEPS / 2 : 1;
  int64_t channels = kind == TO_FP4_16 ? GROUP / 2 : GROUP, per_byte = kind == TO_FP8_32 ? 1 : 2;
  std::atomic<int32_t> found{0};
  parallel(helpers(threads, x->rows * x->width * 8), x->rows, [&](int64_t row) {
    for (int64_t k = 0; k < x->width; k += channels) {
      int64_t at = row * x->width + k;
      bool finite;
      if (kind == TO_FP4_16) {
        vf v[PART];
        for (int64_t i = 0; i < PART; ++i) v[i] = load_values(x->data, x->dtype, at + LANES * i);
        finite = quantize_group(v, kind, codes + at / per_byte, scales + at / channels);
      } else {
        vf v[STEPS];
        for (int64_t i = 0; i < STEPS; ++i) v[i] = load_values(x->data, x->dtype, at + LANES * i);
        finite = quantize_group(v, kind, codes + at / per_byte, scales + at / channels);
      }
      if (!finite) found = 1;
    }
  });
  *odd = found;
}

// Gates [rows, streams] of x and key [rows, streams, width]; gains [streams, width] in their own dtypes.
inline void engram_gate(int threads, const void* x, const void* key, const void* q_weight, const void* k_weight,
                        int dtype, int q_dtype, int k_dtype, double eps, int64_t rows, int64_t streams, int64_t width,
                        float* gate) {
  parallel(helpers(threads, rows * streams * width * 8), rows * streams, [&](int64_t item) {
    int64_t at = item * width, gain_at = item % streams * width, k = 0;
    vd total = {};
    for (; k + LANES <= width; k += LANES) {
      vf gain = load_values(q_weight, q_dtype, gain_at + k) * load_values(k_weight, k_dtype, gain_at + k);
      total = total + widened(load_values(x, dtype, at + k)) * widened(gain) * widened(load_values(key, dtype, at + k));
    }
    double dot = sum(total);
    for (; k < width; ++k) {
      float gain = load_value(q_weight, q_dtype, gain_at + k) * load_value(k_weight, k_dtype, gain_at + k);
      dot += static_cast<double>(load_value(x, dtype, at + k)) * gain * load_value(key, dtype, at + k);
    }
    dot = dot / std::sqrt(squares(x, dtype, at, width) / width + eps) /
          std::sqrt(squares(key, dtype, at, width) / width + eps) / std::sqrt(static_cast<double>(width));
    double size = std::fabs(dot) < 1e-6 ? 1e-6 : std::fabs(dot);
    gate[item] = static_cast<float>(sigmoid(std::copysign(std::sqrt(size), dot)));
  });
}

inline void engram_apply(int threads, const void* x, const float* gate, const void* value, void* out, int64_t rows,
                         int64_t streams, int64_t width, int dtype) {
  int64_t bytes = dtype == BF16 ? 2 : 4;
  parallel(helpers(threads, rows * streams * width * 2), rows * streams, [&](int64_t item) {
    int64_t at = item * width, from = item / streams * width, k = 0;
    float weight = gate[item];
    if (weight == 0.0f) {
      std::memcpy(static_cast<char*>(out) + at * bytes, static_cast<const char*>(x) + at * bytes,
                  static_cast<size_t>(width * bytes));
      return;
    }
    for (; k + LANES <= width; k += LANES)
      store_values(out, dtype, at + k, load_values(x, dtype, at + k) + load_values(value, dtype, from + k) * weight);
    for (; k < width; ++k)
      store_value(out, dtype, at + k, load_value(x, dtype, at + k) + load_value(value, dtype, from + k) * weight);
  });
}

}  // namespace flash41
