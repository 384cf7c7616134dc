#include "ops/elementwise.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cmath>
#include <limits>

#include "base/memory.h"
#include "ops/matmul.h"
#include "ops/recurrent.h"
#include "ops/support.h"

namespace penstock::testing {
namespace {

TEST(RmsNorm, GroupsAndWeights) {
  TestContext context(2);
  std::mt19937 random(7);
  Table x(3, 96), y(3, 96);
  x.fill(random);
  std::vector<float> whole(96), repeated(32);
  for (size_t i = 0; i < 96; ++i) whole[i] = 0.5f + static_cast<float>(i) * 0.01f;
  for (size_t i = 0; i < 32; ++i) repeated[i] = 2.0f - static_cast<float>(i) * 0.01f;
  for (const bool each : {false, true}) {
    ops::rms_norm(context.context,
                  {each ? repeated.data() : whole.data(), each ? 32 : 96, 32, 1e-6f}, x.rows,
                  y.rows);
    for (int64_t r = 0; r < 3; ++r) {
      for (int64_t i = 0; i < 96; ++i) {
        double sum = 0.0;
        for (int64_t j = i / 32 * 32; j < i / 32 * 32 + 32; ++j) {
          sum += static_cast<double>(x.rows[r][j]) * static_cast<double>(x.rows[r][j]);
        }
        const auto w = static_cast<double>(each ? repeated[static_cast<size_t>(i % 32)]
                                                : whole[static_cast<size_t>(i)]);
        EXPECT_NEAR(static_cast<double>(y.rows[r][i]),
                    static_cast<double>(x.rows[r][i]) / std::sqrt(sum / 32 + 1e-6) * w, 1e-6);
      }
    }
  }
}

TEST(Rope, PartialNeox) {
  TestContext context(1);
  const ops::Rope rope(8, 1e7, {});
  Table cosine(1, 4), sine(1, 4), x(1, 16), y(1, 16);
  rope.angles(context.context, 23, 1, cosine.rows, sine.rows);
  std::mt19937 random(8);
  x.fill(random);
  const ops::Angles angles{cosine.rows, sine.rows};
  ops::norm_rotate(context.context, {}, &angles, {0, 16, 1, 16}, x.rows, y.rows);
  for (int64_t i = 0; i < 4; ++i) {
    const double angle = 23.0 * std::pow(1e7, -2.0 * static_cast<double>(i) / 8.0);
    const auto a = static_cast<double>(x.rows[0][i]), b = static_cast<double>(x.rows[0][i + 4]);
    EXPECT_NEAR(static_cast<double>(y.rows[0][i]), a * std::cos(angle) - b * std::sin(angle), 3e-6);
    EXPECT_NEAR(static_cast<double>(y.rows[0][i + 4]), b * std::cos(angle) + a * std::sin(angle),
                3e-6);
  }
  for (int64_t i = 8; i < 16; ++i) EXPECT_EQ(x.rows[0][i], y.rows[0][i]);
}

// spec/moe-architectures.md §1.3 and §5: factor 32 over 4096 tokens, base 150000: the ramp runs
// from pair 8 to pair 18, cos and sin grow by 1.3465736.
TEST(Rope, Yarn) {
  TestContext context(1);
  const ops::RopeScaling yarn{ops::RopeScaling::Type::Yarn, 32.0, 4096.0, 32.0, 1.0, 1.0};
  const ops::Rope rope(64, 150000.0, yarn);
  const ops::Rope plain(64, 150000.0, {});
  const auto scaled = rope.inverse_frequencies(), unscaled = plain.inverse_frequencies();
  for (size_t i = 0; i < 32; ++i) {
    const double ratio = static_cast<double>(scaled[i]) / static_cast<double>(unscaled[i]);
    const double ramp = std::clamp((static_cast<double>(i) - 8.0) / 10.0, 0.0, 1.0);
    EXPECT_NEAR(ratio, ramp / 32.0 + 1.0 - ramp, 1e-6) << i;
  }
  Table cosine(1, 32), sine(1, 32);
  rope.angles(context.context, 0, 1, cosine.rows, sine.rows);
  EXPECT_NEAR(static_cast<double>(cosine.rows[0][0]), 1.3465736, 1e-6);
  const ops::Rope linear(64, 150000.0, {ops::RopeScaling::Type::Linear, 4.0});
  EXPECT_EQ(linear.inverse_frequencies()[0], 0.25f);
}

TEST(SignedRootGate, ClampsBeforeTheRoot) {
  TestContext context(1);
  Table k(1, 16), q(1, 16), v(1, 8), y(1, 16);
  std::mt19937 random(9);
  v.fill(random);
  std::fill_n(k.rows[0], 8, 0.5f);
  std::fill_n(q.rows[0], 8, -1.0f);
  std::fill_n(k.rows[0] + 8, 8, 0.0f);
  std::fill_n(q.rows[0] + 8, 8, 1.0f);
  ops::signed_root_gate(context.context, k.rows, q.rows, v.rows, 2, y.rows);
  const double s = -4.0 / std::sqrt(8.0);
  const double gate = 1.0 / (1.0 + std::exp(std::sqrt(-s)));
  for (int64_t i = 0; i < 8; ++i) {
    EXPECT_NEAR(static_cast<double>(y.rows[0][i]), gate * static_cast<double>(v.rows[0][i]), 1e-7);
    EXPECT_NEAR(static_cast<double>(y.rows[0][i + 8]), 0.5 * static_cast<double>(v.rows[0][i]),
                1e-7);
  }
}

TEST(Convolution, ChunksAndDilation) {
  std::mt19937 random(10);
  constexpr int64_t kRows = 14, kWidth = 12;
  for (const int dilation : {1, 3}) {
    Table x(kRows, kWidth), w(4, kWidth), whole(kRows, kWidth), parts(kRows, kWidth);
    x.fill(random);
    w.fill(random);
    const ops::Convolution conv{w.data.data(), 4, dilation};
    const auto n_history = static_cast<size_t>(conv.history_rows() * kWidth);
    TestContext context(2);
    std::vector<float> history(n_history, 0.0f);
    ops::causal_conv(context.context, conv, history.data(), x.rows, whole.rows);
    for (int64_t t = 0; t < kRows; ++t) {
      for (int64_t c = 0; c < kWidth; ++c) {
        double sum = 0.0;
        for (int i = 0; i < 4; ++i) {
          const int64_t source = t - dilation * (3 - i);
          if (source < 0) continue;
          sum += static_cast<double>(w.rows[i][c]) * static_cast<double>(x.rows[source][c]);
        }
        EXPECT_NEAR(static_cast<double>(whole.rows[t][c]), sum / (1.0 + std::exp(-sum)), 1e-6);
      }
    }
    int64_t at = 0;
    for (const int64_t n : {1, 2, 7, 1, 3}) {
      const ops::Rows in = x.rows.from(at, n);
      ops::causal_conv(context.context, conv, history.data(), in, parts.rows.from(at, n));
      ops::push_history(history.data(), conv.history_rows(), in);
      at += n;
    }
    EXPECT_TRUE(whole.same_bits(parts)) << dilation;
  }
}

TEST(MeanBlocks, AcrossCalls) {
  TestContext context(1);
  std::mt19937 random(11);
  Table x(11, 8), whole(2, 8), parts(2, 8);
  x.fill(random);
  std::vector<float> history(3 * 8, 0.0f);
  ops::mean_blocks(context.context, history.data(), x.rows, 0, 4, whole.rows);
  int64_t at = 0;
  for (const int64_t n : {3, 2, 1, 4, 1}) {
    const ops::Rows in = x.rows.from(at, n);
    const int64_t first = at / 4, complete = (at + n) / 4 - first;
    if (complete > 0) {
      ops::mean_blocks(context.context, history.data(), in, at, 4,
                       parts.rows.from(first, complete));
    }
    ops::push_history(history.data(), 3, in);
    at += n;
  }
  EXPECT_TRUE(whole.same_bits(parts));
}

TEST(WeightedSum, InRankOrder) {
  TestContext context(2);
  std::mt19937 random(12);
  Table outputs(6, 2000), y(2, 2000);
  outputs.fill(random);
  const std::vector<float> weights{0.5f, 0.25f, 0.25f, 0.1f, 0.2f, 0.7f};
  ops::weighted_sum(context.context, weights, 3, outputs.rows, y.rows);
  for (int64_t r = 0; r < 2; ++r) {
    const auto w = [&](int64_t i) { return weights[static_cast<size_t>(r * 3 + i)]; };
    for (int64_t i = 0; i < 2000; ++i) {
      float sum = w(0) * outputs.rows[r * 3][i];
      sum = std::fma(w(1), outputs.rows[r * 3 + 1][i], sum);
      sum = std::fma(w(2), outputs.rows[r * 3 + 2][i], sum);
      ASSERT_EQ(y.rows[r][i], sum);
    }
  }
}

TEST(Matmul, SeveralMatricesAnyThreads) {
  std::mt19937 random(13);
  constexpr int64_t kIn = 72, kRows = 150;
  Table w(203, kIn), u(5, kIn), x(kRows, kIn);
  w.fill(random);
  u.fill(random);
  x.fill(random);
  const auto matrix = [](const Table& t, const char* name) {
    return ops::Matrix{gguf::TypeId::F32, reinterpret_cast<const std::byte*>(t.data.data()),
                       kIn * 4,           kIn,
                       t.rows.count,      name};
  };
  const ops::Matrix a = matrix(w, "a"), b = matrix(u, "b");
  std::vector<Table> results;
  for (const int threads : {1, 3}) {
    for (const int64_t n : {int64_t{1}, kRows}) {
      TestContext context(threads);
      ops::Layout counted;
      ops::Activations(counted, kRows, kIn);
      Mapping memory(counted.bytes(), Pages::Small);
      ops::Layout layout(memory.data());
      ops::Activations input(layout, kRows, kIn);
      std::vector<float*> outs(2 * kRows);
      Table ya(kRows, 203), yb(kRows, 5);
      for (int64_t at = 0; at < kRows; at += n) {
        input.set(x.rows.from(at, n));
        const ops::Product products[] = {{&a, ya.rows.from(at, n)}, {&b, yb.rows.from(at, n)}};
        ops::matmul(context.context, input, products, outs);
      }
      results.push_back(ya);
      results.push_back(yb);
    }
  }
  for (size_t i = 2; i < results.size(); ++i) {
    EXPECT_TRUE(results[i].same_bits(results[i % 2])) << i;
  }
  double sum = 0.0;
  for (int64_t i = 0; i < kIn; ++i) {
    sum += static_cast<double>(w.rows[7][i]) * static_cast<double>(x.rows[9][i]);
  }
  EXPECT_NEAR(static_cast<double>(results[0].rows[9][7]), sum, 1e-5);
}

// A router of 256 rows whose logits stand 512 apart (spec/streaming.md §G.2): no row past the last
// is read, where a page that cannot be touched begins, and nothing past a row's end is written.
TEST(Matmul, ReadsAndWritesTheMatrixRowsAndNoMore) {
  std::mt19937 random(17);
  constexpr int64_t kIn = 64, kOut = 256, kStride = 512;
  constexpr size_t kBytes = kOut * kIn * sizeof(float);
  const Mapping memory(2 * kBytes, Pages::Small);
  auto* weights = memory.as<float>();
  std::uniform_real_distribution<float> value(-1.0f, 1.0f);
  for (int64_t i = 0; i < kOut * kIn; ++i) weights[i] = value(random);
  ASSERT_EQ(::mprotect(memory.data() + kBytes, kBytes, PROT_NONE), 0);
  const ops::Matrix router{gguf::TypeId::F32, memory.data(), kIn * 4, kIn, kOut, "router"};
  for (const int64_t n : {int64_t{1}, int64_t{3}, int64_t{150}}) {
    TestContext context(2);
    Table x(n, kIn), y(n, kStride);
    x.fill(random);
    std::fill(y.data.begin(), y.data.end(), std::numeric_limits<float>::quiet_NaN());
    ops::Layout counted;
    ops::Activations(counted, n, kIn);
    Mapping scratch(counted.bytes(), Pages::Small);
    ops::Layout layout(scratch.data());
    ops::Activations input(layout, n, kIn);
    input.set(x.rows);
    std::vector<float*> outs(static_cast<size_t>(n));
    const ops::Product products[] = {{&router, y.rows.columns(0, kOut)}};
    ops::matmul(context.context, input, products, outs);
    for (int64_t t = 0; t < n; ++t) {
      for (int64_t r = 0; r < kStride; ++r) {
        ASSERT_EQ(std::isnan(y.rows[t][r]), r >= kOut) << n << " rows: " << t << ", " << r;
      }
    }
  }
}

}  // namespace
}  // namespace penstock::testing
