#include "experts/route.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "experts/stream.h"

namespace penstock::experts {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Routed {
  bool ok;
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

Routed route(const std::vector<float>& logits, const RouteRule& rule) {
  std::vector<float> p(logits.size());
  Routed r{false, std::vector<int32_t>(static_cast<size_t>(rule.n_used)),
           std::vector<float>(static_cast<size_t>(rule.n_used))};
  r.ok = route_row(logits, rule, p.data(), r.ids.data(), r.weights.data());
  return r;
}

// Written from spec/streaming.md §F.1: probabilities, a full sort, the weights of the first K.
Routed reference(const std::vector<float>& logits, const RouteRule& rule) {
  const float maximum = *std::max_element(logits.begin(), logits.end());
  std::vector<float> p(logits.size());
  float sum = 0;
  for (size_t e = 0; e < p.size(); ++e) {
    p[e] = std::exp(logits[e] - maximum);
    sum += p[e];
  }
  for (float& x : p) x /= sum;
  std::vector<int32_t> order(p.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    const auto i = static_cast<size_t>(a), j = static_cast<size_t>(b);
    return p[i] != p[j] ? p[i] > p[j] : logits[i] > logits[j];
  });
  order.resize(static_cast<size_t>(rule.n_used));
  float selected = 0;
  for (const int32_t e : order) selected += p[static_cast<size_t>(e)];
  Routed r{true, order, {}};
  for (const int32_t e : order) {
    r.weights.push_back(p[static_cast<size_t>(e)] / (rule.renormalise ? selected : 1.0f) *
                        rule.scale);
  }
  return r;
}

TEST(Route, EqualsTheReferenceOnEveryShape) {
  std::mt19937 random(3);
  for (const int n : {8, 128, 255, 256, 288, 512}) {
    for (const int k : {1, 2, 8}) {
      for (const float spread : {0.1f, 2.0f, 40.0f}) {
        std::normal_distribution<float> normal(0, spread);
        for (int i = 0; i < 200; ++i) {
          std::vector<float> logits(static_cast<size_t>(n));
          for (float& z : logits) z = normal(random);
          if (i % 3 == 0) {  // duplicates, of the maximum too
            for (float& z : logits) z = std::round(z);
          }
          if (i % 7 == 0) logits[static_cast<size_t>(random()) % logits.size()] = -kInf;
          const RouteRule rule{k, i % 2 == 0, i % 5 == 0 ? 2.5f : 1.0f};
          const Routed got = route(logits, rule);
          const Routed want = reference(logits, rule);
          ASSERT_TRUE(got.ok);
          ASSERT_EQ(got.ids, want.ids) << n << " " << k << " " << spread;
          ASSERT_EQ(got.weights, want.weights);
        }
      }
    }
  }
}

TEST(Route, TiesGoToTheLowerIndex) {
  const Routed r = route({1, 3, 3, 1, 3, 3}, {3, true, 1.0f});
  EXPECT_EQ(r.ids, (std::vector<int32_t>{1, 2, 4}));
  EXPECT_EQ(route({0, 0, 0, 0}, {4, true, 1.0f}).ids, (std::vector<int32_t>{0, 1, 2, 3}));
}

TEST(Route, WeightsSumToOneWhenRenormalised) {
  const Routed r = route({2, 1, 0, -1}, {2, true, 1.0f});
  EXPECT_NEAR(r.weights[0] + r.weights[1], 1.0f, 1e-6f);
  EXPECT_NEAR(r.weights[0] / r.weights[1], std::exp(1.0f), 1e-5f);
  const Routed plain = route({2, 1, 0, -1}, {2, false, 1.0f});
  EXPECT_LT(plain.weights[0] + plain.weights[1], 0.95f);
}

TEST(Route, RefusesWhatIsNotFinite) {
  for (const std::vector<float>& logits :
       {std::vector<float>{0, kNan, 1}, {kNan, 0, 1}, {0, 1, kInf}, {-kInf, -kInf, -kInf}}) {
    EXPECT_FALSE(route(logits, {2, true, 1.0f}).ok);
  }
}

}  // namespace
}  // namespace penstock::experts
