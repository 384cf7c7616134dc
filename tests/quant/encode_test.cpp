#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "quant/codec.h"
#include "quant/encode_positive.h"
#include "quant/matmul.h"
#include "quant_fixture.h"

namespace penstock::quant {
namespace {

enum class Shape { Gaussian, Laplace, StudentT4 };

std::vector<float> draw(Rng& rng, Shape shape, size_t n) {
  std::normal_distribution<float> normal;
  std::exponential_distribution<float> exponential;
  std::student_t_distribution<float> student(4);
  std::vector<float> out(n);
  for (float& x : out) {
    switch (shape) {
      case Shape::Gaussian:
        x = normal(rng);
        break;
      case Shape::Laplace:
        x = exponential(rng) * (rng() % 2 ? 1.0f : -1.0f);
        break;
      case Shape::StudentT4:
        x = student(rng);
        break;
    }
    x *= 0.02f;
  }
  return out;
}

std::vector<float> round_trip(TypeId type, const std::vector<float>& x, const float* importance) {
  std::vector<uint8_t> blocks(gguf::row_bytes(type, x.size()));
  encode_row(type, x.data(), blocks.data(), static_cast<int64_t>(x.size()), importance);
  std::vector<float> out(x.size());
  decode_row(type, blocks.data(), out.data(), static_cast<int64_t>(x.size()));
  return out;
}

double squared_error(const std::vector<float>& x, const std::vector<float>& y,
                     const float* w = nullptr) {
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double e = double{x[i]} - y[i];
    sum += (w ? w[i] : 1.0) * e * e;
  }
  return sum;
}

double relative_rmse(TypeId type, const std::vector<float>& x) {
  const std::vector<float> zero(x.size());
  return std::sqrt(squared_error(x, round_trip(type, x, nullptr)) / squared_error(x, zero));
}

// The exact search of spec/gguf-quants.md §10.2: every change of codes as d falls, both signs, each
// d = Sxq / Sqq as fp16 and its two neighbours with freshly chosen codes.
double optimal_q2_0_error(const float* x, const float* w, bool positive_only = false) {
  const auto error_of = [&](float d) {
    double sum = 0;
    for (int i = 0; i < 64; ++i) {
      const float q = d == 0 ? 0 : std::clamp(std::rint(x[i] / d), -1.0f, 2.0f);
      const double e = double{x[i]} - double{d} * q;
      sum += (w ? w[i] : 1.0) * e * e;
    }
    return sum;
  };
  double best = error_of(0);
  for (const float sign : {1.0f, -1.0f}) {
    if (positive_only && sign < 0) continue;
    std::vector<double> breaks;
    for (int i = 0; i < 64; ++i) {
      breaks.push_back(2 * std::abs(double{x[i]}));
      if (sign * x[i] > 0) breaks.push_back(2 * std::abs(double{x[i]}) / 3);
    }
    std::sort(breaks.begin(), breaks.end());
    for (size_t b = 0; b < breaks.size(); ++b) {
      const double next = b + 1 < breaks.size() ? breaks[b + 1] : breaks[b] * 2;
      const double d = (breaks[b] + next) / 2;
      if (d == 0) continue;
      double xq = 0, qq = 0;
      for (int i = 0; i < 64; ++i) {
        const double q = std::clamp(std::rint(sign * x[i] / d), -1.0, 2.0) * sign;
        xq += (w ? w[i] : 1.0) * x[i] * q;
        qq += (w ? w[i] : 1.0) * q * q;
      }
      if (qq == 0) continue;
      const uint16_t bits = float_to_half(sign * static_cast<float>(std::abs(xq / qq)));
      for (int step = -1; step <= 1; ++step) {
        best = std::min(best, error_of(half_to_float(static_cast<uint16_t>(bits + step))));
      }
    }
  }
  return best;
}

#if defined(PENSTOCK_EMULATED)
constexpr int kBlocks = 40;
#else
constexpr int kBlocks = 400;
#endif

TEST(EncodeQ2_0, ReachesTheExactSearch) {
  Rng rng(11);
  for (const Shape shape : {Shape::Gaussian, Shape::Laplace, Shape::StudentT4}) {
    for (const bool weighted : {false, true}) {
      double optimal = 0, ours = 0;
      for (int block = 0; block < kBlocks; ++block) {
        const std::vector<float> x = draw(rng, shape, 64);
        std::vector<float> w(64, 1);
        if (weighted) {
          std::gamma_distribution<float> gamma(0.5f);
          for (float& v : w) v = gamma(rng);
        }
        const float* importance = weighted ? w.data() : nullptr;
        optimal += optimal_q2_0_error(x.data(), importance);
        ours += squared_error(x, round_trip(TypeId::Q2_0, x, importance), importance);
      }
      RecordProperty("excess", std::to_string(ours / optimal - 1));
      EXPECT_LE(ours, optimal * 1.005) << static_cast<int>(shape) << weighted;
      EXPECT_GE(ours, optimal * 0.99999);
    }
  }
}

// Without negative scales: the optimum of those that are left, and no block has one.
TEST(EncodeQ2_0, PositiveScalesReachTheirExactSearch) {
  Rng rng(18);
  for (const bool weighted : {false, true}) {
    double optimal = 0, ours = 0, squares = 0;
    for (int block = 0; block < kBlocks; ++block) {
      const std::vector<float> x = draw(rng, Shape::Gaussian, 64);
      std::vector<float> w(64, 1);
      if (weighted) {
        std::gamma_distribution<float> gamma(0.5f);
        for (float& v : w) v = gamma(rng);
      }
      const float* importance = weighted ? w.data() : nullptr;
      std::vector<uint8_t> bytes(18);
      encode_q2_0_positive(x.data(), bytes.data(), 64, importance);
      EXPECT_EQ(bytes[1] & 0x80, 0);
      std::vector<float> y(64);
      decode_row(TypeId::Q2_0, bytes.data(), y.data(), 64);
      optimal += optimal_q2_0_error(x.data(), importance, true);
      ours += squared_error(x, y, importance);
      squares += squared_error(x, std::vector<float>(64), importance);
    }
    EXPECT_LE(ours, optimal * 1.005) << weighted;
    EXPECT_GE(ours, optimal * 0.99999) << weighted;
    if (weighted) continue;
    EXPECT_NEAR(ours / squares, 0.142, 0.142 * 0.05);  // spec/gguf-quants.md §10.2
  }
  // A block with nothing above zero still gets what a positive scale can give it.
  const std::vector<float> negative(64, -0.5f);
  std::vector<uint8_t> bytes(18);
  encode_q2_0_positive(negative.data(), bytes.data(), 64, nullptr);
  std::vector<float> y(64);
  decode_row(TypeId::Q2_0, bytes.data(), y.data(), 64);
  EXPECT_EQ(y, negative);
}

TEST(EncodeQ2_0, RelativeErrorsOfKnownDistributions) {
  Rng rng(12);
  EXPECT_NEAR(relative_rmse(TypeId::Q2_0, draw(rng, Shape::Gaussian, 64 * 4000)), 0.351, 0.0035);
  EXPECT_NEAR(relative_rmse(TypeId::Q2_0, draw(rng, Shape::Laplace, 64 * 4000)), 0.400, 0.0040);
  // Heavy tails: the figure itself depends on the sample.
  EXPECT_NEAR(relative_rmse(TypeId::Q2_0, draw(rng, Shape::StudentT4, 64 * 20000)), 0.421, 0.0063);
}

TEST(EncodeQ2_0, NeverWorseThanTheLargestMagnitudeAsScale) {
  Rng rng(13);
  for (int block = 0; block < 500; ++block) {
    const std::vector<float> x = draw(rng, Shape::StudentT4, 64);
    float max = 0;
    for (const float v : x) max = std::max(max, std::abs(v));
    const float d = half_to_float(float_to_half(max));
    std::vector<float> simple(64);
    for (size_t i = 0; i < 64; ++i) simple[i] = d * std::clamp(std::rint(x[i] / d), -1.0f, 2.0f);
    EXPECT_LE(squared_error(x, round_trip(TypeId::Q2_0, x, nullptr)),
              squared_error(x, simple) * 1.00001);
  }
}

TEST(EncodeQ2_0, SpecialBlocks) {
  std::vector<float> x(64, 0.0f);
  std::vector<uint8_t> zero(18);
  encode_row(TypeId::Q2_0, x.data(), zero.data(), 64, nullptr);
  std::vector<uint8_t> expected(18, 0x55);
  expected[0] = expected[1] = 0;
  EXPECT_EQ(zero, expected);
  // Ternary blocks and blocks on the whole grid come back exactly, at every place and either sign.
  for (const float a : {0.25f, -0.25f, 0x1p-24f, -3 * 0x1p-24f, 16384.0f, -32752.0f}) {
    for (size_t i = 0; i < 64; ++i) x[i] = a * static_cast<float>(static_cast<int>(i * 7 % 3) - 1);
    EXPECT_EQ(round_trip(TypeId::Q2_0, x, nullptr), x) << a;
    for (size_t i = 0; i < 64; ++i) x[i] = a * static_cast<float>(static_cast<int>(i * 5 % 4) - 1);
    EXPECT_EQ(round_trip(TypeId::Q2_0, x, nullptr), x) << a;
  }
  // Beyond fp16 in both directions, and importance that is zero everywhere.
  for (const float a : {1e30f, 1e-30f, 1e-42f, 80000.0f}) {
    for (size_t i = 0; i < 64; ++i) x[i] = i % 2 ? a : -a;
    const std::vector<float> w(64, 0.0f);
    for (const float* importance : {static_cast<const float*>(nullptr), w.data()}) {
      for (const float y : round_trip(TypeId::Q2_0, x, importance)) EXPECT_TRUE(std::isfinite(y));
    }
  }
}

TEST(EncodeQ2_0, SameBytesInEveryIsa) {
  Rng rng(17);
  const Isa before = current_isa();
  for (const Shape shape : {Shape::Gaussian, Shape::StudentT4}) {
    const std::vector<float> x = draw(rng, shape, 64 * 2000),
                             w = draw(rng, Shape::Gaussian, 64 * 2000);
    std::vector<float> importance(w.size());
    for (size_t i = 0; i < w.size(); ++i) importance[i] = std::abs(w[i]);
    for (const float* p :
         {static_cast<const float*>(nullptr), static_cast<const float*>(importance.data())}) {
      std::vector<uint8_t> expected(18 * 2000), out(18 * 2000);
      ASSERT_TRUE(set_isa(Isa::Scalar));
      encode_row(TypeId::Q2_0, x.data(), expected.data(), static_cast<int64_t>(x.size()), p);
      for (const Isa isa : {Isa::Avx2, Isa::Neon, Isa::NeonDot}) {
        if (!set_isa(isa)) continue;
        encode_row(TypeId::Q2_0, x.data(), out.data(), static_cast<int64_t>(x.size()), p);
        EXPECT_EQ(out, expected) << isa_name(isa);
      }
      ASSERT_TRUE(set_isa(Isa::Scalar));
      encode_q2_0_positive(x.data(), expected.data(), static_cast<int64_t>(x.size()), p);
      for (const Isa isa : {Isa::Avx2, Isa::Neon, Isa::NeonDot}) {
        if (!set_isa(isa)) continue;
        encode_q2_0_positive(x.data(), out.data(), static_cast<int64_t>(x.size()), p);
        EXPECT_EQ(out, expected) << isa_name(isa);
      }
    }
  }
  set_isa(before);
}

TEST(EncodeQ2_0, GoldenBlock) {
  for (const GoldenVector& vector : golden_vectors()) {
    if (!vector.encode || vector.type != TypeId::Q2_0) continue;
    std::vector<float> optimal(64);
    decode_row(TypeId::Q2_0, vector.block.data(), optimal.data(), 64);
    EXPECT_LE(squared_error(vector.values, round_trip(TypeId::Q2_0, vector.values, nullptr)),
              1.005 * squared_error(vector.values, optimal));
    return;
  }
  FAIL() << "no vector";
}

TEST(Encode, GoldenQ8_0) {
  for (const GoldenVector& vector : golden_vectors()) {
    if (!vector.encode || vector.type != TypeId::Q8_0) continue;
    std::vector<uint8_t> block(34);
    encode_row(TypeId::Q8_0, vector.values.data(), block.data(), 32, nullptr);
    EXPECT_EQ(block, vector.block);
    return;
  }
  FAIL() << "no vector";
}

constexpr TypeId kEncodable[] = {TypeId::F16,  TypeId::BF16, TypeId::Q8_0, TypeId::Q4_0,
                                 TypeId::Q4_1, TypeId::Q5_0, TypeId::Q5_1, TypeId::IQ4_NL,
                                 TypeId::Q4_K, TypeId::Q5_K, TypeId::Q6_K, TypeId::Q2_0};

TEST(Encode, RelativeErrorsOnGaussianWeights) {
  struct Limit {
    TypeId type;
    double rmse;
  };
  Rng rng(14);
  const std::vector<float> x = draw(rng, Shape::Gaussian, 256 * 400);
  for (const Limit& limit : {Limit{TypeId::F16, 0.0003},
                             {TypeId::BF16, 0.0018},
                             {TypeId::Q8_0, 0.0055},
                             {TypeId::Q6_K, 0.020},
                             {TypeId::Q5_1, 0.040},
                             {TypeId::Q5_0, 0.046},
                             {TypeId::Q5_K, 0.040},
                             {TypeId::Q4_K, 0.078},
                             {TypeId::Q4_1, 0.081},
                             {TypeId::IQ4_NL, 0.086},
                             {TypeId::Q4_0, 0.096},
                             {TypeId::Q2_0, 0.355}}) {
    const double rmse = relative_rmse(limit.type, x);
    EXPECT_LE(rmse, limit.rmse) << gguf::type_name(limit.type);
    EXPECT_GE(rmse, limit.rmse * 0.6) << gguf::type_name(limit.type);
  }
}

TEST(Encode, ImportanceLowersTheWeightedError) {
  Rng rng(15);
  const std::vector<float> x = draw(rng, Shape::Gaussian, 256 * 100);
  std::vector<float> w(x.size());
  std::gamma_distribution<float> gamma(0.5f);
  for (float& v : w) v = gamma(rng);
  for (const TypeId type : {TypeId::Q4_0, TypeId::Q4_1, TypeId::Q5_0, TypeId::Q5_1, TypeId::IQ4_NL,
                            TypeId::Q4_K, TypeId::Q5_K, TypeId::Q6_K, TypeId::Q2_0}) {
    EXPECT_LT(squared_error(x, round_trip(type, x, w.data()), w.data()),
              squared_error(x, round_trip(type, x, nullptr), w.data()))
        << gguf::type_name(type);
  }
}

TEST(Encode, ExtremeBlocksStayFinite) {
  Rng rng(16);
  std::vector<std::vector<float>> rows;
  rows.emplace_back(256, 0.0f);
  rows.emplace_back(256, 1.0f);
  rows.emplace_back(256, -3.0f);
  for (const float a : {1e-42f, 1e-30f, 1e-8f, 6e4f, 1e9f, 1e30f}) {
    std::vector<float> x = gaussian(rng, 256, 1);
    for (float& v : x) v *= a;
    rows.push_back(x);
  }
  std::vector<float> spike(256, 1e-3f);
  spike[77] = -100.0f;
  rows.push_back(spike);
  for (const TypeId type : kEncodable) {
    ASSERT_TRUE(can_encode(type));
    for (const std::vector<float>& x : rows) {
      if (type == TypeId::F16 || type == TypeId::BF16) continue;
      const std::vector<float> y = round_trip(type, x, nullptr);
      for (const float v : y) EXPECT_TRUE(std::isfinite(v)) << gguf::type_name(type);
      if (x[0] == 0 || x[0] == 1 || x[0] == -3) {
        for (size_t i = 0; i < 256; ++i) EXPECT_NEAR(y[i], x[i], 0.01f) << gguf::type_name(type);
      }
    }
  }
}

TEST(Encode, TypesWithoutAnEncoder) {
  for (const TypeId type : {TypeId::Q2_K, TypeId::IQ2_XS, TypeId::I32, TypeId::MXFP4}) {
    EXPECT_FALSE(can_encode(type));
  }
}

}  // namespace
}  // namespace penstock::quant
