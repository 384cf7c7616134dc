// R19 of spec/gguf-quants.md §3: one non-finite scale poisons a whole output row, so a data scan
// can look at every scale without decoding the codes.
#include <bit>
#include <cstring>

#include "base/error.h"
#include "gguf/model.h"
#include "gguf/parser.h"

namespace penstock::gguf {
namespace {

bool half_finite(const std::byte* at) noexcept {
  uint16_t bits;
  std::memcpy(&bits, at, sizeof bits);
  return (bits & 0x7C00) != 0x7C00;
}

bool bf16_finite(const std::byte* at) noexcept {
  uint16_t bits;
  std::memcpy(&bits, at, sizeof bits);
  return (bits & 0x7F80) != 0x7F80;
}

bool float_finite(const std::byte* at) noexcept {
  uint32_t bits;
  std::memcpy(&bits, at, sizeof bits);
  return (bits & 0x7F800000) != 0x7F800000;
}

bool double_finite(const std::byte* at) noexcept {
  uint64_t bits;
  std::memcpy(&bits, at, sizeof bits);
  return (bits & 0x7FF0000000000000) != 0x7FF0000000000000;
}

// IQ1_M spreads its fp16 scale over the top nibbles of four u16.
bool iq1_m_finite(const std::byte* block) noexcept {
  uint16_t s[4];
  std::memcpy(s, block + 48, sizeof s);
  const uint16_t bits = static_cast<uint16_t>((s[0] >> 12) | (s[1] >> 12) << 4 | (s[2] >> 12) << 8 |
                                              (s[3] >> 12) << 12);
  return (bits & 0x7C00) != 0x7C00;
}

bool block_finite(TypeId type, const std::byte* block) noexcept {
  switch (type) {
    case TypeId::F32:
    case TypeId::Q8_K:
      return float_finite(block);
    case TypeId::F64:
      return double_finite(block);
    case TypeId::BF16:
      return bf16_finite(block);
    case TypeId::Q4_1:
    case TypeId::Q5_1:
    case TypeId::Q8_1:
    case TypeId::Q4_K:
    case TypeId::Q5_K:
      return half_finite(block) && half_finite(block + 2);
    case TypeId::F16:
    case TypeId::Q4_0:
    case TypeId::Q5_0:
    case TypeId::Q8_0:
    case TypeId::IQ2_XXS:
    case TypeId::IQ2_XS:
    case TypeId::IQ2_S:
    case TypeId::IQ3_XXS:
    case TypeId::IQ3_S:
    case TypeId::IQ1_S:
    case TypeId::IQ4_NL:
    case TypeId::IQ4_XS:
    case TypeId::Q1_0:
    case TypeId::Q2_0:
      return half_finite(block);
    case TypeId::Q2_K:
      return half_finite(block + 80) && half_finite(block + 82);
    case TypeId::Q3_K:
      return half_finite(block + 108);
    case TypeId::Q6_K:
      return half_finite(block + 208);
    case TypeId::TQ1_0:
      return half_finite(block + 52);
    case TypeId::TQ2_0:
      return half_finite(block + 64);
    case TypeId::IQ1_M:
      return iq1_m_finite(block);
    case TypeId::MXFP4:
      return static_cast<uint8_t>(block[0]) != 255;
    case TypeId::NVFP4:  // every scale byte is finite
    case TypeId::I8:
    case TypeId::I16:
    case TypeId::I32:
    case TypeId::I64:
      return true;
  }
  return true;
}

}  // namespace

void check_finite(const Model& model, const Tensor& tensor) {
  const TypeInfo& type = type_info(tensor.type);
  const std::byte* data = model.data(tensor);
  const uint64_t n_blocks = tensor.bytes / type.block_bytes;
  for (uint64_t i = 0; i < n_blocks; ++i) {
    if (!block_finite(tensor.type, data + i * type.block_bytes)) {
      fail(ErrorKind::Numeric,
           "{}: tensor {} ({}) holds a value that is not finite in elements {} to {}, at offset {} "
           "of the file; the file is damaged, download it again",
           model.shards()[tensor.shard].path, printable(tensor.name), type.name,
           i * type.block_elems, (i + 1) * type.block_elems - 1,
           tensor.offset + i * type.block_bytes);
    }
  }
}

}  // namespace penstock::gguf
