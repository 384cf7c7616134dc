// Every kernel of this machine's instruction set against the scalar one, bit for bit; and the
// accuracy of the elementary functions.
#include "ops/kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "ops/recurrent.h"
#include "ops/support.h"

namespace penstock::testing {
namespace {

using ops::Kernels;

const Kernels& scalar() {
  return *ops::kernels_for(quant::Isa::Scalar);
}
const Kernels& native() {
  return *ops::kernels_for(quant::best_isa());
}

double ulps(float got, double expected) {
  const auto rounded = static_cast<float>(expected);
  const double step =
      static_cast<double>(std::nextafter(rounded, std::numeric_limits<float>::infinity())) -
      static_cast<double>(rounded);
  return std::fabs(static_cast<double>(got) - expected) / step;
}

std::vector<float> random_values(std::mt19937& random, size_t n, float most) {
  std::uniform_real_distribution<float> value(-most, most);
  std::vector<float> v(n);
  for (float& x : v) x = value(random);
  return v;
}

bool equal_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

bool equal_bits(float a, float b) {
  return std::memcmp(&a, &b, sizeof a) == 0;
}

TEST(Kernels, EqualScalarAtEveryLength) {
  std::mt19937 random(1);
  for (const int64_t n : {1, 3, 7, 8, 9, 16, 31, 64, 255, 256, 257, 1000}) {
    const auto size = static_cast<size_t>(n);
    const std::vector<float> a = random_values(random, size, 3.0f);
    const std::vector<float> b = random_values(random, size, 90.0f);
    const std::vector<float> w = random_values(random, 4 * size, 2.0f);
    EXPECT_TRUE(
        equal_bits(native().dot(a.data(), b.data(), n), scalar().dot(a.data(), b.data(), n)));
    EXPECT_EQ(native().sum_squares(b.data(), n), scalar().sum_squares(b.data(), n));
    EXPECT_TRUE(equal_bits(native().max(a.data(), n), scalar().max(a.data(), n)));
    const auto both = [&](auto call, const char* name) {
      std::vector<float> x = a, y = a;
      call(native(), x.data());
      call(scalar(), y.data());
      EXPECT_TRUE(equal_bits(x, y)) << name << " of " << n;
    };
    both([&](const Kernels& k, float* y) { k.scale(b.data(), 0.3f, y, n); }, "scale");
    both([&](const Kernels& k, float* y) { k.scale_mul(b.data(), 0.3f, w.data(), y, n); },
         "scale_mul");
    both([&](const Kernels& k, float* y) { k.add(b.data(), y, n); }, "add");
    both([&](const Kernels& k, float* y) { k.axpy(0.7f, b.data(), y, n); }, "axpy");
    both([&](const Kernels& k, float* y) { k.silu(b.data(), 4.0f, y, n); }, "silu");
    both([&](const Kernels& k, float* y) { k.sigmoid(b.data(), 4.0f, 2.0f, y, n); }, "sigmoid");
    both([&](const Kernels& k, float* y) { k.silu_mul(b.data(), w.data(), y, n); }, "silu_mul");
    both([&](const Kernels& k, float* y) { k.sigmoid_mul(b.data(), w.data(), y, n); },
         "sigmoid_mul");
    both([&](const Kernels& k, float* y) { k.gated_mean(w.data(), w.data(), 4, n, y, n); },
         "gated_mean");
    const float* taps[4] = {a.data(), b.data(), w.data(), w.data() + n};
    both([&](const Kernels& k, float* y) { k.conv_silu(taps, 4, w.data(), n, y, n); }, "conv");
    both([&](const Kernels& k, float* y) { k.mean_rows(taps, 4, y, n); }, "mean_rows");
    both([&](const Kernels& k, float* y) { k.exp(b.data(), y, n); }, "exp");
    float sums[2];
    both([&](const Kernels& k,
             float* y) { sums[&k == &native() ? 0 : 1] = k.exp_minus(y, 1.5f, n); },
         "exp_minus");
    EXPECT_TRUE(equal_bits(sums[0], sums[&native() == &scalar() ? 0 : 1]));
    if (n % 2 == 0) {
      both([&](const Kernels& k, float* y) { k.rotate(y, w.data(), w.data() + n, n / 2); },
           "rotate");
    }
  }
}

TEST(Kernels, AttentionTilesEqualScalarAndDoNotDependOnTheirCompany) {
  std::mt19937 random(2);
  for (const int64_t dim : {8, 16, 32, 40, 128}) {
    const std::vector<float> q = random_values(random, static_cast<size_t>(7 * dim), 1.0f);
    const std::vector<float> k = random_values(random, static_cast<size_t>(5 * dim), 1.0f);
    const float* queries[7];
    for (int64_t i = 0; i < 7; ++i) queries[i] = q.data() + i * dim;
    std::vector<float> fast(35), slow(35);
    native().scores(queries, 7, k.data(), 5, dim, 0.25f, fast.data(), 5);
    scalar().scores(queries, 7, k.data(), 5, dim, 0.25f, slow.data(), 5);
    EXPECT_TRUE(equal_bits(fast, slow)) << dim;
    for (int64_t i = 0; i < 7; ++i) {
      for (int64_t p = 0; p < 5; ++p) {
        float alone;
        native().scores(queries + i, 1, k.data() + p * dim, 1, dim, 0.25f, &alone, 1);
        EXPECT_TRUE(equal_bits(alone, fast[static_cast<size_t>(i * 5 + p)]));
      }
    }
    std::vector<float> out_fast(static_cast<size_t>(7 * dim)), out_slow(out_fast);
    native().weigh(fast.data(), 5, 7, k.data(), 5, dim, out_fast.data(), dim);
    scalar().weigh(fast.data(), 5, 7, k.data(), 5, dim, out_slow.data(), dim);
    EXPECT_TRUE(equal_bits(out_fast, out_slow)) << dim;
    std::vector<float> alone(static_cast<size_t>(dim));
    for (int64_t p = 0; p < 5; ++p) {  // position by position
      native().weigh(fast.data() + 15 + p, 5, 1, k.data() + p * dim, 1, dim, alone.data(), dim);
    }
    EXPECT_EQ(std::memcmp(alone.data(), out_fast.data() + 3 * dim, alone.size() * 4), 0);
  }
}

TEST(Kernels, DeltaRuleEqualsScalarAndStep6) {
  std::mt19937 random(3);
  constexpr int64_t kDim = 24, kColumns = 7, kTokens = 5;
  const std::vector<float> q = random_values(random, kTokens * kDim, 0.5f);
  const std::vector<float> k = random_values(random, kTokens * kDim, 0.5f);
  const std::vector<float> v = random_values(random, kTokens * kColumns, 1.0f);
  const std::vector<float> start = random_values(random, kColumns * kDim, 1.0f);
  const std::vector<float> decay{0.9f, 0.5f, 1.0f, 0.1f, 0.7f}, beta{0.3f, 0.8f, 0.5f, 1.0f, 0.1f};
  std::vector<std::vector<float>> states, outs;
  for (const Kernels* kernel : {&native(), &scalar()}) {
    std::vector<float> s = start, out(kTokens * kColumns);
    kernel->delta_rule({s.data(), q.data(), k.data(), v.data(), decay.data(), beta.data(),
                        out.data(), kDim, kColumns, 1, 1, kColumns, kTokens, kColumns, kDim});
    states.push_back(s);
    outs.push_back(out);
  }
  EXPECT_TRUE(equal_bits(states[0], states[1]));
  EXPECT_TRUE(equal_bits(outs[0], outs[1]));
  std::vector<double> s(start.begin(), start.end());  // spec/qwen4exp.md §2 step 6 in f64
  for (int64_t t = 0; t < kTokens; ++t) {
    for (int64_t j = 0; j < kColumns; ++j) {
      double m = 0.0, o = 0.0;
      const auto at = [](int64_t row, int64_t i) { return static_cast<size_t>(row * kDim + i); };
      for (int64_t i = 0; i < kDim; ++i) {
        s[at(j, i)] *= static_cast<double>(decay[static_cast<size_t>(t)]);
        m += s[at(j, i)] * static_cast<double>(k[at(t, i)]);
      }
      const auto column = static_cast<size_t>(t * kColumns + j);
      const double d =
          static_cast<double>(beta[static_cast<size_t>(t)]) * (static_cast<double>(v[column]) - m);
      for (int64_t i = 0; i < kDim; ++i) {
        s[at(j, i)] += static_cast<double>(k[at(t, i)]) * d;
        o += s[at(j, i)] * static_cast<double>(q[at(t, i)]);
      }
      EXPECT_NEAR(static_cast<double>(outs[0][column]), o, 2e-6);
    }
  }
}

TEST(Kernels, HalfConversions) {
  std::vector<uint16_t> halves(65536);
  for (size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<uint16_t>(i);
  std::vector<float> fast(65536), slow(65536);
  native().from_half(halves.data(), fast.data(), 65536);
  scalar().from_half(halves.data(), slow.data(), 65536);
  std::vector<uint16_t> back(65536);
  scalar().to_half(slow.data(), back.data(), 65536);
  for (size_t i = 0; i < halves.size(); ++i) {
    if (std::isnan(slow[i])) {
      EXPECT_TRUE(std::isnan(fast[i]));
      continue;
    }
    ASSERT_TRUE(equal_bits(fast[i], slow[i])) << i;
    ASSERT_EQ(back[i], halves[i]);
  }
  std::mt19937 random(4);
  std::uniform_int_distribution<uint32_t> bits;
  std::vector<float> values(80000);
  for (size_t i = 0; i < values.size(); ++i) {
    uint32_t u = bits(random);
    if (i % 2 == 0) u = (u & 0x8fffffffu) | 0x30000000u;  // in and around the range of halves
    std::memcpy(&values[i], &u, 4);
    if (std::isnan(values[i])) values[i] = 0.0f;
  }
  std::vector<uint16_t> a(values.size()), b(values.size());
  native().to_half(values.data(), a.data(), static_cast<int64_t>(values.size()));
  scalar().to_half(values.data(), b.data(), static_cast<int64_t>(values.size()));
  EXPECT_EQ(a, b);
}

TEST(Kernels, ExpIsWithinTwoUlp) {
  double worst = 0.0;
  std::vector<float> x, y;
  for (double v = -87.3; v <= 88.37; v += 0.000731) x.push_back(static_cast<float>(v));
  x.push_back(0.0f);
  y.resize(x.size());
  native().exp(x.data(), y.data(), static_cast<int64_t>(x.size()));
  for (size_t i = 0; i < x.size(); ++i) {
    worst = std::max(worst, ulps(y[i], std::exp(static_cast<double>(x[i]))));
  }
  EXPECT_LE(worst, 2.0);
  RecordProperty("worst_ulp", std::to_string(worst));
  EXPECT_EQ(y.back(), 1.0f);
}

TEST(Kernels, ExpAtTheEdges) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> x{-infinity, -1e30f, -88.0f, 1e30f, infinity, std::nanf(""), -0.0f};
  for (const Kernels* kernel : {&native(), &scalar()}) {
    std::vector<float> y(x.size());
    kernel->exp(x.data(), y.data(), static_cast<int64_t>(x.size()));
    EXPECT_EQ(y[0], 0.0f);
    EXPECT_EQ(y[1], 0.0f);
    EXPECT_EQ(y[2], 0.0f);
    EXPECT_GT(y[3], 2e38f);
    EXPECT_GT(y[4], 2e38f);
    EXPECT_TRUE(std::isnan(y[5]));
    EXPECT_EQ(y[6], 1.0f);
  }
}

TEST(Softplus, Accuracy) {
  for (double v = -80.0; v <= 25.0; v += 0.0137) {
    const auto x = static_cast<float>(v);
    const double exact =
        x > 20.0f ? static_cast<double>(x) : std::log1p(std::exp(static_cast<double>(x)));
    EXPECT_LE(ulps(ops::softplus(x), exact), 3.0) << v;
  }
  EXPECT_EQ(ops::softplus(20.5f), 20.5f);
  EXPECT_TRUE(std::isnan(ops::softplus(std::nanf(""))));
}

}  // namespace
}  // namespace penstock::testing
