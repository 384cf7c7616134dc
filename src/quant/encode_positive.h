// Q2_0 with scales that are never negative, for readers that take the sign for granted. The format
// allows both (spec/gguf-quants.md §5.1), and quant::encode_row uses both: on Gaussian weights the
// error is then a fourteenth smaller.
#pragma once

#include <cstdint>

namespace penstock::quant {

// As encode_row for Q2_0: n elements, a multiple of 64, all finite; importance may be null.
void encode_q2_0_positive(const float* in, void* out, int64_t n, const float* importance) noexcept;

// Internal: the same on AVX2.
void encode_q2_0_positive_avx2(const float* in, uint8_t* out, int64_t n,
                               const float* importance) noexcept;

}  // namespace penstock::quant
