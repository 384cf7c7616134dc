// The simulator against the engine: with the run's own settings it has the run's own counters. And
// against arithmetic that knows neither.
#include "measure/sim.h"

#include <gtest/gtest.h>

#include <bit>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "base/error.h"
#include "base/hash.h"
#include "experts/opened_stream.h"
#include "experts/trace_file.h"
#include "measure/sim_clairvoyant.h"
#include "measure/sim_plot.h"
#include "measure/sim_replay.h"
#include "measure/sim_report.h"
#include "measure/sim_support.h"
#include "quant/half.h"

namespace penstock::measure {
namespace {

using experts::Geometry;
using experts::Phase;
using experts::StreamOptions;
using experts::test::Directory;
using experts::test::LayerSpec;
using experts::test::Opened;
using Json = nlohmann::ordered_json;

// Logits that 16 bits hold, some experts likelier than others and drifting.
std::vector<float> draw_logits(std::mt19937& random, int n_expert, int rows, int token) {
  std::normal_distribution<float> normal(0, 1.5f);
  std::vector<float> logits(static_cast<size_t>(n_expert * rows));
  for (size_t i = 0; i < logits.size(); ++i) {
    const int e = static_cast<int>(i) % n_expert;
    const float liking =
        static_cast<float>((e * 7 + token / 40) % n_expert) * 3.0f / static_cast<float>(n_expert);
    logits[i] = quant::half_to_float(quant::float_to_half(normal(random) + liking));
  }
  return logits;
}

void layer(experts::Stream& stream, std::mt19937& random, int l, int rows, Phase phase, int token,
           bool predict) {
  const experts::LayerGeometry& g = stream.geometry().layers[static_cast<size_t>(l)];
  const std::vector<float> logits = draw_logits(random, g.n_expert, rows, token);
  stream.begin(l, logits.data(), rows, {g.n_used, true, 1.0f}, phase);
  const auto n_layers = static_cast<int>(stream.geometry().layers.size());
  for (int d = 1; predict && d <= stream.look_ahead() && l + d < n_layers; ++d) {
    const int n = stream.geometry().layers[static_cast<size_t>(l + d)].n_expert;
    stream.predict(l + d, draw_logits(random, n, rows, token).data(), rows);
  }
  while (!stream.next().empty()) {
  }
  stream.end();
}

// Three turns: a prompt in two chunks, then tokens, now and then several rows in a step.
void three_turns(experts::Stream& stream, int tokens, bool many_rows = true) {
  std::mt19937 random(11);
  const auto n_layers = static_cast<int>(stream.geometry().layers.size());
  for (int turn = 0; turn < 3; ++turn) {
    for (const int rows : {6, 3}) {
      for (int l = 0; l < n_layers; ++l) {
        layer(stream, random, l, rows, Phase::Prompt, 100 * turn, false);
      }
    }
    for (int t = 0; t < tokens; ++t) {
      const int rows = many_rows && t % 9 == 5 ? 2 : 1;
      for (int l = 0; l < n_layers; ++l) {
        layer(stream, random, l, rows, Phase::Decode, 100 * turn + t, true);
      }
      stream.end_step(rows);
    }
    stream.end_turn();
  }
}

// Layers of several sizes, expert counts and slot classes.
const std::vector<LayerSpec> kMixed = {{.n_expert = 40},
                                       {.n_expert = 100},
                                       {.n_expert = 24, .gate_bytes = 40 << 10},
                                       {.n_expert = 70},
                                       {.n_expert = 24, .gate_bytes = 40 << 10}};

std::vector<float> made_up_shares(const Geometry& geometry) {
  std::vector<float> shares;
  int i = 0;
  for (const experts::LayerGeometry& g : geometry.layers) {
    for (int e = 0; e < g.n_expert; ++e, ++i) {
      shares.push_back(i % 3 == 0 ? 0.0f : static_cast<float>(i % 17) * 1e-3f);
    }
  }
  return shares;
}

class SimAgainstStream : public ::testing::Test {
 protected:
  // Runs the stream with a trace and replays it with the same settings.
  void compare(const StreamOptions& options, uint64_t slots, bool with_profile, bool logits,
               bool many_rows) {
    const std::string path = directory_.file("t.xrt");
    Opened s = experts::test::open_stream(geometry_, slots, options);
    const std::vector<float> shares =
        with_profile ? made_up_shares(geometry_) : std::vector<float>();
    if (with_profile) {
      s.stream->set_prior(shares);
      s.stream->fill({});
    }
    experts::TraceWriter writer(path, geometry_, logits,
                                trace_header(s.shape, geometry_.layers.size(), options.depth));
    s.stream->observe(&writer);
    three_turns(*s.stream, 50, many_rows);
    writer.finish();
    const TraceModel model = read_trace_model(path);
    SimSetting setting;
    setting.policy = policy_of(options.evict);
    setting.hot_share = options.hot_share;
    setting.half_life = options.half_life;
    setting.warm = with_profile && options.fill == experts::Fill::Warm;
    setting.moce = options.moce;
    SimRequest request{.settings = {setting}, .shares = shares, .cost = {}, .threads = 1};
    const std::vector<SimResult> results = simulate(model, request);
    expect_same(s.stream->counters(), results[0].counts,
                fmt::format("{} at {} slots", setting_text(setting), s.shape.slots()));
    EXPECT_EQ(results[0].counts.turns, 3u);
    if (const experts::CacheRouter* router = s.stream->moce()) {
      const experts::MoceMeasures a = router->total();
      const experts::MoceMeasures& b = results[0].counts.moce;
      EXPECT_EQ(a.replaced, b.replaced);
      EXPECT_EQ(a.slots, b.slots);
      EXPECT_EQ(a.mass_lost, b.mass_lost);
      EXPECT_EQ(a.route_kl, b.route_kl);
      EXPECT_GT(a.replaced, 0u);
    }
  }

