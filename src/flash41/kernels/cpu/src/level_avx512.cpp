// x86-64 with AVX-512 F, BW, DQ and VL.
#include "vec_avx512.h"
#include "library.h"
