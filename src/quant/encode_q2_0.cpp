#include "quant/encode_q2_0.h"

#include "quant/encode_positive.h"
#include "quant/kernels.h"

namespace penstock::quant {

void encode_q2_0(const float* in, uint8_t* out, int64_t n, const float* importance) noexcept {
#if defined(__x86_64__)
  if (current_isa() == Isa::Avx2) {
    encode_q2_0_avx2(in, out, n, importance);
    return;
  }
#endif
  encode_q2_0_row(in, out, n, importance, false);
}

void encode_q2_0_positive(const float* in, void* out, int64_t n, const float* importance) noexcept {
  auto* bytes = static_cast<uint8_t*>(out);
#if defined(__x86_64__)
  if (current_isa() == Isa::Avx2) {
    encode_q2_0_positive_avx2(in, bytes, n, importance);
    return;
  }
#endif
  encode_q2_0_row(in, bytes, n, importance, true);
}

}  // namespace penstock::quant
