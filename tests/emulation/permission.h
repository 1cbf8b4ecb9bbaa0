// In place of the one of the library: tiles are emulated, and refused where a test wants it.
#pragma once
#include <cstdlib>

namespace flash41 {

inline bool ask_for_tiles() { return std::getenv("FLASH41_TEST_REFUSES_TILES") == nullptr; }

}  // namespace flash41
