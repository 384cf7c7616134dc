// What the instruction sets provide, and the sums that come closest to their limits.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "quant/matmul.h"
#include "quant_fixture.h"

namespace penstock::quant {
namespace {

constexpr Isa kNative[] = {Isa::Avx2, Isa::Neon, Isa::NeonDot};

TEST(Isa, EveryTypeHasHandWrittenKernels) {
  for (const Isa isa : {Isa::Neon, Isa::NeonDot}) {
    const Isa before = current_isa();
    if (!set_isa(isa)) continue;
    set_isa(before);
    for (const TypeId type : kFloatTypes) {
      EXPECT_TRUE(has_native_kernel(type, isa)) << gguf::type_name(type);
    }
    for (const TypeId type : kQuantTypes) {
      EXPECT_TRUE(has_native_kernel(type, isa)) << gguf::type_name(type);
    }
  }
}

// scripts/test names the set that the emulated processor must choose, so that a run meant for one
// kind of processor cannot pass on another.
TEST(Isa, TheBestOneIsTheOneExpected) {
  const char* expected = std::getenv("PENSTOCK_EXPECT_ISA");
  if (expected == nullptr) GTEST_SKIP() << "PENSTOCK_EXPECT_ISA is not set";
  EXPECT_STREQ(isa_name(best_isa()), expected);
  EXPECT_EQ(current_isa(), best_isa());
}

// All bytes of the blocks alike and activations at their ends: no partial sum may overflow.
class ExtremesOfType : public testing::TestWithParam<TypeId> {};

TEST_P(ExtremesOfType, SameBitsInEveryIsa) {
  const TypeId type = GetParam();
  const gguf::TypeInfo& info = gguf::type_info(type);
  const ActKind kind = act_kind(type, Precision::Fast);
  constexpr int64_t kRows = 9, kWidth = 512, kTokens = 5;
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  const size_t act_lines = act_bytes(kind, kWidth) / 64;
  std::vector<Line> acts(act_lines * kTokens), scratch(matmul_scratch_bytes(kWidth) / 64);
  const void* act[kTokens];
  for (size_t t = 0; t < kTokens; ++t) {
    std::vector<float> x(kWidth);
    for (size_t i = 0; i < x.size(); ++i) {
      const bool negative = t == 1 || (t == 2 && i % 2 == 1) || (t == 3 && i % 16 >= 8);
      x[i] = negative ? -1.0f : 1.0f;
    }
    act[t] = acts.data() + t * act_lines;
    quantize_act(kind, x.data(), acts.data() + t * act_lines, kWidth);
  }
  Rng rng(6);
  const size_t row_bytes = gguf::row_bytes(type, kWidth);
  for (const int fill : {0x00, 0xff, 0x80, 0x7f, 0x55, 0xaa, 0x0f, 0xf0}) {
    std::vector<uint8_t> weights(row_bytes * kRows, static_cast<uint8_t>(fill));
    for (size_t at = 0; at < weights.size(); at += info.block_bytes) {
      put_random_scales(rng, type, weights.data() + at);
    }
    const auto product = [&](Isa isa, int64_t n_tokens) {
      std::vector<float> y(kRows * kTokens);
      const Isa before = current_isa();
      if (set_isa(isa)) {
        for (int64_t token = 0; token < kTokens; token += n_tokens) {
          float* out[kTokens];
          for (int64_t t = 0; t < n_tokens; ++t) out[t] = y.data() + (token + t) * kRows;
          matmul(type, Precision::Fast,
                 {reinterpret_cast<const std::byte*>(weights.data()), row_bytes, kRows, kWidth,
                  act + token, out, n_tokens, scratch.front().bytes});
        }
      }
      set_isa(before);
      return y;
    };
    const std::vector<float> expected = product(Isa::Scalar, kTokens);
    for (const Isa isa : kNative) {
      if (!isa_available(isa)) continue;
      for (const int64_t n_tokens : {int64_t{1}, kTokens}) {
        const std::vector<float> y = product(isa, n_tokens);
        EXPECT_EQ(std::memcmp(y.data(), expected.data(), y.size() * sizeof(float)), 0)
            << isa_name(isa) << " bytes " << fill << " tokens " << n_tokens;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, ExtremesOfType, testing::ValuesIn(kQuantTypes),
                         [](const auto& param) {
                           return std::string(gguf::type_name(param.param));
                         });

}  // namespace
}  // namespace penstock::quant
