// Reads bytes as fast as memory gives them: the roof that kernels are measured against.
#pragma once

namespace flash41 {

inline void stream(int threads, const uint8_t* bytes, int64_t num_bytes, uint64_t* total) {
  constexpr int64_t PIECE = 1 << 20;
  int64_t pieces = num_bytes / PIECE;
  std::atomic<uint64_t> all_sums{0};
  parallel(threads, pieces, [&](int64_t piece) {
    const uint8_t* from = bytes + piece * PIECE;
    vi sums[4] = {};
    for (int64_t at = 0; at < PIECE; at += 16 * LANES) {
      __builtin_prefetch(from + at + 4096, 0, 3);
      if (16 * LANES > 64) __builtin_prefetch(from + at + 4096 + 64, 0, 3);
      for (int i = 0; i < 4; ++i) {
        vi part;
        std::memcpy(&part, from + at + 4 * LANES * i, sizeof part);
        sums[i] = sums[i] ^ part;
      }
    }
    vi joined = (sums[0] ^ sums[1]) ^ (sums[2] ^ sums[3]);
    all_sums += static_cast<uint32_t>(joined[0]);
  });
  *total = all_sums;
}

}  // namespace flash41
