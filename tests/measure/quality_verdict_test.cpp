// Which measurements let a speed be quoted.
#include "measure/quality_verdict.h"

#include <gtest/gtest.h>

namespace penstock::measure {
namespace {

using Json = nlohmann::json;

// Of model m with cache-aware routing, against m itself.
Json kld(double mean_kld, double same_top, double ln_high) {
  return {{"kind", "kld"},
          {"model_id", "m"},
          {"base_model_id", "m"},
          {"quality_key", "k"},
          {"base_key", "b"},
          {"text_sha256", "t"},
          {"quality_settings", {{"moce", "bonus"}}},
          {"mean_kld", mean_kld},
          {"same_top", same_top},
          {"ln_ppl_ratio_interval", {ln_high - 0.01, ln_high}},
          {"routing", {{"replaced_share", 0.2}}}};
}

const Json kTasks = {{"kind", "tasks"}, {"accuracy", 0.9}};

template <typename... Each>
Json list(const Each&... each) {
  Json out = Json::array();
  (out.push_back(each), ...);
  return out;
}

QualityVerdict verdict(const Json& list, bool cache_aware = true,
                       const Json& others = Json::array()) {
  return judge_quality(list, cache_aware, others).verdict;
}

TEST(QualityVerdict, BothTiersAreNeeded) {
  EXPECT_EQ(verdict(Json::array(), false), QualityVerdict::Unmeasured);
  EXPECT_EQ(verdict(list(Json{{"kind", "perplexity"}, {"ppl", 4.0}}), false),
            QualityVerdict::Incomplete);
  EXPECT_EQ(verdict(list(kTasks), false), QualityVerdict::Incomplete);
  EXPECT_EQ(verdict(list(kld(0.5, 0.5, 1)), false), QualityVerdict::Incomplete);
  // Without cache-aware routing there is no limit: the figures stand beside the speed.
  EXPECT_EQ(verdict(list(kld(0.5, 0.5, 1), kTasks), false), QualityVerdict::Passed);
  Json no_top = kld(0.01, 0.995, 0.01);
  no_top.erase("same_top");
  EXPECT_EQ(verdict(list(no_top, kTasks)), QualityVerdict::Incomplete);
}

TEST(QualityVerdict, CacheAwareRoutingKeepsWithinItsLimits) {
  EXPECT_EQ(verdict(list(kld(0.02, 0.99, 0.02), kTasks)), QualityVerdict::Passed);
  EXPECT_EQ(verdict(list(kld(0.0201, 0.995, 0.01), kTasks)), QualityVerdict::Failed);
  EXPECT_EQ(verdict(list(kld(0.01, 0.9899, 0.01), kTasks)), QualityVerdict::Failed);
  EXPECT_EQ(verdict(list(kld(0.01, 0.995, 0.0201), kTasks)), QualityVerdict::Failed);
  // A figure that is not there is not within its limit; and what fails has failed without tasks.
  Json no_ratio = kld(0.01, 0.995, 0.01);
  no_ratio.erase("ln_ppl_ratio_interval");
  EXPECT_EQ(verdict(list(no_ratio)), QualityVerdict::Failed);
  const QualityJudgement judged = judge_quality(list(kld(0.564, 0.798, 1)), true);
  EXPECT_EQ(judged.text(), "failed: mean KLD 0.564, at most 0.02");
  EXPECT_FALSE(judged.publishable());
}

TEST(QualityVerdict, AnotherBaseIsComparedWithExactRouting) {
  Json bent = kld(0.115, 0.90, 0.05);
  bent["base_model_id"] = "original";
  EXPECT_EQ(verdict(list(bent, kTasks)), QualityVerdict::Incomplete);
  Json plain = kld(0.1, 0.905, 0.045);
  plain["base_model_id"] = "original";
  plain["quality_settings"]["moce"] = "off";
  plain["ln_ppl_ratio_interval"] = {0.035, 0.045};
  EXPECT_EQ(verdict(list(bent, kTasks), true, list(plain)), QualityVerdict::Passed);
  plain["mean_kld"] = 0.09;
  EXPECT_EQ(verdict(list(bent, kTasks), true, list(plain)), QualityVerdict::Failed);
  plain["mean_kld"] = 0.1;
  plain["text_sha256"] = "another";
  EXPECT_EQ(verdict(list(bent, kTasks), true, list(plain)), QualityVerdict::Incomplete);
  // A base that was itself routed that way says nothing.
  Json itself = kld(0, 1, 0);
  itself["base_key"] = "k";
  EXPECT_EQ(verdict(list(itself, kTasks)), QualityVerdict::Incomplete);
}

TEST(QualityVerdict, SharesOfReplacedSlotsAreClose) {
  const Json measured = list(kld(0.01, 0.995, 0.01));
  EXPECT_FALSE(other_routing(0.21, measured).has_value());
  EXPECT_TRUE(other_routing(0.23, measured).has_value());
  EXPECT_TRUE(other_routing(0.2, list(kTasks)).has_value());  // it does not say
  const Json record = {
      {"counters",
       list(Json{{"at", "end"},
                 {"counters",
                  {{"cache_aware_routing", {{"total", {{"replaced", 3}, {"slots", 12}}}}}}}})}};
  EXPECT_EQ(replaced_share(record), 0.25);
  EXPECT_FALSE(replaced_share({{"counters", Json::array()}}).has_value());
}

}  // namespace
}  // namespace penstock::measure
