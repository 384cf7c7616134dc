// The definition of every kernel: no instruction set assumed.
#define PENSTOCK_OPS_ISA scalar
#include "ops/kernels_impl.h"

namespace penstock::ops {
extern const Kernels kScalarKernels;
const Kernels kScalarKernels = scalar::kTable;
}  // namespace penstock::ops
