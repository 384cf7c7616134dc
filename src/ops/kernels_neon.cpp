// NEON, which every 64-bit ARM processor has.
#if defined(__aarch64__)
#define PENSTOCK_OPS_ISA neon
#define PENSTOCK_OPS_NEON
#include "ops/kernels_impl.h"

namespace penstock::ops {
extern const Kernels kNeonKernels;
const Kernels kNeonKernels = neon::kTable;
}  // namespace penstock::ops
#endif
