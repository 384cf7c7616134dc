// Conversions between f32, IEEE binary16 and bfloat16. To narrower: round to nearest, ties to even.
// Subnormals are exact both ways, provided the thread does not flush them (spec §7, §8).
#pragma once

#include <bit>
#include <cstdint>

namespace penstock::quant {

constexpr float half_to_float(uint16_t half) noexcept {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t magnitude = static_cast<uint32_t>(half & 0x7fffu) << 13;
  if (magnitude >= 0x0f800000u) {  // infinity, NaN
    return std::bit_cast<float>(sign | magnitude | 0x7f800000u);
  }
  // The multiplication by 2^112 moves the exponent's bias and normalises subnormals, exactly.
  const float value = std::bit_cast<float>(magnitude) * 0x1p112f;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | sign);
}

constexpr uint16_t float_to_half(float value) noexcept {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {  // NaN: keep the upper payload, make it quiet
    return static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x1ffu));
  }
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // >= 65520
  if (magnitude < 0x38800000u) {
    // Below 2^-14: adding 0.5 lets the FPU round at 2^-24, the unit of binary16's subnormals.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  }
  magnitude += 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((magnitude - 0x38000000u) >> 13));
}

constexpr float bf16_to_float(uint16_t value) noexcept {
  return std::bit_cast<float>(static_cast<uint32_t>(value) << 16);
}

constexpr uint16_t float_to_bf16(float value) noexcept {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

}  // namespace penstock::quant
