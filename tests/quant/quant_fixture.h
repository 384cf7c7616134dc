// What the tests of this room share: type lists, seeded data and the golden vectors.
#pragma once

#include <cstdint>
#include <cstring>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "gguf/types.h"
#include "quant/half.h"

namespace penstock::quant {

using gguf::TypeId;

inline constexpr TypeId kFloatTypes[] = {TypeId::F32, TypeId::F16, TypeId::BF16};
inline constexpr TypeId kQuantTypes[] = {
    TypeId::Q4_0,    TypeId::Q4_1,  TypeId::Q5_0,   TypeId::Q5_1,    TypeId::Q8_0,  TypeId::IQ4_NL,
    TypeId::MXFP4,   TypeId::Q2_0,  TypeId::Q1_0,   TypeId::NVFP4,   TypeId::Q2_K,  TypeId::Q3_K,
    TypeId::Q4_K,    TypeId::Q5_K,  TypeId::Q6_K,   TypeId::IQ4_XS,  TypeId::TQ2_0, TypeId::IQ3_S,
    TypeId::IQ3_XXS, TypeId::IQ2_S, TypeId::IQ2_XS, TypeId::IQ2_XXS, TypeId::IQ1_S, TypeId::IQ1_M};

struct GoldenVector {
  bool encode;
  TypeId type;
  std::vector<uint8_t> block;
  std::vector<float> values;
};

inline std::vector<uint8_t> from_hex(const std::string& text) {
  std::vector<uint8_t> out(text.size() / 2);
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = static_cast<uint8_t>(std::stoul(text.substr(2 * i, 2), nullptr, 16));
  }
  return out;
}

inline std::vector<GoldenVector> golden_vectors() {
  std::ifstream file(PENSTOCK_SOURCE_DIR "/tests/golden/quant_vectors.txt");
  std::vector<GoldenVector> out;
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string what, name, block, values;
    words >> what >> name >> block >> values;
    GoldenVector vector{what == "encode", TypeId::F32, from_hex(block), {}};
    for (const gguf::TypeInfo& info : gguf::kTypes) {
      if (name == info.name) vector.type = info.id;
    }
    const std::vector<uint8_t> bytes = from_hex(values);
    vector.values.resize(bytes.size() / 4);
    std::memcpy(vector.values.data(), bytes.data(), bytes.size());
    out.push_back(std::move(vector));
  }
  return out;
}

using Rng = std::mt19937_64;

inline std::vector<float> gaussian(Rng& rng, size_t n, float sigma = 1) {
  std::normal_distribution<float> normal(0, sigma);
  std::vector<float> out(n);
  for (float& x : out) x = normal(rng);
  return out;
}

// Writes a finite fp16 scale of ordinary, negative, subnormal or zero kind.
inline void put_random_scale(Rng& rng, uint8_t* p) {
  static constexpr float kScales[] = {0.013f, -0.02f, 1.5f, -0.7f, 3e-6f, -6e-8f, 0.0f, 40.0f};
  const float base = kScales[rng() % 8];
  const uint16_t bits = float_to_half(base * (1 + static_cast<float>(rng() % 1000) / 1000));
  std::memcpy(p, &bits, 2);
}

// Gives a block of any contents finite scales.
inline void put_random_scales(Rng& rng, TypeId type, uint8_t* block) {
  switch (type) {
    case TypeId::Q4_1:
    case TypeId::Q5_1:
    case TypeId::Q4_K:
    case TypeId::Q5_K:
      put_random_scale(rng, block);
      put_random_scale(rng, block + 2);
      break;
    case TypeId::Q2_K:
      put_random_scale(rng, block + 80);
      put_random_scale(rng, block + 82);
      break;
    case TypeId::Q3_K:
      put_random_scale(rng, block + 108);
      break;
    case TypeId::Q6_K:
      put_random_scale(rng, block + 208);
      break;
    case TypeId::TQ2_0:
      put_random_scale(rng, block + 64);
      break;
    case TypeId::IQ1_M: {
      uint8_t scale[2];
      put_random_scale(rng, scale);
      for (int k = 0; k < 4; ++k) {
        const int nibble = (scale[k / 2] >> (4 * (k % 2))) & 15;
        block[49 + 2 * k] = static_cast<uint8_t>((block[49 + 2 * k] & 15) | nibble << 4);
      }
      break;
    }
    case TypeId::MXFP4:
      block[0] = static_cast<uint8_t>(rng() % 140);
      break;
    case TypeId::NVFP4:
      break;
    default:
      put_random_scale(rng, block);
      break;
  }
}

// Random blocks of a quantised type: every code, sub-scale and sign can occur, scales are finite.
inline std::vector<uint8_t> random_blocks(Rng& rng, TypeId type, int64_t n) {
  const gguf::TypeInfo& info = gguf::type_info(type);
  std::vector<uint8_t> out(gguf::row_bytes(type, static_cast<uint64_t>(n)));
  for (uint8_t& byte : out) byte = static_cast<uint8_t>(rng());
  for (size_t at = 0; at < out.size(); at += info.block_bytes) {
    uint8_t* block = out.data() + at;
    const uint64_t extreme = rng() % 16;  // now and then all codes at one end
    if (extreme < 2) std::memset(block, extreme ? 0xff : 0, info.block_bytes);
    put_random_scales(rng, type, block);
  }
  return out;
}

}  // namespace penstock::quant
