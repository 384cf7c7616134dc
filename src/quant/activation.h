// How activation rows lie in memory: codes first, so that they are aligned, then the per-block
// arrays. Private to the kernels; other rooms hold such a row as bytes.
#pragma once

#include <bit>
#include <cstdint>

#include "quant/matmul.h"

namespace penstock::quant {

struct Act32 {          // ActKind::Q8_32
  const int8_t* codes;  // [n]
  const float* scales;  // [n / 32]
  const int32_t* sums;  // [n / 32] sums of 32 codes

  Act32(const void* row, int64_t n) noexcept
      : codes(static_cast<const int8_t*>(row)),
        scales(reinterpret_cast<const float*>(codes + n)),
        sums(reinterpret_cast<const int32_t*>(codes + n + n / 8)) {}
};

struct Act256 {         // ActKind::Q8_256
  const int8_t* codes;  // [n]
  const int16_t* sums;  // [n / 16] sums of 16 codes
  const float* scales;  // [n / 256]

  Act256(const void* row, int64_t n) noexcept
      : codes(static_cast<const int8_t*>(row)),
        sums(reinterpret_cast<const int16_t*>(codes + n)),
        scales(reinterpret_cast<const float*>(codes + n + n / 8)) {}
};

// The scale and its inverse of a block whose largest magnitude has these bits. Blocks below 2^-110
// count as zero (the inverse would overflow); blocks with an infinity or a NaN get scale NaN and
// zero codes, so that a fault upstream shows in the results and never reaches an int conversion.
struct ActScale {
  float scale;
  float inverse;
};
inline ActScale act_scale(uint32_t max_bits) noexcept {
  if (max_bits >= 0x7f800000u) return {std::bit_cast<float>(0x7fc00000u), 0};
  const float max = std::bit_cast<float>(max_bits);
  if (max < 0x1p-110f) return {0, 0};
  return {max / 127.0f, 127.0f / max};
}

}  // namespace penstock::quant
