#include "quant/encode_q2_0.h"

#include "quant/kernels.h"

namespace penstock::quant {

void encode_q2_0(const float* in, uint8_t* out, int64_t n, const float* importance) noexcept {
#if defined(__x86_64__)
  if (current_isa() == Isa::Avx2) {
    encode_q2_0_avx2(in, out, n, importance);
    return;
  }
#endif
  encode_q2_0_row(in, out, n, importance);
}

}  // namespace penstock::quant
