#include "surgery/block_fill.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/error.h"
#include "quant/codec.h"

namespace penstock::surgery {
namespace {

using gguf::TypeId;

std::vector<float> decoded(const BlockFill& fill, uint64_t n, float deviation, uint64_t seed) {
  std::vector<std::byte> blocks(gguf::row_bytes(fill.type(), n));
  fill.fill(blocks.data(), n, deviation, seed);
  std::vector<float> out(n);
  quant::decode_row(fill.type(), blocks.data(), out.data(), static_cast<int64_t>(n));
  return out;
}

std::vector<TypeId> weight_types() {
  std::vector<TypeId> types;
  for (const gguf::TypeInfo& type : gguf::kTypes) {
    if (quant::can_decode(type.id) && type.id != TypeId::Q8_1 && type.id != TypeId::Q8_K) {
      types.push_back(type.id);
    }
  }
  return types;
}

TEST(BlockFill, DeviationAndMean) {
  constexpr uint64_t kN = 1 << 17;
  ASSERT_GT(weight_types().size(), 20u);
  for (const TypeId type : weight_types()) {
    const BlockFill fill(type);
    for (const float wanted : {0.02f, 0.7f}) {
      double sum = 0;
      double square = 0;
      for (const float x : decoded(fill, kN, wanted, 7)) {
        ASSERT_TRUE(std::isfinite(x)) << gguf::type_name(type);
        sum += x;
        square += static_cast<double>(x) * x;
      }
      const double deviation = std::sqrt(square / kN);
      // NVFP4's scales have three bits and no subnormals to speak of at small values.
      const double tolerance = type == TypeId::NVFP4 ? 0.15 : 0.04;
      EXPECT_NEAR(deviation / wanted, 1.0, tolerance) << gguf::type_name(type) << " " << wanted;
      EXPECT_LT(std::fabs(sum / kN), 0.05 * wanted) << gguf::type_name(type) << " " << wanted;
    }
  }
}

TEST(BlockFill, NegatedTwinAndZero) {
  for (const TypeId type : weight_types()) {
    const BlockFill fill(type);
    const std::vector<float> plus = decoded(fill, 2048, 0.1f, 3);
    const std::vector<float> minus = decoded(fill, 2048, -0.1f, 3);
    const std::vector<float> other = decoded(fill, 2048, 0.1f, 4);
    const std::vector<float> zero = decoded(fill, 2048, 0.0f, 3);
    int different = 0;
    for (size_t i = 0; i < plus.size(); ++i) {
      ASSERT_EQ(plus[i], -minus[i]) << gguf::type_name(type) << " " << i;
      ASSERT_LT(std::fabs(zero[i]), 1e-30f) << gguf::type_name(type) << " " << i;
      different += plus[i] != other[i] ? 1 : 0;
    }
    EXPECT_GT(different, 500) << gguf::type_name(type);
  }
}

TEST(BlockFill, NoWeightTypesAreRefused) {
  for (const TypeId type : {TypeId::Q8_1, TypeId::Q8_K, TypeId::I32, TypeId::F64}) {
    EXPECT_THROW(BlockFill{type}, Error) << gguf::type_name(type);
  }
}

TEST(Random, GaussianHasUnitDeviation) {
  Random random(1);
  double sum = 0;
  double square = 0;
  for (int i = 0; i < 100000; ++i) {
    const double x = random.gaussian();
    sum += x;
    square += x * x;
  }
  EXPECT_NEAR(sum / 1e5, 0, 0.02);
  EXPECT_NEAR(square / 1e5, 1, 0.02);
}

}  // namespace
}  // namespace penstock::surgery
