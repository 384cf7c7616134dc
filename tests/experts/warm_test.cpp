// Warm fill from a profile and the hot set over several turns (spec/streaming.md §D.4-5).
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>

#include "experts/expert_files.h"
#include "experts/faulty_backend.h"
#include "experts/opened_stream.h"
#include "experts/residency.h"

namespace penstock::experts::test {
namespace {

Opened open_shallow(const Geometry& geometry, uint64_t n_slots, StreamOptions options) {
  options.depth = 4;
  return open_stream(geometry, n_slots, options);
}

// Experts of a layer are used by Zipf's law, each layer with its own favourites.
class Skewed {
 public:
  Skewed(int n_layers, int n_expert, int n_used) : n_expert_(n_expert), n_used_(n_used) {
    std::mt19937 shuffle(77);
    for (int l = 0; l < n_layers; ++l) {
      auto& order = favourites_.emplace_back(static_cast<size_t>(n_expert));
      std::iota(order.begin(), order.end(), 0);
      std::shuffle(order.begin(), order.end(), shuffle);
    }
    for (int rank = 0; rank < n_expert; ++rank) weights_.push_back(1.0 / (rank + 1));
  }

  std::vector<float> logits(int layer) {
    std::discrete_distribution<int> draw(weights_.begin(), weights_.end());
    std::vector<float> row(static_cast<size_t>(n_expert_), -5.0f);
    for (int n = 0; n < n_used_;) {
      const int e = favourites_[static_cast<size_t>(layer)][static_cast<size_t>(draw(random_))];
      float& z = row[static_cast<size_t>(e)];
      if (z > 0) continue;
      z = static_cast<float>(10 - n++);
    }
    return row;
  }

  std::vector<float> shares() const {
    std::vector<float> shares;
    double sum = 0;
    for (const double w : weights_) sum += w;
    for (const std::vector<int>& order : favourites_) {
      std::vector<float> layer(order.size());
      for (size_t rank = 0; rank < order.size(); ++rank) {
        layer[static_cast<size_t>(order[rank])] =
            static_cast<float>(weights_[rank] / sum / static_cast<double>(favourites_.size()));
      }
      shares.insert(shares.end(), layer.begin(), layer.end());
    }
    return shares;
  }

