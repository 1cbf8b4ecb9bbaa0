// Any CPU.
#include "vec_portable.h"
#include "library.h"
