#include "surgery/choose.h"

#include <limits>

#include "gguf/raw_gguf.h"

namespace penstock::surgery {
namespace {

using gguf::test::error_of;

MoeLayer layer_of(int block, uint64_t n_expert, uint64_t n_used, uint64_t n_groups = 1,
                  uint64_t n_groups_used = 1) {
  MoeLayer layer;
  layer.layer = block;
  layer.n_expert = n_expert;
  layer.n_used = n_used;
  layer.n_groups = n_groups;
  layer.n_groups_used = n_groups_used;
  return layer;
}

struct Measured {
  uint64_t n;
  double p, a, ga;
  float max_abs = 1;
};

LayerStats stats_of(int layer, const std::vector<Measured>& experts) {
  LayerStats stats;
  stats.layer = layer;
  for (const Measured& m : experts) {
    ExpertSums sums;
    sums.n = m.n;
    sums.p.add(m.p);
    sums.a.add(m.a);
    sums.ga.add(m.ga);
    sums.max_abs = m.max_abs;
    stats.experts.push_back(sums);
  }
  return stats;
}

ExpertStats one_layer() {
  ExpertStats stats;
  //                    n   p    a    ga
  stats.layers = {stats_of(5, {{10, 1.0, 40, 20},    // mean ga 2, mean a 4
                               {2, 0.5, 10, 6},      // 3, 5
                               {40, 4.0, 40, 30},    // 0.75, 1
                               {0, 0.25, 0, 0},      // never
                               {8, 3.0, 64, 12}})};  // 1.5, 8
  return stats;
}

std::vector<uint32_t> kept_by(Method method, uint64_t keep) {
  const ExpertStats stats = one_layer();
  const std::vector<MoeLayer> layers = {layer_of(5, 5, 1)};
  ChooseOptions options;
  options.method = method;
  options.keep = keep;
  return choose(layers, &stats, options)[0].kept.kept;
}

TEST(Choose, EveryMethodRanksByItsMeasure) {
  using Ids = std::vector<uint32_t>;
  EXPECT_EQ(kept_by(Method::Reap, 2), (Ids{0, 1}));
  EXPECT_EQ(kept_by(Method::Reap, 3), (Ids{0, 1, 4}));
  EXPECT_EQ(kept_by(Method::ReapSum, 2), (Ids{0, 2}));
  EXPECT_EQ(kept_by(Method::Ean, 2), (Ids{1, 4}));
  EXPECT_EQ(kept_by(Method::Frequency, 3), (Ids{0, 2, 4}));
  EXPECT_EQ(kept_by(Method::Mass, 2), (Ids{2, 4}));
  EXPECT_EQ(kept_by(Method::Reap, 5), (Ids{0, 1, 2, 3, 4}));
  for (const std::string_view name : {"reap", "reap-sum", "ean", "frequency", "mass", "random"}) {
    Method method{};
    ASSERT_TRUE(parse_method(name, &method));
    EXPECT_EQ(method_name(method), name);
  }
  Method method{};
  EXPECT_FALSE(parse_method("best", &method));
}

TEST(Choose, TellsWhatIsRetained) {
  const ExpertStats stats = one_layer();
  const std::vector<MoeLayer> layers = {layer_of(5, 5, 1)};
  ChooseOptions options;
  options.keep = 2;
  const LayerChoice choice = choose(layers, &stats, options)[0];
  EXPECT_DOUBLE_EQ(choice.retained_mass, 1.5 / 8.75);
  EXPECT_DOUBLE_EQ(choice.retained_reap, 26.0 / 68.0);
  EXPECT_EQ(choice.n_never, 1u);
  const KeptLayer given{5, 5, {2, 4}};
  const LayerChoice judged = judge(std::span(&given, 1), &stats)[0];
  EXPECT_DOUBLE_EQ(judged.retained_mass, 7.0 / 8.75);
  EXPECT_DOUBLE_EQ(judged.retained_reap, 42.0 / 68.0);
}

TEST(Choose, TiesGoToTheLowerId) {
  ExpertStats stats;
  stats.layers = {stats_of(0, std::vector<Measured>(6, {3, 1, 6, 3}))};
  const std::vector<MoeLayer> layers = {layer_of(0, 6, 2)};
  ChooseOptions options;
  options.keep = 3;
  EXPECT_EQ(choose(layers, &stats, options)[0].kept.kept, (std::vector<uint32_t>{0, 1, 2}));
  options.share = 0.5;
  options.keep = 0;
  EXPECT_EQ(choose(layers, &stats, options)[0].kept.kept, (std::vector<uint32_t>{0, 1, 2}));
}

TEST(Choose, RandomDependsOnTheSeedAlone) {
  const std::vector<MoeLayer> layers = {layer_of(0, 64, 2), layer_of(1, 64, 2)};
  ChooseOptions options;
  options.method = Method::Random;
  options.keep = 32;
  options.seed = 7;
  const auto first = choose(layers, nullptr, options);
  EXPECT_EQ(choose(layers, nullptr, options)[1].kept, first[1].kept);
  EXPECT_NE(first[0].kept.kept, first[1].kept.kept);
  options.seed = 8;
  EXPECT_NE(choose(layers, nullptr, options)[0].kept.kept, first[0].kept.kept);
  for (const LayerChoice& choice : first) {
    EXPECT_EQ(choice.kept.kept.size(), 32u);
    EXPECT_TRUE(std::is_sorted(choice.kept.kept.begin(), choice.kept.kept.end()));
  }
}

// Layer 0 has its score in few experts, layer 1 spread over all 40.
TEST(Choose, PerLayerBudgetFollowsTheSharesAboveAFloor) {
  ExpertStats stats;
  std::vector<Measured> peaked(40, {1, 1, 1, 0.001}), flat(40, {1, 1, 1, 5});
  for (size_t e = 0; e < 4; ++e) peaked[10 * e].ga = 100;
  stats.layers = {stats_of(0, peaked), stats_of(1, flat)};
  const std::vector<MoeLayer> layers = {layer_of(0, 40, 4), layer_of(1, 40, 10)};
  ChooseOptions options;
  options.per_layer = true;
  options.keep = 24;  // 48 in all; floors 16 and 20, the rest to the flat layer
  auto choices = choose(layers, &stats, options);
  EXPECT_EQ(choices[0].kept.kept.size(), 16u);
  EXPECT_EQ(choices[1].kept.kept.size(), 32u);
  for (const uint32_t e : {0u, 10u, 20u, 30u}) {
    EXPECT_EQ(std::count(choices[0].kept.kept.begin(), choices[0].kept.kept.end(), e), 1) << e;
  }
  options.keep = 36;  // 72: the flat layer is whole at 40, and 32 are left
  choices = choose(layers, &stats, options);
  EXPECT_EQ(choices[0].kept.kept.size(), 32u);
  EXPECT_EQ(choices[1].kept.kept.size(), 40u);
  options.keep = 17;
  EXPECT_CONTAINS(error_of(ErrorKind::Usage, [&] { choose(layers, &stats, options); }), "floors");
  // Fewer experts than the floor: all of them.
  stats.layers = {stats_of(0, std::vector<Measured>(8, {1, 1, 1, 1})), stats_of(1, flat)};
  const std::vector<MoeLayer> small = {layer_of(0, 8, 4), layer_of(1, 40, 10)};
  options.keep = 0;
  options.share = 0.75;  // 6 + 30
  choices = choose(small, &stats, options);
  EXPECT_EQ(choices[0].kept.kept.size(), 8u);
  EXPECT_EQ(choices[1].kept.kept.size(), 28u);
}

TEST(Choose, OutliersAreProtected) {
  ExpertStats stats;
  std::vector<Measured> experts(1000, {1, 1, 1, 1, 1.0f});
  for (size_t e = 0; e < experts.size(); ++e) experts[e].ga = 1000.0 - static_cast<double>(e);
  experts[900].max_abs = 50;
  experts[901].max_abs = 200;
  experts[902].max_abs = 19;  // above the percentile, below a tenth of the largest
  stats.layers = {stats_of(0, experts)};
  EXPECT_DOUBLE_EQ(outlier_threshold(stats), 20.0);
  const std::vector<MoeLayer> layers = {layer_of(0, 1000, 1)};
  ChooseOptions options;
  options.keep = 10;
  options.protect_outliers = true;
  const LayerChoice choice = choose(layers, &stats, options)[0];
  EXPECT_EQ(choice.kept.kept, (std::vector<uint32_t>{0, 1, 2, 3, 4, 5, 6, 7, 900, 901}));
  EXPECT_EQ(choice.n_protected, 2u);
  options.keep = 1;
  EXPECT_CONTAINS(error_of(ErrorKind::Usage, [&] { choose(layers, &stats, options); }),
                  "2 experts with outliers");
  // Without a long tail the percentile decides.
  for (size_t e = 0; e < experts.size(); ++e) experts[e].max_abs = static_cast<float>(e);
  stats.layers = {stats_of(0, experts)};
  EXPECT_DOUBLE_EQ(outlier_threshold(stats), 0.995 * 999);
}

TEST(Choose, RoutingGroupsKeepEqualNumbers) {
  ExpertStats stats;
  stats.layers = {stats_of(0, {{1, 1, 1, 9},
                               {1, 1, 1, 8},
                               {1, 1, 1, 7},
                               {1, 1, 1, 6},
                               {1, 1, 1, 1},
                               {1, 1, 1, 2},
                               {1, 1, 1, 3},
                               {1, 1, 1, 4}})};
  const std::vector<MoeLayer> layers = {layer_of(0, 8, 2, 2, 1)};
  ChooseOptions options;
  options.keep = 4;
  EXPECT_EQ(choose(layers, &stats, options)[0].kept.kept, (std::vector<uint32_t>{0, 1, 6, 7}));
  options.keep = 5;
  EXPECT_CONTAINS(error_of(ErrorKind::Usage, [&] { choose(layers, &stats, options); }),
                  "multiple of 2");
  options.keep = 4;
  options.per_layer = true;
  EXPECT_CONTAINS(error_of(ErrorKind::Usage, [&] { choose(layers, &stats, options); }),
                  "--per-layer");
}

TEST(Choose, RefusesCountsThatCannotBe) {
  const ExpertStats stats = one_layer();
  const std::vector<MoeLayer> layers = {layer_of(5, 5, 3)};
  ChooseOptions options;
  options.keep = 2;
  EXPECT_CONTAINS(error_of(ErrorKind::Usage, [&] { choose(layers, &stats, options); }),
                  "every token uses 3");
  options.keep = 6;
  EXPECT_CONTAINS(error_of(ErrorKind::Usage, [&] { choose(layers, &stats, options); }),
                  "layer 5 has 5");
  options.per_layer = true;
  error_of(ErrorKind::Usage, [&] { choose(layers, &stats, options); });
  options = {};
  options.keep = 4;
  EXPECT_CONTAINS(error_of(ErrorKind::Usage, [&] { choose(layers, nullptr, options); }), "--stats");
}

}  // namespace
}  // namespace penstock::surgery
