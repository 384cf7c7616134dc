// The kernels with base NEON, which every AArch64 processor has.
#define PENSTOCK_NEON_DOT 0
#include "quant/neon_activation.h"
#include "quant/neon_float.h"
#include "quant/neon_large.h"
#include "quant/neon_small.h"

namespace penstock::quant {

const KernelTable& neon_table() noexcept {
  static const KernelTable table = [] {
    KernelTable all;
    add_floats(all);
    add_small(all);
    add_large(all);
    add_activations(all);
    return all;
  }();
  return table;
}

}  // namespace penstock::quant
