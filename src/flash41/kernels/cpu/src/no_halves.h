// Levels that multiply in FP32 only: nothing of halves.h.
#pragma once

namespace flash41 {

constexpr bool HALVES = false;

inline int64_t padded_halves(int64_t) { return 0; }
inline void put_halves(uint16_t*, int64_t, int64_t, int64_t, const vf (&)[STEPS]) {}
inline bool halves_hold(const vf (&)[STEPS]) { return false; }

}  // namespace flash41