 private:
  int n_expert_, n_used_;
  std::vector<std::vector<int>> favourites_;
  std::vector<double> weights_;
  std::mt19937 random_{5};
};

void run_layer(Stream& stream, int layer, const std::vector<float>& logits, int rows, Phase phase) {
  const RouteRule rule{stream.geometry().layers[static_cast<size_t>(layer)].n_used, true, 1.0f};
  const Routing routing = stream.begin(layer, logits.data(), rows, rule, phase);
  const std::set<int32_t> selected(routing.ids.begin(), routing.ids.end());
  std::set<int32_t> delivered;
  for (auto batch = stream.next(); !batch.empty(); batch = stream.next()) {
    for (const ReadyExpert& ready : batch) {
      EXPECT_TRUE(same_expert(stream.geometry(), layer, ready.data, ready.expert));
      EXPECT_TRUE(delivered.insert(ready.expert).second) << "delivered twice: " << ready.expert;
    }
  }
  EXPECT_EQ(delivered, selected) << "layer " << layer;
  stream.end();
}

void decode(Stream& stream, Skewed& use, int tokens) {
  for (int t = 0; t < tokens; ++t) {
    for (size_t l = 0; l < stream.geometry().layers.size(); ++l) {
      run_layer(stream, static_cast<int>(l), use.logits(static_cast<int>(l)), 1, Phase::Decode);
    }
    stream.end_step(1);
  }
}

void prompt(Stream& stream, Skewed& use, int rows) {
  for (size_t l = 0; l < stream.geometry().layers.size(); ++l) {
    std::vector<float> all;
    for (int r = 0; r < rows; ++r) {
      const std::vector<float> row = use.logits(static_cast<int>(l));
      all.insert(all.end(), row.begin(), row.end());
    }
    run_layer(stream, static_cast<int>(l), all, rows, Phase::Prompt);
  }
}

constexpr int kLayers = 6;
constexpr int kExperts = 48;

Geometry write_skewed(const Directory& directory) {
  return write_experts(directory, std::vector<LayerSpec>(kLayers, {.n_expert = kExperts}));
}

TEST(WarmFill, ReadsTheMostUsedUpToTheHotCap) {
  const Directory directory;
  const Geometry geometry = write_skewed(directory);
  Skewed use(kLayers, kExperts, 4);
  Opened s = open_shallow(geometry, 140, {.hot_share = 1.0});
  const std::vector<float> shares = use.shares();
  s.stream->set_prior(shares);
  uint64_t last = 0;
  const FillReport report = s.stream->fill([&](uint64_t done, uint64_t total) {
    EXPECT_GE(done, last);
    EXPECT_EQ(total, 60u);
    last = done;
  });
  EXPECT_EQ(report.experts, 60u);  // 140 - (48 + 32)
  EXPECT_EQ(report.failed, 0u);
  EXPECT_EQ(last, 60u);
  EXPECT_EQ(s.stream->counters().fill.bytes, report.bytes);
  EXPECT_GE(report.bytes, 60 * geometry.layers[0].expert_bytes());
  EXPECT_EQ(s.stream->counters().hot, 60u);
  // The ten most used of each layer are there, and count as arena hits.
  std::vector<float> top(shares.begin(), shares.begin() + kExperts);
  std::sort(top.begin(), top.end(), std::greater<>());
  std::vector<float> logits(kExperts, -5.0f);
  int given = 0;
  for (int e = 0; e < kExperts && given < 4; ++e) {
    if (shares[static_cast<size_t>(e)] >= top[9]) logits[static_cast<size_t>(e)] = 5.0f - given++;
  }
  run_layer(*s.stream, 0, logits, 1, Phase::Decode);
  s.stream->end_step(1);
  EXPECT_EQ(s.stream->counters().first.arena, 4u);
}

TEST(WarmFill, WhatNobodyUsedIsNotRead) {
  const Directory directory;
  const Geometry geometry = write_skewed(directory);
  std::vector<float> shares(kLayers * kExperts, 0.0f);
  shares[3] = 0.7f;
  shares[kExperts + 1] = 0.3f;
  Opened s = open_shallow(geometry, 140, {});
  s.stream->set_prior(shares);
  EXPECT_EQ(s.stream->fill({}).experts, 2u);
  Opened none = open_shallow(geometry, 140, {.fill = Fill::None});
  none.stream->set_prior(shares);
  EXPECT_EQ(none.stream->fill({}).experts, 0u);
}

TEST(WarmFill, AFailedReadIsTriedAgainByWhoeverNeedsIt) {
  const Directory directory;
  const Geometry geometry = write_skewed(directory);
  StreamOptions options;
  options.decorate = [](std::unique_ptr<IoBackend> inner) {
    return std::make_unique<FaultyBackend>(std::move(inner), Faults{.errors = {{5, EIO}}});
  };
  Opened s = open_shallow(geometry, 140, options);
  Skewed use(kLayers, kExperts, 4);
  s.stream->set_prior(use.shares());
  const FillReport report = s.stream->fill({});
  EXPECT_EQ(report.experts, 59u);
  EXPECT_EQ(report.failed, 1u);
  decode(*s.stream, use, 20);
}

// What a prompt leaves behind: of every layer its share of the slots, the most used experts.
TEST(PromptAdmission, EveryLayerGetsItsShareOfTheMostUsed) {
  const Directory directory;
  const Geometry geometry = write_skewed(directory);
  Skewed use(kLayers, kExperts, 4);
  const std::vector<float> shares = use.shares();
  Opened s = open_shallow(geometry, 120, {});
  prompt(*s.stream, use, 400);  // touches nearly every expert
  EXPECT_GT(s.stream->counters().prompt_experts_touched, 120u + 60u);
  for (int l = 0; l < kLayers; ++l) {
    // Its favourite expert, which is far from the first in the file for most layers.
    const auto begin = shares.begin() + l * kExperts;
    const auto best = std::max_element(begin, begin + kExperts) - begin;
    std::vector<float> logits(kExperts, -5.0f);
    for (int i = 0; i < 4; ++i) logits[static_cast<size_t>((best + i * 5) % kExperts)] = 5.0f - i;
    run_layer(*s.stream, l, logits, 1, Phase::Decode);
  }
  s.stream->end_step(1);
  EXPECT_GE(s.stream->counters().first.arena, static_cast<uint64_t>(kLayers));
  uint64_t resident = s.stream->counters().first.arena + s.stream->counters().first.miss_issued;
  EXPECT_EQ(resident, 24u);
  EXPECT_EQ(s.stream->counters().prompt_arena_used, 0u);
  EXPECT_EQ(s.stream->counters().evict_total, s.stream->counters().first.miss_issued);  // 120 full
}

TEST(LazyFill, HappensInDecodeAndChangesNothingElse) {
  const Directory directory;
  const Geometry geometry = write_skewed(directory);
  Skewed use(kLayers, kExperts, 4);
  Opened s = open_shallow(geometry, 140, {.fill = Fill::Lazy});
  s.stream->set_prior(use.shares());
  EXPECT_EQ(s.stream->fill({}).experts, 0u);
  prompt(*s.stream, use, 3);
  EXPECT_EQ(s.stream->counters().fill.reads, 0u);
  decode(*s.stream, use, 40);
  const Counters& c = s.stream->counters();
  EXPECT_GT(c.fill.reads, 0u);
  EXPECT_EQ(c.ahead.issued, 0u);
  EXPECT_EQ(c.uses_expected, 40u * kLayers * 4u);
}

// A selected expert whose fill is still under way is waited for, like one that was guessed.
TEST(LazyFill, AnExpertStillBeingFilledInArrives) {
  const Directory directory;
  const Geometry geometry = write_skewed(directory);
  uint64_t late = 0;
  for (const uint64_t slots : {100u, 140u, 280u}) {
    Skewed use(kLayers, kExperts, 4);
    StreamOptions options{.fill = Fill::Lazy};
    options.decorate = with_faults({.hold = 1.0});  // nothing arrives before it is waited for
    Opened s = open_shallow(geometry, slots, options);
    s.stream->set_prior(use.shares());
    decode(*s.stream, use, 40);
    EXPECT_EQ(s.stream->counters().steps, 40u);
    late += s.stream->counters().first.ra_late + s.stream->counters().steady.ra_late;
  }
  EXPECT_GT(late, 0u);
}

class HotSet : public testing::TestWithParam<Evict> {};

TEST_P(HotSet, SurvivesThreeTurns) {
  const Directory directory;
  const Geometry geometry = write_skewed(directory);
  Skewed use(kLayers, kExperts, 4);
  StreamOptions options;
  options.evict = GetParam();
  options.hot_share = 1.0;
  options.read_ahead = ReadAhead::Off;
  options.half_life = default_half_life(options.evict);
  Opened s = open_shallow(geometry, 160, options);
  Stream& stream = *s.stream;
  stream.set_prior(use.shares());
  stream.fill({});
  std::vector<double> misses;
  for (int turn = 0; turn < 3; ++turn) {
    const uint64_t hot = stream.counters().hot;
    EXPECT_GT(hot, 70u);
    prompt(stream, use, 1024);
    const Counters after = stream.counters();
    EXPECT_EQ(after.hot, hot);                      // a prompt changes neither the set
    EXPECT_GE(after.hot_resident * 100, hot * 99);  // nor what of it is in memory
    const uint64_t before = stream.counters().demand.reads;
    decode(stream, use, 64);
    misses.push_back(static_cast<double>(stream.counters().demand.reads - before));
    decode(stream, use, 64);
    stream.end_turn();
  }
  EXPECT_LE(misses[1], 1.1 * misses[0]);
  EXPECT_LE(misses[2], 1.1 * misses[0]);
  EXPECT_EQ(stream.counters().evict_hot, 0u);
}

INSTANTIATE_TEST_SUITE_P(Policies, HotSet,
                         testing::Values(Evict::Lfu, Evict::Lru, Evict::Profile, Evict::Cycle),
                         [](const auto& policy) { return evict_name(policy.param); });

}  // namespace
}  // namespace penstock::experts::test
