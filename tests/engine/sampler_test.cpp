#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "base/error.h"

namespace penstock::engine {
namespace {

const std::vector<float> kLogits = {1.0f, 3.0f, 2.0f, 3.0f, -1.0f};

std::map<int32_t, int> draw(SamplerOptions options, int n) {
  std::map<int32_t, int> counts;
  Sampler sampler(options);
  for (int i = 0; i < n; ++i) ++counts[sampler.sample(kLogits).id];
  return counts;
}

TEST(Sampler, GreedyTakesTheLowestOfTheLargest) {
  Sampler sampler({});
  const SampledToken token = sampler.sample(kLogits);
  EXPECT_EQ(token.id, 1);
  double total = 0;
  for (float logit : kLogits) total += std::exp(static_cast<double>(logit));
  EXPECT_NEAR(token.logprob, 3.0 - std::log(total), 1e-6);
}

TEST(Sampler, TheSameSeedGivesTheSameTokens) {
  SamplerOptions options{.temperature = 1.0f, .seed = 42};
  Sampler a(options);
  Sampler b(options);
  options.seed = 43;
  Sampler c(options);
  int differences = 0;
  for (int i = 0; i < 200; ++i) {
    const int32_t token = a.sample(kLogits).id;
    EXPECT_EQ(token, b.sample(kLogits).id);
    differences += token != c.sample(kLogits).id;
  }
  EXPECT_GT(differences, 20);
}

TEST(Sampler, DrawsFollowTheSoftmax) {
  const int n = 20000;
  auto counts = draw({.temperature = 2.0f, .seed = 1}, n);
  double total = 0;
  for (float logit : kLogits) total += std::exp(static_cast<double>(logit) / 2);
  for (int32_t id = 0; id < 5; ++id) {
    const double p = std::exp(static_cast<double>(kLogits[static_cast<size_t>(id)]) / 2) / total;
    EXPECT_NEAR(counts[id] / static_cast<double>(n), p, 4 * std::sqrt(p * (1 - p) / n)) << id;
  }
}

TEST(Sampler, TopKTopPMinPCutTheTail) {
  EXPECT_EQ(draw({.temperature = 5.0f, .top_k = 3, .seed = 1}, 2000).count(0), 0U);
  EXPECT_EQ(draw({.temperature = 5.0f, .top_k = 3, .seed = 1}, 2000).count(2), 1U);
  // At temperature 1 the two largest hold 79 % of the probability.
  EXPECT_EQ(draw({.temperature = 1.0f, .top_p = 0.75f, .seed = 1}, 2000).size(), 2U);
  EXPECT_EQ(draw({.temperature = 1.0f, .top_p = 1e-6f, .seed = 1}, 100).size(), 1U);
  // exp(-1) = 0.37 of the largest stays, exp(-2) = 0.14 goes.
  EXPECT_EQ(draw({.temperature = 1.0f, .min_p = 0.3f, .seed = 1}, 2000).size(), 3U);
}

TEST(Sampler, Penalties) {
  Sampler repetition({.repetition_penalty = 4.0f});
  repetition.see_prompt(std::vector<int32_t>{1, 3, 3});
  EXPECT_EQ(repetition.sample(kLogits).id, 2);  // 3/4 < 2, counted once however often it occurs
  EXPECT_EQ(repetition.sample(kLogits).id, 0);  // 2 fell to 0.5, then 1 leads
  Sampler presence({.presence_penalty = 0.5f});
  EXPECT_EQ(presence.sample(kLogits).id, 1);
  EXPECT_EQ(presence.sample(kLogits).id, 3);
  EXPECT_EQ(presence.sample(kLogits).id, 1);  // both at 2.5: the lower id
  Sampler frequency({.frequency_penalty = 0.6f});
  EXPECT_EQ(frequency.sample(kLogits).id, 1);
  EXPECT_EQ(frequency.sample(kLogits).id, 3);
  EXPECT_EQ(frequency.sample(kLogits).id, 1);
  EXPECT_EQ(frequency.sample(kLogits).id, 3);
  EXPECT_EQ(frequency.sample(kLogits).id, 2);  // 3 - 2 * 0.6 < 2
}

TEST(Sampler, NonFiniteLogitsEndTheRun) {
  for (float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    std::vector<float> logits = kLogits;
    logits[4] = bad;
    Sampler sampler({});
    try {
      sampler.sample(logits);
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::Numeric);
    }
  }
}

TEST(Sampler, RefusesValuesOutOfRange) {
  EXPECT_THROW(Sampler({.temperature = -1}), Error);
  EXPECT_THROW(Sampler({.top_k = -1}), Error);
  EXPECT_THROW(Sampler({.top_p = 0}), Error);
  EXPECT_THROW(Sampler({.top_p = 1.5f}), Error);
  EXPECT_THROW(Sampler({.min_p = 2}), Error);
  EXPECT_THROW(Sampler({.repetition_penalty = 0}), Error);
}

TEST(TopLogprobs, LargestFirst) {
  const auto top = top_logprobs(kLogits, 3);
  ASSERT_EQ(top.size(), 3U);
  EXPECT_EQ(top[0].id, 1);
  EXPECT_EQ(top[1].id, 3);
  EXPECT_EQ(top[2].id, 2);
  EXPECT_FLOAT_EQ(top[0].logprob - top[2].logprob, 1.0f);
}

}  // namespace
}  // namespace penstock::engine
