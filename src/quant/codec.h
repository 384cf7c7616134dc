// Rows of quantised blocks to f32 and back (spec/gguf-quants.md §5, §7, §8, §10).
#pragma once

#include <cstdint>

#include "gguf/types.h"

namespace penstock::quant {

using gguf::TypeId;

bool can_decode(TypeId type) noexcept;
// n elements, a multiple of the type's block. Bit-exact with the format's definition. The type must
// be one that can_decode accepts.
void decode_row(TypeId type, const void* in, float* out, int64_t n) noexcept;

bool can_encode(TypeId type) noexcept;
// n elements, a multiple of the type's block, all finite. `importance` (nullable) has one weight
// >= 0 per element that multiplies its squared error; Q8_0 and the float types ignore it. Blocks
// are independent and the result depends on nothing but the arguments. The type must be one that
// can_encode accepts.
void encode_row(TypeId type, const float* in, void* out, int64_t n,
                const float* importance) noexcept;

}  // namespace penstock::quant
