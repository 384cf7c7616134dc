// Quantised blocks as plain integer codes with their scales: the common form behind decode_row, the
// scalar kernels and the prompt kernels' panels. All types of spec/gguf-quants.md §5 and §7 but the
// floats and NVFP4 fit one of two shapes.
#pragma once

#include <cstdint>
#include <cstring>

#include "gguf/types.h"

namespace penstock::quant {

using gguf::TypeId;

inline uint16_t load_u16(const uint8_t* p) noexcept {
  uint16_t value;
  std::memcpy(&value, p, sizeof(value));
  return value;
}
inline uint32_t load_u32(const uint8_t* p) noexcept {
  uint32_t value;
  std::memcpy(&value, p, sizeof(value));
  return value;
}
inline uint64_t load_u64(const uint8_t* p) noexcept {
  uint64_t value;
  std::memcpy(&value, p, sizeof(value));
  return value;
}

// 32 elements: value = d * q + m.
struct Codes32 {
  float d;
  float m;
  alignas(32) int8_t q[32];
};

// 256 elements in 16 sub-blocks j of 16: value = d * scale[j] * q - dmin * min[j]. Every product is
// exact in f32 (§7), so the grouping does not matter. Constant factors such as IQ2's 1/8 are in d.
struct Codes256 {
  float d;
  float dmin;
  alignas(32) int16_t scale[16];
  alignas(32) int16_t min[16];
  alignas(32) int8_t q[256];
};

// Part `part` (32 elements each) of a block of a type with less than 256 elements per block.
using Unpack32 = void (*)(const uint8_t* block, int part, Codes32& out) noexcept;
using Unpack256 = void (*)(const uint8_t* block, Codes256& out) noexcept;

// Null for types that are not of this shape.
Unpack32 unpack32(TypeId type) noexcept;
Unpack256 unpack256(TypeId type) noexcept;

// The 8 six-bit scales and 8 six-bit mins of Q4_K and Q5_K (§7.5), from their 12 bytes: byte j of
// the results belongs to sub-block j.
struct KScales {
  uint64_t scales;
  uint64_t mins;
};
inline KScales unpack_k_scales(const uint8_t* s) noexcept {
  const uint32_t low = load_u32(s), mid = load_u32(s + 4), high = load_u32(s + 8);
  const uint32_t six = 0x3f3f3f3fu, four = 0x0f0f0f0fu, two = 0x30303030u;
  const uint64_t scales_high = (high & four) | ((low >> 2) & two);
  const uint64_t mins_high = ((high >> 4) & four) | ((mid >> 2) & two);
  return {(low & six) | scales_high << 32, (mid & six) | mins_high << 32};
}

// The scale of 16 elements of an NVFP4 block: value = scale / 2 * kMxfp4Values[code] (§7.9).
float ue4m3_to_float(uint8_t bits) noexcept;

}  // namespace penstock::quant
