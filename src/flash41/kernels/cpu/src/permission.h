// Whether this process may use the registers of tiles: the CPU must have them, the system must save them, and since they
// are large, Linux wants to be asked.
#pragma once
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace flash41 {

inline bool cpu_has_tiles() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned SAVES = 1u << 27, BF16_TILES = 1u << 22, TILES = 1u << 24;
  if (!__get_cpuid_count(1, 0, &a, &b, &c, &d) || (c & SAVES) == 0) return false;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & BF16_TILES) == 0 || (d & TILES) == 0) return false;
  unsigned low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  constexpr unsigned STATE = 3u << 17;  // configuration and data
  return (low & STATE) == STATE;
}

// Asks for the calling thread; what the system once granted to a process it grants to its later threads.
inline bool ask_for_tiles() {
#if defined(__linux__)
  constexpr long REQUEST = 0x1023, TILE_DATA = 18;
  return cpu_has_tiles() && syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
#else
  return false;
#endif
}

}  // namespace flash41
