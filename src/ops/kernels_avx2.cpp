// AVX2, FMA and F16C; compiled with those flags and called only where the processor has them.
#if defined(__x86_64__)
#define PENSTOCK_OPS_ISA avx2
#define PENSTOCK_OPS_AVX2
#include "ops/kernels_impl.h"

namespace penstock::ops {
extern const Kernels kAvx2Kernels;
const Kernels kAvx2Kernels = avx2::kTable;
}  // namespace penstock::ops
#endif
