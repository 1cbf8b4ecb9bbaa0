// x86-64 with AVX-512 as in level_avx512bf16, and tiles of BF16.
#include "vec_avx512.h"
#define FLASH41_HALVES
#define FLASH41_TILES
#include "library.h"
