#include "quant/matmul.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>

#include "quant/activation.h"
#include "quant/codec.h"
#include "quant_fixture.h"

namespace penstock::quant {
namespace {

struct AlignedFree {
  void operator()(std::byte* p) const { ::operator delete[](p, std::align_val_t{64}); }
};
using AlignedBytes = std::unique_ptr<std::byte[], AlignedFree>;
AlignedBytes aligned_bytes(size_t n) {
  return AlignedBytes(static_cast<std::byte*>(::operator new[](n, std::align_val_t{64})));
}

class IsaGuard {
 public:
  explicit IsaGuard(Isa isa) : before_(current_isa()) { EXPECT_TRUE(set_isa(isa)); }
  ~IsaGuard() { set_isa(before_); }

 private:
  Isa before_;
};

// Random weights and activations of one product, and its results under any ISA and slicing.
class Product {
 public:
  Product(Rng& rng, TypeId type, Precision precision, int64_t rows, int64_t n, int64_t tokens)
      : type_(type), precision_(precision), rows_(rows), n_(n), tokens_(tokens) {
    // An odd distance between rows and an odd start: nothing may rely on alignment.
    row_bytes_ = gguf::row_bytes(type, static_cast<uint64_t>(n)) + 1;
    weights_.resize(1 + row_bytes_ * static_cast<size_t>(rows));
    for (int64_t r = 0; r < rows; ++r) {
      std::vector<uint8_t> row;
      if (gguf::type_info(type).block_elems > 1) {
        row = random_blocks(rng, type, n);
      } else {
        const std::vector<float> values = gaussian(rng, static_cast<size_t>(n));
        row.resize(row_bytes_ - 1);
        for (size_t i = 0; i < values.size(); ++i) {
          const uint16_t half =
              type == TypeId::F16 ? float_to_half(values[i] * 1e-4f) : float_to_bf16(values[i]);
          if (type == TypeId::F32) {
            std::memcpy(row.data() + 4 * i, &values[i], 4);
          } else {
            std::memcpy(row.data() + 2 * i, &half, 2);
          }
        }
      }
      std::memcpy(weights_.data() + 1 + row_bytes_ * static_cast<size_t>(r), row.data(),
                  row.size());
    }
    act_bytes_ = act_bytes(act_kind(type, precision), n);
    acts_ = aligned_bytes(act_bytes_ * static_cast<size_t>(tokens));
    scratch_ = aligned_bytes(matmul_scratch_bytes(n));
    const IsaGuard scalar(Isa::Scalar);
    for (int64_t t = 0; t < tokens; ++t) {
      std::vector<float> x = gaussian(rng, static_cast<size_t>(n));
      if (rng() % 8 == 0) x.assign(x.size(), 0);  // an all-zero token
      for (float& value : x) {                    // saturated and zero stretches
        if (rng() % 4 == 0) value = value > 0 ? 5.0f : -5.0f;
      }
      inputs_.push_back(x);
      quantize_act(act_kind(type, precision), x.data(), act(t), n);
    }
  }

  std::vector<float> run(Isa isa, int64_t row_step, int64_t token_step) const {
    const IsaGuard guard(isa);
    std::vector<float> out(static_cast<size_t>(rows_ * tokens_), -77);
    for (int64_t row = 0; row < rows_; row += row_step) {
      for (int64_t token = 0; token < tokens_; token += token_step) {
        std::vector<const void*> acts;
        std::vector<float*> outs;
        for (int64_t t = token; t < std::min(tokens_, token + token_step); ++t) {
          acts.push_back(act(t));
          outs.push_back(out.data() + t * rows_ + row);
        }
        matmul(type_, precision_,
               {reinterpret_cast<const std::byte*>(weights_.data()) + 1 +
                    row_bytes_ * static_cast<size_t>(row),
                row_bytes_, std::min(row_step, rows_ - row), n_, acts.data(), outs.data(),
                static_cast<int64_t>(acts.size()), scratch_.get()});
      }
    }
    return out;
  }

  // The product of decoded weights and unrounded activations, and the sum of magnitudes.
  std::pair<double, double> reference(int64_t row, int64_t token) const {
    std::vector<float> w(static_cast<size_t>(n_));
    decode_row(type_, weights_.data() + 1 + row_bytes_ * static_cast<size_t>(row), w.data(), n_);
    double sum = 0, magnitude = 0;
    for (size_t i = 0; i < w.size(); ++i) {
      const double term = double{w[i]} * inputs_[static_cast<size_t>(token)][i];
      sum += term;
      magnitude += std::abs(term);
    }
    return {sum, magnitude};
  }

  int64_t rows() const { return rows_; }
  int64_t tokens() const { return tokens_; }

 private:
  std::byte* act(int64_t t) const { return acts_.get() + act_bytes_ * static_cast<size_t>(t); }