  Directory directory_;
  Geometry geometry_ = experts::test::write_experts(directory_, kMixed);
};

TEST_F(SimAgainstStream, EveryPolicyAndSizeHasTheEnginesCounters) {
  for (const experts::Evict evict :
       {experts::Evict::Lfu, experts::Evict::Lru, experts::Evict::Profile, experts::Evict::Cycle}) {
    for (const uint64_t slots : {30, 60, 120, 200, 258}) {
      for (const bool profile : {false, true}) {
        if (evict == experts::Evict::Profile && !profile) continue;
        StreamOptions options;
        options.depth = 4;
        options.evict = evict;
        compare(options, slots, profile, false, true);
      }
    }
  }
}

TEST_F(SimAgainstStream, HotSetsHalfLivesAndColdProfilesToo) {
  for (const double hot : {0.1, 0.5}) {
    for (const int half_life : {8, 1000}) {
      for (const experts::Fill fill : {experts::Fill::None, experts::Fill::Warm}) {
        StreamOptions options;
        options.depth = 4;
        options.hot_share = hot;
        options.half_life = half_life;
        options.fill = fill;
        options.evict = experts::Evict::Profile;
        compare(options, 240, true, false, true);
      }
    }
  }
}

TEST_F(SimAgainstStream, CacheAwareRoutingIsReroutedAsTheEngineDid) {
  for (const experts::Moce mode : {experts::Moce::Bonus, experts::Moce::Prior,
                                   experts::Moce::MaxRank, experts::Moce::CumProb}) {
    for (const uint64_t slots : {40, 130}) {
      StreamOptions options;
      options.depth = 4;
      options.moce.mode = mode;
      options.moce.protect = 1;
      options.moce.lambda = 0.3f;
      options.moce.window = 9;
      options.moce.mass = 0.7f;
      options.moce.residency = experts::MoceResidency::Epoch;
      options.moce.guard = 0.02f;
      compare(options, slots, false, true, false);
    }
  }
}

// ------------------------------------------------------------------------ traces by hand

struct Use {
  int layer;
  std::vector<int32_t> ids;
};

// One row per step; every step goes through the layers in order.
class HandMade {
 public:
  HandMade(const std::string& path, int n_layers, int n_expert, int n_used, bool logits = false,
           Json settings = Json::object())
      : n_expert_(n_expert) {
    for (int l = 0; l < n_layers; ++l) {
      experts::LayerGeometry& g = geometry_.layers.emplace_back();
      g.layer = l;
      g.n_expert = n_expert;
      g.n_used = n_used;
    }
    if (!settings.contains("depth")) settings["depth"] = 1;
    writer_.emplace(path, geometry_, logits, settings.dump());
  }
  void decode(int l, const std::vector<int32_t>& ids) {
    const std::vector<float> none(static_cast<size_t>(n_expert_), 0.0f);
    writer_->selected(l, 0, Phase::Decode, ids, none);
  }
  void predict(int l, int distance, const std::vector<int32_t>& ids) {
    std::vector<float> z(static_cast<size_t>(n_expert_), 0.0f);
    for (const int32_t e : ids) z[static_cast<size_t>(e)] = 4.0f;
    writer_->predicted(l, distance, 0, z);
  }
  void prompt(int l, const std::vector<int32_t>& ids) {
    const std::vector<float> none(static_cast<size_t>(n_expert_), 0.0f);
    writer_->selected(l, 0, Phase::Prompt, ids, none);
  }
  void step() { writer_->step_ended(1); }
  void turn() { writer_->turn_ended(); }
  void finish() { writer_->finish(); }

