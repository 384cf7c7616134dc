#include "ops/kernels.h"

namespace penstock::ops {

extern const Kernels kScalarKernels;
#if defined(__x86_64__)
extern const Kernels kAvx2Kernels;
#elif defined(__aarch64__)
extern const Kernels kNeonKernels;
#endif

const Kernels* kernels_for(quant::Isa isa) noexcept {
  switch (isa) {
    case quant::Isa::Scalar:
      return &kScalarKernels;
#if defined(__x86_64__)
    case quant::Isa::Avx2:
      return &kAvx2Kernels;
#elif defined(__aarch64__)
    case quant::Isa::Neon:
    case quant::Isa::NeonDot:
      return &kNeonKernels;
#endif
    default:
      return nullptr;
  }
}

const Kernels& kernels() noexcept {
  const Kernels* table = kernels_for(quant::current_isa());
  return table != nullptr ? *table : kScalarKernels;
}

}  // namespace penstock::ops