  TypeId type_;
  Precision precision_;
  int64_t rows_, n_, tokens_;
  size_t row_bytes_, act_bytes_;
  std::vector<uint8_t> weights_;
  AlignedBytes acts_, scratch_;
  std::vector<std::vector<float>> inputs_;
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

std::vector<TypeId> all_types() {
  std::vector<TypeId> types(std::begin(kFloatTypes), std::end(kFloatTypes));
  types.insert(types.end(), std::begin(kQuantTypes), std::end(kQuantTypes));
  return types;
}

int64_t random_width(Rng& rng, TypeId type) {
  const int64_t block = gguf::type_info(type).block_elems;
  if (block == 1) return 1 + static_cast<int64_t>(rng() % 200);
  return block * (1 + static_cast<int64_t>(rng() % (block == 256 ? 5 : 24)));
}

class MatmulOfType : public testing::TestWithParam<TypeId> {};

TEST_P(MatmulOfType, AgreesWithDecodedWeights) {
  Rng rng(2);
  for (const Precision precision : {Precision::Exact, Precision::Fast}) {
    const int64_t n = std::max<int64_t>(random_width(rng, GetParam()), 64) / 64 * 64;
    const int64_t width = gguf::type_info(GetParam()).block_elems > 64
                              ? 2 * gguf::type_info(GetParam()).block_elems
                              : n;
    const Product product(rng, GetParam(), precision, 9, width, 5);
    const std::vector<float> y = product.run(Isa::Scalar, 9, 5);
    const bool rounded =
        precision == Precision::Fast && gguf::type_info(GetParam()).block_elems > 1;
    for (int64_t t = 0; t < product.tokens(); ++t) {
      for (int64_t r = 0; r < product.rows(); ++r) {
        const auto [sum, magnitude] = product.reference(r, t);
        // Activations are off by at most half a step of max/127 each.
        const double tolerance = (rounded ? 0.04 : 1e-5) * magnitude + 1e-30;
        EXPECT_NEAR(y[static_cast<size_t>(t * product.rows() + r)], sum, tolerance);
      }
    }
  }
}

#if defined(PENSTOCK_EMULATED)
constexpr int kRounds = 6;
#else
constexpr int kRounds = 12;
#endif

// The numerics contract: any slicing of rows and tokens, and any ISA, gives the same bits.
TEST_P(MatmulOfType, SameBitsInEverySlicingAndIsa) {
  Rng rng(3);
  for (int round = 0; round < kRounds; ++round) {
    const Precision precision = round % 4 == 3 ? Precision::Exact : Precision::Fast;
    const Product product(rng, GetParam(), precision, 1 + static_cast<int64_t>(rng() % 70),
                          random_width(rng, GetParam()), 1 + static_cast<int64_t>(rng() % 40));
    const std::vector<float> expected = product.run(Isa::Scalar, product.rows(), product.tokens());
    EXPECT_TRUE(same_bits(product.run(Isa::Scalar, 3, 2), expected));
    for (const Isa isa : {Isa::Avx2, Isa::Neon, Isa::NeonDot}) {
      const IsaGuard restore(current_isa());
      if (!set_isa(isa)) continue;
      for (const int64_t row_step : {product.rows(), int64_t{1}, int64_t{13}}) {
        for (const int64_t token_step :
             {product.tokens(), int64_t{1}, int64_t{2}, int64_t{3}, int64_t{4}, int64_t{7}}) {
          EXPECT_TRUE(same_bits(product.run(isa, row_step, token_step), expected))
              << isa_name(isa) << " round " << round << " rows " << product.rows() << " by "
              << row_step << " tokens " << product.tokens() << " by " << token_step;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, MatmulOfType, testing::ValuesIn(all_types()),
                         [](const auto& param) {
                           return std::string(gguf::type_name(param.param));
                         });

TEST(Matmul, TypesWithKernels) {
  for (const TypeId type : all_types()) EXPECT_TRUE(has_kernel(type)) << gguf::type_name(type);
  EXPECT_FALSE(has_kernel(TypeId::I32));
  EXPECT_FALSE(has_kernel(TypeId::Q8_K));
}

#if defined(__x86_64__)
TEST(Matmul, Avx2ServesItsTypes) {
  const IsaGuard restore(current_isa());
  if (!set_isa(Isa::Avx2)) GTEST_SKIP() << "no AVX2 here";
  for (const TypeId type : all_types()) {
    if (type == TypeId::NVFP4) continue;
    EXPECT_TRUE(has_native_kernel(type, Isa::Avx2)) << gguf::type_name(type);
  }
}
#endif

TEST(Matmul, IsaNames) {
  for (const Isa isa : {Isa::Scalar, Isa::Avx2, Isa::Neon, Isa::NeonDot}) {
    Isa parsed = Isa::Scalar;
    EXPECT_TRUE(parse_isa(isa_name(isa), &parsed));
    EXPECT_EQ(parsed, isa);
  }
  Isa unchanged = Isa::Avx2;
  EXPECT_FALSE(parse_isa("sse9", &unchanged));
  EXPECT_EQ(unchanged, Isa::Avx2);
  EXPECT_TRUE(has_native_kernel(TypeId::F32, Isa::Scalar));
}

// Inputs of one activation row, rounded by an ISA.
std::vector<std::byte> rounded(Isa isa, ActKind kind, const std::vector<float>& x) {
  const IsaGuard guard(isa);
  const size_t bytes = act_bytes(kind, static_cast<int64_t>(x.size()));
  const AlignedBytes row = aligned_bytes(bytes);
  std::memset(row.get(), 0, bytes);
  quantize_act(kind, x.data(), row.get(), static_cast<int64_t>(x.size()));
  return {row.get(), row.get() + bytes};
}

TEST(Activations, CodesSumsAndScales) {
  Rng rng(4);
  const std::vector<float> x = gaussian(rng, 512);
  const std::vector<std::byte> small = rounded(Isa::Scalar, ActKind::Q8_32, x);
  const Act32 a(small.data(), 512);
  for (size_t k = 0; k < 16; ++k) {
    float max = 0;
    int sum = 0;
    for (size_t i = 32 * k; i < 32 * k + 32; ++i) max = std::max(max, std::abs(x[i]));
    EXPECT_EQ(a.scales[k], max / 127);
    for (size_t i = 32 * k; i < 32 * k + 32; ++i) {
      EXPECT_NEAR(static_cast<float>(a.codes[i]) * a.scales[k], x[i], 0.5001f * a.scales[k]);
      sum += a.codes[i];
    }
    EXPECT_EQ(a.sums[k], sum);
  }
  const std::vector<std::byte> large = rounded(Isa::Scalar, ActKind::Q8_256, x);
  const Act256 b(large.data(), 512);
  for (size_t i = 0; i < 512; ++i) {
    EXPECT_NEAR(static_cast<float>(b.codes[i]) * b.scales[i / 256], x[i],
                0.5001f * b.scales[i / 256]);
  }
  for (size_t j = 0; j < 32; ++j) {
    int sum = 0;
    for (size_t i = 16 * j; i < 16 * j + 16; ++i) sum += b.codes[i];
    EXPECT_EQ(b.sums[j], sum);
  }
}

TEST(Activations, TiesGoToEven) {
  std::vector<float> x(32, 0.0f);
  x[0] = 127;  // scale 1
  x[1] = 0.5f;
  x[2] = 1.5f;
  x[3] = -2.5f;
  const std::vector<std::byte> row = rounded(Isa::Scalar, ActKind::Q8_32, x);
  const Act32 a(row.data(), 32);
  EXPECT_EQ(a.codes[1], 0);
  EXPECT_EQ(a.codes[2], 2);
  EXPECT_EQ(a.codes[3], -2);
}

TEST(Activations, SameBytesInEveryIsa) {
  Rng rng(5);
  for (int round = 0; round < 200; ++round) {
    std::vector<float> x = gaussian(rng, 1024, round % 3 ? 1.0f : 1e-20f);
    for (size_t k = 0; k < 32; ++k) {  // blocks of every odd kind
      float* block = x.data() + 32 * k;
      switch (rng() % 8) {
        case 0:
          std::fill(block, block + 32, 0.0f);
          break;
        case 1:
          std::fill(block, block + 32, -1e-39f);
          break;
        case 2:
          block[rng() % 32] = 3e38f;
          break;
        case 3:
          block[rng() % 32] = std::numeric_limits<float>::quiet_NaN();
          break;
        case 4:
          block[rng() % 32] = -std::numeric_limits<float>::infinity();
          break;
        default:
          break;
      }
    }
    for (const ActKind kind : {ActKind::Q8_32, ActKind::Q8_256}) {
      const std::vector<std::byte> expected = rounded(Isa::Scalar, kind, x);
      for (const Isa isa : {Isa::Avx2, Isa::Neon, Isa::NeonDot}) {
        const IsaGuard restore(current_isa());
        if (set_isa(isa)) {
          EXPECT_EQ(rounded(isa, kind, x), expected) << isa_name(isa);
        }
      }
    }
  }
}

TEST(Activations, FaultsShowInTheResult) {
  std::vector<float> x(64, 1.0f);
  x[40] = std::numeric_limits<float>::infinity();
  const std::vector<std::byte> row = rounded(current_isa(), ActKind::Q8_32, x);
  const Act32 a(row.data(), 64);
  EXPECT_FALSE(std::isnan(a.scales[0]));
  EXPECT_TRUE(std::isnan(a.scales[1]));
}

}  // namespace
}  // namespace penstock::quant