 private:
  int n_expert_;
  Geometry geometry_;
  std::optional<experts::TraceWriter> writer_;
};

// The fewest misses of any way to keep experts, over all of them: by brute force on sets. `admits`:
// what a step reads has to be in memory at its end.
uint64_t fewest_misses(const std::vector<std::vector<int>>& steps, int n_expert, int slots,
                       bool admits) {
  std::map<uint32_t, uint64_t> best = {{0, 0}};  // set of resident experts: misses so far
  for (const std::vector<int>& step : steps) {
    uint32_t need = 0;
    for (const int e : step) need |= 1u << e;
    std::map<uint32_t, uint64_t> after;
    for (const auto& [set, misses] : best) {
      const uint64_t now = misses + static_cast<uint64_t>(std::popcount(need & ~set));
      const uint32_t candidates = set | need;
      for (uint32_t keep = 0; keep < 1u << n_expert; ++keep) {
        if ((keep & ~candidates) != 0 || std::popcount(keep) > slots) continue;
        if (admits && (need & ~keep) != 0) continue;
        const auto [at, fresh] = after.try_emplace(keep, now);
        if (!fresh) at->second = std::min(at->second, now);
      }
    }
    best = std::move(after);
  }
  uint64_t fewest = UINT64_MAX;
  for (const auto& [set, misses] : best) fewest = std::min(fewest, misses);
  return fewest;
}

std::vector<SimResult> replay(const std::string& path, const std::vector<SimSetting>& settings,
                              const std::optional<SimCost>& cost = {}) {
  const TraceModel model = read_trace_model(path);
  SimRequest request{.settings = settings, .shares = shares_of_trace(model), .cost = cost};
  return simulate(model, request);
}

TEST(SimClairvoyant, NoPolicyCanHaveFewerMisses) {
  const Directory directory;
  std::mt19937 random(5);
  constexpr int kExperts = 7;
  for (int round = 0; round < 25; ++round) {
    const std::string path = directory.file("b.xrt");
    HandMade trace(path, 1, kExperts, 2);
    std::vector<std::vector<int>> steps;
    for (int t = 0; t < 25; ++t) {
      int a = static_cast<int>(random() % kExperts);
      if (random() % 2 == 0) a = a % 3;
      int b = static_cast<int>(random() % kExperts);
      if (b == a) b = (b + 1) % kExperts;
      steps.push_back({a, b});
      trace.decode(0, {a, b});
      trace.step();
    }
    trace.finish();
    for (const int slots : {3, 4, 5}) {
      std::vector<SimSetting> settings;
      for (const SimPolicy policy :
           {SimPolicy::Clairvoyant, SimPolicy::ClairvoyantAdmits, SimPolicy::Lru, SimPolicy::Lfu}) {
        settings.push_back({.policy = policy, .slots = static_cast<uint64_t>(slots)});
      }
      const std::vector<SimResult> results = replay(path, settings);
      EXPECT_EQ(results[0].counts.misses(), fewest_misses(steps, kExperts, slots, false));
      EXPECT_EQ(results[1].counts.misses(), fewest_misses(steps, kExperts, slots, true));
      for (const SimResult& r : results) {
        EXPECT_EQ(r.bound_misses, results[0].counts.misses());
        EXPECT_GE(r.counts.misses(), results[0].counts.misses());
      }
    }
  }
}

TEST(SimClairvoyant, PromptsAndWarmStartsCostNothing) {
  const Directory directory;
  const std::string path = directory.file("p.xrt");
  HandMade trace(path, 1, 8, 2);
  trace.prompt(0, {0, 1, 2, 3, 4, 5});
  trace.decode(0, {0, 1});
  trace.step();
  trace.decode(0, {2, 6});
  trace.step();
  trace.decode(0, {0, 1});
  trace.step();
  trace.finish();
  const SimSetting cold{.policy = SimPolicy::Clairvoyant, .slots = 4};
  SimSetting warm = cold;
  warm.warm = true;
  const std::vector<SimResult> results = replay(path, {cold, warm});
  EXPECT_EQ(results[0].counts.misses(), 1u);  // 6: the prompt brought all others
  EXPECT_EQ(results[1].counts.misses(), 0u);
  EXPECT_EQ(results[1].counts.fill_reads, 4u);
}

TEST(SimCostModel, StallsAreWhatTheFormulaSays) {
  const Directory directory;
  const std::string path = directory.file("c.xrt");
  Json settings;
  settings["classes"] = {{{"slot_bytes", 4096}, {"slots", 4}}};
  settings["class_of_layer"] = {0, 0};
  settings["transit"] = 2;
  settings["read_bytes"] = {1e6, 1e6};
  HandMade trace(path, 2, 8, 2, false, settings);
  for (int t = 0; t < 3; ++t) {  // the second token hits all, the third misses one of each layer
    trace.decode(0, t == 2 ? std::vector<int32_t>{0, 5} : std::vector<int32_t>{0, 1});
    trace.decode(1, t == 2 ? std::vector<int32_t>{3, 6} : std::vector<int32_t>{2, 3});
    trace.step();
  }
  trace.finish();
  SimCost cost;
  cost.compute = {.token_s = 0.010, .experts_s = 0.004, .shared_s = 0.002};
  cost.disk = {.bytes_per_s = 1e9, .latency_s = 0.0005};
  // Of one layer: shared 1 ms, an expert 1 ms, a read 1 ms and 0.5 ms for the first.
  const double two = 0.0005 + 2 * 0.001 - 0.001;             // nothing to compute meanwhile
  const double one = std::max(0.0, 0.0005 + 0.001 - 0.002);  // hidden behind the hit
  for (const SimPolicy policy : {SimPolicy::Lru, SimPolicy::Clairvoyant}) {
    const std::vector<SimResult> results = replay(path, {{.policy = policy}}, cost);
    EXPECT_EQ(results[0].counts.misses(), 6u);
    EXPECT_NEAR(results[0].counts.stall_s, 2 * two + 2 * one, 1e-12);
    EXPECT_NEAR(results[0].token_s, 0.010 + (2 * two + 2 * one) / 3, 1e-12);
    EXPECT_EQ(results[0].counts.decode_bytes, 6e6);
  }
  EXPECT_EQ(replay(path, {{.policy = SimPolicy::Lru}})[0].tokens_per_s(), 0);  // nothing known
}

TEST(SimAhead, GoodPredictionsLeaveNoMissesAndIdentitiesHold) {
  const Directory directory;
  const std::string path = directory.file("a.xrt");
  Json settings;
  settings["depth"] = 8;
  settings["classes"] = {{{"slot_bytes", 4096}, {"slots", 40}}};
  settings["class_of_layer"] = {0, 0, 0, 0};
  settings["transit"] = 16;
  settings["read_bytes"] = {1e6, 1e6, 1e6, 1e6};
  HandMade trace(path, 4, 32, 2, true, settings);
  std::mt19937 random(8);
  for (int t = 0; t < 60; ++t) {
    std::vector<std::vector<int32_t>> ids;
    for (int l = 0; l < 4; ++l) {
      const auto a = static_cast<int32_t>(random() % 32);
      ids.push_back({a, static_cast<int32_t>((a + 1 + static_cast<int32_t>(random() % 31)) % 32)});
    }
    for (int l = 0; l < 4; ++l) {
      trace.decode(l, ids[static_cast<size_t>(l)]);
      if (l < 3) trace.predict(l + 1, 1, ids[static_cast<size_t>(l + 1)]);
    }
    trace.step();
  }
  trace.finish();
  SimSetting off{.policy = SimPolicy::Lru};
  SimSetting on = off;
  on.ahead.on = true;
  on.ahead.width = 2;
  for (const double rate : {0.0, 1e12, 1e9, 2e8}) {
    std::optional<SimCost> cost;
    if (rate > 0) {
      cost.emplace();
      cost->compute = {.token_s = 0.008, .experts_s = 0.002, .shared_s = 0.001};
      cost->disk = {.bytes_per_s = rate, .latency_s = 0.0001};
    }
    const std::vector<SimResult> results = replay(path, {off, on}, cost);
    const SimCounts& a = results[0].counts;
    const SimCounts& b = results[1].counts;
    EXPECT_EQ(b.ahead.issued, b.ahead.used() + b.ahead.wasted + b.ahead.pending);
    EXPECT_EQ(b.uses().total(), a.uses().total());
    EXPECT_GT(b.ahead.issued, 0u);
    EXPECT_LT(b.misses(), a.misses());
    EXPECT_FALSE(results[1].bound_misses.has_value());
    if (rate == 0 || rate == 1e12) {
      // Only the first layer, which nobody predicts, misses.
      EXPECT_EQ(b.uses().ra_late, 0u);
      EXPECT_LE(b.misses(), 2u * 60);
      EXPECT_EQ(b.ahead.used_later, 0u);
    }
    if (rate == 2e8) {
      EXPECT_GT(b.uses().ra_late, 0u);
    }
    if (rate == 1e9) {
      EXPECT_LT(b.stall_s, a.stall_s);
    }
  }
}

TEST(SimTraces, WhatATraceDoesNotHaveIsRefused) {
  const Directory directory;
  const std::string path = directory.file("r.xrt");
  HandMade trace(path, 1, 8, 2);
  trace.decode(0, {0, 1});
  trace.step();
  trace.finish();
  const auto refused = [&](SimSetting setting, const char* word) {
    try {
      const TraceModel model = read_trace_model(path);
      simulate(model, {.settings = {setting}, .shares = {}, .cost = {}});
    } catch (const Error& error) {
      return error.kind() == ErrorKind::Usage &&
             std::string(error.what()).find(word) != std::string::npos;
    }
    return false;
  };
  EXPECT_TRUE(refused({}, "--slots"));
  EXPECT_TRUE(refused({.slots = 1}, "too few"));
  EXPECT_TRUE(refused({.policy = SimPolicy::Profile, .slots = 5}, "--profile"));
  EXPECT_TRUE(refused({.slots = 5, .warm = true}, "--profile"));
  EXPECT_TRUE(refused({.slots = 5, .ahead = {.on = true}}, "--trace-logits"));
  SimSetting moce{.slots = 5};
  moce.moce.mode = experts::Moce::Bonus;
  EXPECT_TRUE(refused(moce, "--trace-logits"));
}

TEST(SimTraces, SettingsThatContradictTheLayersAreErrors) {
  const Directory directory;
  int n = 0;
  const auto refused = [&](const Json& settings) {
    const std::string path = directory.file(fmt::format("h{}.xrt", n++));
    HandMade trace(path, 2, 8, 2, false, settings);
    trace.finish();
    try {
      read_trace_model(path);
    } catch (const Error& error) {
      return error.kind() == ErrorKind::Format;
    }
    return false;
  };
  const Json classes = {{{"slot_bytes", 4096}, {"slots", 4}}};
  EXPECT_FALSE(refused({{"classes", classes}, {"class_of_layer", {0, 0}}}));
  EXPECT_TRUE(refused({{"classes", classes}, {"class_of_layer", {0}}}));
  EXPECT_TRUE(refused({{"classes", classes}, {"class_of_layer", {0, 7}}}));
  EXPECT_TRUE(refused({{"classes", "x"}, {"class_of_layer", {0, 0}}}));
  EXPECT_TRUE(refused({{"classes", classes}}));
  EXPECT_TRUE(
      refused({{"classes", {{{"slot_bytes", 1}, {"slots", 99}}}}, {"class_of_layer", {0, 0}}}));
  EXPECT_TRUE(
      refused({{"classes", classes}, {"class_of_layer", {0, 0}}, {"transit", uint64_t{1} << 40}}));
  EXPECT_TRUE(refused({{"read_bytes", {1.0}}}));
  EXPECT_TRUE(refused({{"read_bytes", {1.0, -1.0}}}));
  EXPECT_TRUE(refused({{"depth", 0}}));
  EXPECT_TRUE(refused({{"depth", "deep"}}));
  EXPECT_TRUE(refused({{"depth", 1e30}}));
  EXPECT_TRUE(refused({{"classes", classes}, {"class_of_layer", {0, -1}}}));
}

// What no run writes, found by tests/fuzz/fuzz_trace.cpp: whoever goes through it would run out of
// stack or memory, or meet a broken invariant of the residency.
TEST(SimTraces, WhatNoRunWritesIsRefused) {
  const Directory directory;
  const auto reason = [&](const std::string& header, const std::string& records) -> std::string {
    const std::string path = directory.file("x.xrt");
    const auto number = [](auto value) {
      return std::string(reinterpret_cast<const char*>(&value), sizeof value);
    };
    std::ofstream(path, std::ios::binary)
        << "XPRTTRCE" << number(uint32_t{2}) << number(static_cast<uint32_t>(header.size()))
        << header << number(static_cast<uint32_t>(records.size())) << number(uint32_t{0})
        << number(xxh64(std::as_bytes(std::span(records)))) << records << number(uint64_t{0})
        << number(uint64_t{1});
    try {
      simulate(read_trace_model(path), {.settings = {{.slots = 8}}, .shares = {}, .cost = {}});
    } catch (const Error& error) {
      return error.kind() == ErrorKind::Format ? error.what() : "another kind";
    }
    return {};
  };
  const auto header = [](const std::string& layers, const std::string& settings) {
    return R"({"logits":false,"layers":[)" + layers + R"(],"settings":)" + settings + "}";
  };
  const std::string layer = R"({"layer":0,"n_expert":8,"n_used":2})";
  const std::string once("\1\0\0\0\0\1\0\2\0", 9), twice("\1\0\0\0\0\2\0\2\0", 9);
  EXPECT_EQ(reason(header(layer, "{}"), once), "");
  EXPECT_NE(reason(header(layer, "{}"), twice).find("selected twice"), std::string::npos);
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  EXPECT_NE(reason(header(layer, deep), once).find("too deeply"), std::string::npos);
  const std::string huge = R"({"layer":0,"n_expert":1e30,"n_used":2})";
  EXPECT_NE(reason(header(huge, "{}"), once).find("cannot be"), std::string::npos);
  std::string many = R"({"layer":0,"n_expert":65535,"n_used":1})";
  for (int i = 0; i < 5; ++i) many += "," + many;
  EXPECT_NE(reason(header(many, "{}"), once).find("more experts"), std::string::npos);
}

TEST(SimReports, PlotAndTableSayWhatWasFound) {
  const Directory directory;
  const std::string path = directory.file("s.xrt");
  HandMade trace(path, 2, 64, 4);
  std::mt19937 random(2);
  for (int t = 0; t < 200; ++t) {
    for (int l = 0; l < 2; ++l) {
      std::set<int32_t> ids;
      while (ids.size() < 4) {
        ids.insert(static_cast<int32_t>(std::min(random() % 64, random() % 64)));
      }
      trace.decode(l, {ids.begin(), ids.end()});
    }
    trace.step();
  }
  trace.turn();
  trace.finish();
  SimReport report;
  report.traces.push_back(read_trace_model(path));
  SimRequest request{.settings = {}, .shares = {}, .cost = {}, .threads = 2};
  const std::vector<uint64_t> sizes = sweep_slots(report.traces[0], 12);
  EXPECT_EQ(sizes.front(), 5u);
  EXPECT_EQ(sizes.back(), 128u);
  for (const uint64_t slots : sizes) {
    for (const SimPolicy policy : {SimPolicy::Lru, SimPolicy::Lfu, SimPolicy::Clairvoyant}) {
      request.settings.push_back({.policy = policy, .slots = slots});
    }
  }
  report.results = simulate(report.traces[0], request);
  const std::string svg = sim_plot(report);
  EXPECT_NE(svg.find("prefers-color-scheme:dark"), std::string::npos);
  EXPECT_NE(svg.find("class=\"gap\""), std::string::npos);
  EXPECT_NE(svg.find("class=\"knee"), std::string::npos);
  EXPECT_EQ(svg.find("Tokens per second"), std::string::npos);  // no cost: no speed
  const std::string table = sim_table(report);
  EXPECT_EQ(table.find("tokens/s"), std::string::npos);
  EXPECT_NE(table.find("hit rate is no speed"), std::string::npos);
  const Json json = sim_json(report);
  EXPECT_EQ(json["results"].size(), request.settings.size());
  EXPECT_TRUE(json["results"][0]["estimate"].is_null());
  EXPECT_EQ(json["results"][0]["uses_steady"]["total"].get<uint64_t>() +
                json["results"][0]["uses_first"]["total"].get<uint64_t>(),
            200u * 8);
  // Settings side by side find what each finds alone.
  for (size_t i = 0; i < request.settings.size(); i += 5) {
    const auto alone =
        simulate(report.traces[0], {.settings = {request.settings[i]}, .shares = {}, .cost = {}});
    EXPECT_EQ(alone[0].counts.misses(), report.results[i].counts.misses());
  }
}

TEST(SimReports, TheKneeIsWhereMoreStopsPaying) {
  const std::vector<double> x = {1, 2, 3, 4, 5};
  EXPECT_EQ(find_knee(x, std::vector<double>{0, 8, 9, 9.5, 10}), 1u);
  EXPECT_EQ(find_knee(x, std::vector<double>{0, 1, 2, 3, 4}), std::nullopt);
  EXPECT_EQ(find_knee(x, std::vector<double>{4, 4, 4, 4, 4}), std::nullopt);
  EXPECT_EQ(find_knee(std::vector<double>{1, 2}, std::vector<double>{0, 1}), std::nullopt);
}

}  // namespace
}  // namespace penstock::measure
