// x86-64 with AVX2, FMA and F16C.
#include "vec_avx2.h"
#include "library.h"
