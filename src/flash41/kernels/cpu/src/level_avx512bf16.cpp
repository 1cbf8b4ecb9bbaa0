// x86-64 with AVX-512 F, BW, DQ, VL, VBMI and BF16.
#include "vec_avx512.h"
#define FLASH41_HALVES
#include "library.h"
