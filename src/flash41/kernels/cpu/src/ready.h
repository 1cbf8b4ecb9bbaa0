// Rows made ready to meet weights: rounded to the FP8/32 grid where the model asks for it, in FP32, in the order in which
// the weight's format is decoded; where a level multiplies in BF16 (halves.h), in BF16 too.
#pragma once

namespace flash41 {

struct Row {
  const float* values;     // FP32 in the order of the format; 2^8 times as large for FP8, whose codes decode to 2^-8
  const uint16_t* halves;  // BF16 in the order of halves.h, or null
  const uint16_t* block;   // of the first of up to 16 rows that meet tiles together: pairs of all rows in turn
  bool exact;              // whether the halves are the values
};

// Where the rows of one format and one width are made ready.
class Ready {
 public:
  Ready() = default;
  Ready(Cutter& cutter, int64_t rows, int64_t width, int64_t format, bool quantize)
      : groups_((width + GROUP - 1) / GROUP), format_(format), quantize_(quantize) {
    values_ = cutter.cut<float>(rows * groups_ * GROUP);
    if (!HALVES || (format != FP8_32X32 && format != FP4_1X32)) return;
    halves_ = cutter.cut<uint16_t>(rows * half_width());
    exact_ = cutter.cut<uint8_t>(rows);
    if (exact_ != nullptr) std::memset(exact_, 1, static_cast<size_t>(rows));
  }

  Row row(int64_t number) const {
    const float* values = values_ + number * groups_ * GROUP;
    if (halves_ == nullptr) return {values, nullptr, nullptr, false};
    return {values, halves_ + number * half_width(), nullptr, exact_[number] != 0};
  }

  // One group of a row; `v` are its channels in their natural order and is lost.
  void put(int64_t number, int64_t group, vf (&v)[STEPS]) {
    float scale = quantize_ ? quantize_fp8(v) : 1.0f;
    float* values = values_ + (number * groups_ + group) * GROUP;
    if (halves_ != nullptr) {
      vf scaled[STEPS];
      for (int i = 0; i < STEPS; ++i) scaled[i] = v[i] * scale;
      put_halves(halves_ + number * half_width(), format_, group, groups_, scaled);
      // Groups of one row may be made ready side by side; all write the same.
      if (!halves_hold(scaled)) __atomic_store_n(exact_ + number, uint8_t{0}, __ATOMIC_RELAXED);
    }
    if (format_ != FP4_1X32) {
      float factor = format_ == FP8_32X32 ? scale * 256.0f : scale;
      for (int i = 0; i < STEPS; ++i) store(values + LANES * i, v[i] * factor);
      return;
    }
    float natural[GROUP];
    for (int i = 0; i < STEPS; ++i) store(natural + LANES * i, v[i]);
    for (int i = 0; i < STEPS; ++i)
      for (int lane = 0; lane < LANES; ++lane) values[LANES * i + lane] = natural[fp4_channel(i, lane)] * scale;
  }

  void put_row(int64_t number, const void* data, int64_t dtype, int64_t first, int64_t width) {
    vf v[STEPS];
    int64_t whole = width / GROUP;
    for (int64_t group = 0; group < whole; ++group) {
      for (int i = 0; i < STEPS; ++i) v[i] = load_values(data, dtype, first + group * GROUP + LANES * i);
      put(number, group, v);
    }
    if (whole * GROUP == width) return;
    float rest[GROUP] = {};
    for (int64_t k = whole * GROUP; k < width; ++k) rest[k - whole * GROUP] = load_value(data, dtype, first + k);
    for (int i = 0; i < STEPS; ++i) v[i] = load(rest + LANES * i);
    put(number, whole, v);
  }

 private:
  int64_t half_width() const { return padded_halves(groups_ * GROUP); }

  int64_t groups_ = 0, format_ = 0;
  bool quantize_ = false;
  float* values_ = nullptr;
  uint16_t* halves_ = nullptr;
  uint8_t* exact_ = nullptr;
};

}  // namespace flash41
