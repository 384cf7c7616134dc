#include "quant/codec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "quant_fixture.h"

namespace penstock::quant {
namespace {

TEST(Decode, GoldenVectorsOfEveryType) {
  size_t n_types = 0;
  for (const gguf::TypeInfo& info : gguf::kTypes) {
    size_t n_vectors = 0;
    for (const GoldenVector& vector : golden_vectors()) {
      if (vector.encode || vector.type != info.id) continue;
      ++n_vectors;
      ASSERT_TRUE(can_decode(info.id)) << info.name;
      const size_t n = vector.values.size();
      ASSERT_EQ(vector.block.size(), gguf::row_bytes(info.id, n)) << info.name;
      std::vector<float> out(n, -1);
      decode_row(info.id, vector.block.data(), out.data(), static_cast<int64_t>(n));
      for (size_t i = 0; i < n; ++i) {
        EXPECT_EQ(out[i], vector.values[i]) << info.name << " element " << i;
      }
    }
    n_types += n_vectors > 0;
  }
  EXPECT_EQ(n_types, 27u);
}

TEST(Decode, RowsAreSequencesOfBlocks) {
  Rng rng(1);
  for (const TypeId type : kQuantTypes) {
    const gguf::TypeInfo& info = gguf::type_info(type);
    const std::vector<uint8_t> row = random_blocks(rng, type, 4 * info.block_elems);
    std::vector<float> whole(4 * info.block_elems), block(info.block_elems);
    decode_row(type, row.data(), whole.data(), static_cast<int64_t>(whole.size()));
    for (size_t b = 0; b < 4; ++b) {
      decode_row(type, row.data() + b * info.block_bytes, block.data(), info.block_elems);
      EXPECT_EQ(std::memcmp(block.data(), whole.data() + b * info.block_elems,
                            block.size() * sizeof(float)),
                0)
          << info.name;
    }
  }
}

TEST(Decode, TypesWithoutADecoder) {
  for (const TypeId type : {TypeId::I8, TypeId::F64, TypeId::Q8_1, TypeId::Q8_K, TypeId::TQ1_0}) {
    EXPECT_FALSE(can_decode(type)) << gguf::type_name(type);
  }
}

TEST(Half, EveryValueSurvivesTheRoundTrip) {
  for (uint32_t i = 0; i < 0x10000; ++i) {
    const auto bits = static_cast<uint16_t>(i);
    const float value = half_to_float(bits);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(half_to_float(float_to_half(value))));
      EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(value))));
      continue;
    }
    EXPECT_EQ(float_to_half(value), bits);
    const float brain = bf16_to_float(bits);
    if (!std::isnan(brain)) {
      EXPECT_EQ(float_to_bf16(brain), bits);
    }
  }
  EXPECT_EQ(half_to_float(0x3c00), 1.0f);
  EXPECT_EQ(half_to_float(0x0001), 0x1p-24f);
  EXPECT_EQ(half_to_float(0x7bff), 65504.0f);
}

TEST(Half, RoundsToNearestEven) {
  for (uint32_t i = 0; i < 0x7bff; ++i) {  // halfway between neighbours, and one step to each side
    const float low = half_to_float(static_cast<uint16_t>(i));
    const float high = half_to_float(static_cast<uint16_t>(i + 1));
    const float middle = low + (high - low) / 2;  // exact
    EXPECT_EQ(float_to_half(middle), i + (i & 1u));
    EXPECT_EQ(float_to_half(std::nextafter(middle, 1e9f)), i + 1);
    EXPECT_EQ(float_to_half(-std::nextafter(middle, 0.0f)), i | 0x8000u);
  }
  EXPECT_EQ(float_to_half(65519.99f), 0x7bff);
  EXPECT_EQ(float_to_half(65520.0f), 0x7c00);
  EXPECT_EQ(float_to_half(std::numeric_limits<float>::infinity()), 0x7c00);
  EXPECT_EQ(float_to_half(0x1p-25f), 0);
  EXPECT_EQ(float_to_bf16(1.0f + 0x1p-8f), 0x3f80);  // tie to even
  EXPECT_EQ(float_to_bf16(1.0f + 0x3p-8f), 0x3f82);
}

}  // namespace
}  // namespace penstock::quant
