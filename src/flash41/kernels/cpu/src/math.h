// Exponentials.
#pragma once

namespace flash41 {

// e^x within 2 units in the last place, results below 2^-126 included; 0 below -104, infinity above 88.8; NaN stays.
inline vf exponential(vf x) {
  vf inside = minimum(maximum(x, all(-104.0f)), all(89.0f));
  inside = choose(x != x, x, inside);
  vf shifted = inside * 1.44269504f + 12582912.0f;  // 1.5 * 2^23: the integer nearest to x / ln 2 in the low bits
  vi power = as_int(shifted) - 0x4B400000;
  vf whole = shifted - 12582912.0f;
  vf rest = (inside - whole * 0.693359375f) + whole * 2.12194440e-4f;
  vf series = all(1.9875691500e-4f);
  series = series * rest + 1.3981999507e-3f;
  series = series * rest + 8.3334519073e-3f;
  series = series * rest + 4.1665795894e-2f;
  series = series * rest + 1.6666665459e-1f;
  series = series * rest + 5.0000001201e-1f;
  vf result = series * rest * rest + rest + 1.0f;
  // Two factors, because 2^power may itself be no normal number.
  vi half = power >> 1;
  result = result * as_float((half + 127) << 23) * as_float((power - half + 127) << 23);
  return choose(x < -104.0f, vf{}, result);
}

// 1 / (1 + e^-x), for negative x as e^x / (1 + e^x), so that nothing overflows.
inline vf sigmoid(vf x) {
  vf small = exponential(-as_float(as_int(x) & 0x7FFFFFFF));
  return choose(x < 0.0f, small, all(1.0f)) / (small + 1.0f);
}

inline double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

}  // namespace flash41
