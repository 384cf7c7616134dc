// The AVX2 table. Compiled without AVX2 itself: it may run on any processor.

#include "quant/kernels.h"

namespace penstock::quant {

const KernelTable& avx2_table() noexcept {
  static const KernelTable table = [] {
    KernelTable t;
    add_avx2_floats(t);
    add_avx2_small(t);
    add_avx2_k(t);
    add_avx2_iq(t);
    add_avx2_activations(t);
    return t;
  }();
  return table;
}

}  // namespace penstock::quant
