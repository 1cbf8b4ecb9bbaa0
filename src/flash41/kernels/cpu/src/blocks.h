// Input rows as tiles read them: of up to 16 rows the first two channels, then the next two, and so on.
#pragma once

namespace flash41 {

#if defined(FLASH41_TILES)
constexpr bool BLOCKS = true;
#else
constexpr bool BLOCKS = false;
#endif
constexpr int64_t BLOCK_ROWS = 16;

class Blocks {
 public:
  Blocks() = default;
  // Room for blocks of `rows` rows in at most `parts` parts, which share no block.
  Blocks(Cutter& cutter, int64_t rows, int64_t width, int64_t parts) {
    if (!BLOCKS || rows == 0) return;
    width_ = padded_halves(width);
    halves_ = cutter.cut<uint16_t>(rows * width_);
    blocks_ = cutter.cut<Block>(rows / BLOCK_ROWS + parts);
  }

  // Rows from `rows` on that meet one weight; `place` is how many rows of other parts stand before them.
  void add(Row* rows, int64_t count, int64_t place) {
    if (blocks_ == nullptr || rows->halves == nullptr) return;
    for (int64_t at = 0; at < count; at += BLOCK_ROWS)
      blocks_[num_blocks_++] = {rows + at, std::min(BLOCK_ROWS, count - at), place + at};
  }

  void pack(int threads) {
    parallel(threads, num_blocks_, [&](int64_t number) { pack(blocks_[number]); });
    num_blocks_ = 0;
  }

 private:
  struct Block {
    Row* rows;
    int64_t count, place;
  };

  void pack(const Block& block) const {
    if (block.count == 1) {  // one row is its own block
      block.rows->block = block.rows->halves;
      return;
    }
    uint16_t* out = halves_ + block.place * width_;
    for (int64_t pair = 0; pair < width_ / 2; ++pair)
      for (int64_t row = 0; row < block.count; ++row)
        std::memcpy(out + 2 * (pair * block.count + row), block.rows[row].halves + 2 * pair, 4);
    block.rows->block = out;
  }

  int64_t width_ = 0, num_blocks_ = 0;
  uint16_t* halves_ = nullptr;
  Block* blocks_ = nullptr;
};

}  // namespace flash41
