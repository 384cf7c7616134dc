// The ggml block types: id, name, elements and bytes per block (spec/gguf-quants.md §4).
// Header-only and free of other includes, so that the kernels can be built on their own.
#pragma once

#include <cstddef>
#include <cstdint>

namespace penstock::gguf {

enum class TypeId : uint32_t {
  F32 = 0,
  F16 = 1,
  Q4_0 = 2,
  Q4_1 = 3,
  Q5_0 = 6,
  Q5_1 = 7,
  Q8_0 = 8,
  Q8_1 = 9,
  Q2_K = 10,
  Q3_K = 11,
  Q4_K = 12,
  Q5_K = 13,
  Q6_K = 14,
  Q8_K = 15,
  IQ2_XXS = 16,
  IQ2_XS = 17,
  IQ3_XXS = 18,
  IQ1_S = 19,
  IQ4_NL = 20,
  IQ3_S = 21,
  IQ2_S = 22,
  IQ4_XS = 23,
  I8 = 24,
  I16 = 25,
  I32 = 26,
  I64 = 27,
  F64 = 28,
  IQ1_M = 29,
  BF16 = 30,
  TQ1_0 = 34,
  TQ2_0 = 35,
  MXFP4 = 39,
  NVFP4 = 40,
  Q1_0 = 41,
  Q2_0 = 42,
};

struct TypeInfo {
  TypeId id;
  const char* name;
  uint32_t block_elems;  // E: elements per block along dimension 0
  uint32_t block_bytes;  // B: bytes per block
};

inline constexpr TypeInfo kTypes[] = {
    {TypeId::F32, "F32", 1, 4},
    {TypeId::F16, "F16", 1, 2},
    {TypeId::Q4_0, "Q4_0", 32, 18},
    {TypeId::Q4_1, "Q4_1", 32, 20},
    {TypeId::Q5_0, "Q5_0", 32, 22},
    {TypeId::Q5_1, "Q5_1", 32, 24},
    {TypeId::Q8_0, "Q8_0", 32, 34},
    {TypeId::Q8_1, "Q8_1", 32, 36},
    {TypeId::Q2_K, "Q2_K", 256, 84},
    {TypeId::Q3_K, "Q3_K", 256, 110},
    {TypeId::Q4_K, "Q4_K", 256, 144},
    {TypeId::Q5_K, "Q5_K", 256, 176},
    {TypeId::Q6_K, "Q6_K", 256, 210},
    {TypeId::Q8_K, "Q8_K", 256, 292},
    {TypeId::IQ2_XXS, "IQ2_XXS", 256, 66},
    {TypeId::IQ2_XS, "IQ2_XS", 256, 74},
    {TypeId::IQ3_XXS, "IQ3_XXS", 256, 98},
    {TypeId::IQ1_S, "IQ1_S", 256, 50},
    {TypeId::IQ4_NL, "IQ4_NL", 32, 18},
    {TypeId::IQ3_S, "IQ3_S", 256, 110},
    {TypeId::IQ2_S, "IQ2_S", 256, 82},
    {TypeId::IQ4_XS, "IQ4_XS", 256, 136},
    {TypeId::I8, "I8", 1, 1},
    {TypeId::I16, "I16", 1, 2},
    {TypeId::I32, "I32", 1, 4},
    {TypeId::I64, "I64", 1, 8},
    {TypeId::F64, "F64", 1, 8},
    {TypeId::IQ1_M, "IQ1_M", 256, 56},
    {TypeId::BF16, "BF16", 1, 2},
    {TypeId::TQ1_0, "TQ1_0", 256, 54},
    {TypeId::TQ2_0, "TQ2_0", 256, 66},
    {TypeId::MXFP4, "MXFP4", 32, 17},
    {TypeId::NVFP4, "NVFP4", 64, 36},
    {TypeId::Q1_0, "Q1_0", 128, 18},
    {TypeId::Q2_0, "Q2_0", 64, 18},
};

// Null for ids that are unknown, removed, or private to a fork.
constexpr const TypeInfo* find_type(uint32_t id) noexcept {
  for (const TypeInfo& type : kTypes) {
    if (static_cast<uint32_t>(type.id) == id) return &type;
  }
  return nullptr;
}

constexpr const TypeInfo& type_info(TypeId id) noexcept {
  return *find_type(static_cast<uint32_t>(id));
}

constexpr const char* type_name(TypeId id) noexcept {
  return type_info(id).name;
}

// Bytes of a row of n elements; n must be a multiple of the block size.
constexpr uint64_t row_bytes(TypeId id, uint64_t n) noexcept {
  const TypeInfo& type = type_info(id);
  return n / type.block_elems * type.block_bytes;
}

}  // namespace penstock::gguf
