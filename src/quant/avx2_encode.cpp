#include "quant/encode_positive.h"
#include "quant/encode_q2_0.h"
#include "quant/kernels.h"

namespace penstock::quant {

void encode_q2_0_avx2(const float* in, uint8_t* out, int64_t n, const float* importance) noexcept {
  encode_q2_0_row(in, out, n, importance, false);
}

void encode_q2_0_positive_avx2(const float* in, uint8_t* out, int64_t n,
                               const float* importance) noexcept {
  encode_q2_0_row(in, out, n, importance, true);
}

}  // namespace penstock::quant
