#include "experts/read_ahead.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <numeric>
#include <random>
#include <set>

#include "base/error.h"
#include "experts/expert_files.h"
#include "experts/faulty_backend.h"
#include "experts/moce.h"
#include "experts/residency.h"
#include "experts/route.h"
#include "experts/stream.h"

namespace penstock::experts::test {
namespace {

std::vector<int32_t> rank(const std::vector<float>& logits, int width) {
  std::vector<int32_t> out;
  rank_ahead(logits, width, &out);
  return out;
}

// Logits with many equal values among them.
std::vector<float> random_logits(std::mt19937& random, int n) {
  std::normal_distribution<float> normal(0, 2);
  std::vector<float> logits(static_cast<size_t>(n));
  for (float& z : logits) z = random() % 4 == 0 ? 1.5f : normal(random);
  return logits;
}

std::vector<uint64_t> random_bits(std::mt19937& random, int n) {
  std::vector<uint64_t> bits(static_cast<size_t>(n + 63) / 64);
  for (uint64_t& word : bits) word = uint64_t{random()} << 32 | random();
  return bits;
}

TEST(AheadAtOnce, IsSoManyBytesInWholeExperts) {
  EXPECT_EQ(ahead_at_once(52'000, 8), 4);  // small experts: half the depth
  EXPECT_EQ(ahead_at_once(52'000, 1), 1);
  EXPECT_EQ(ahead_at_once(1'030'000, 8), 4);
  EXPECT_EQ(ahead_at_once(1'030'000, 2), 1);
  EXPECT_EQ(ahead_at_once(1'380'000, 8), 3);
  EXPECT_EQ(ahead_at_once(2'650'000, 8), 1);
  EXPECT_EQ(ahead_at_once(50'000'000, 8), 1);
}

bool has(const std::vector<uint64_t>& bits, int32_t e) {
  return (bits[static_cast<size_t>(e) / 64] >> (e % 64) & 1) != 0;
}

// The reference: a stable sort.
TEST(RankAhead, IsByLogit) {
  std::mt19937 random(3);
  for (int round = 0; round < 2000; ++round) {
    const int n = 1 + static_cast<int>(random() % 130);
    std::vector<float> logits = random_logits(random, n);
    if (round % 5 == 0) {
      logits[random() % logits.size()] = -std::numeric_limits<float>::infinity();
    }
    const int width = 1 + static_cast<int>(random() % 20);
    std::vector<int32_t> all(static_cast<size_t>(n));
    std::iota(all.begin(), all.end(), 0);
    const auto z = [&](int32_t e) { return logits[static_cast<size_t>(e)]; };
    std::stable_sort(all.begin(), all.end(), [&](int32_t a, int32_t b) { return z(a) > z(b); });
    all.resize(static_cast<size_t>(std::min(width, n)));
    ASSERT_EQ(rank(logits, width), all) << round;
  }
}

TEST(RankAhead, ANanIsNoCandidateOfNote) {
  std::vector<float> logits(16, 0.0f);
  logits[2] = std::numeric_limits<float>::quiet_NaN();
  logits[7] = 1.0f;
  EXPECT_EQ(rank(logits, 3), (std::vector<int32_t>{7, 0, 1}));
}

Geometry one_layer(int n_expert) {
  Geometry geometry;
  LayerGeometry layer;
  layer.n_expert = n_expert;
  layer.n_used = 2;
  layer.gate.bytes = layer.up.bytes = layer.down.bytes = 4096;
  geometry.layers.push_back(layer);
  return geometry;
}

// Told the true logits, with as many candidates as the router takes, what would be read is what the
// router then misses; with more, these come first (§E.2).
TEST(RankAhead, WithTrueLogitsTheCandidatesAreTheMisses) {
  const std::vector<MoceOptions> modes = {
      {},
      {.mode = Moce::Bonus, .bonus = 0.85f},
      {.mode = Moce::Bonus, .bonus = 0.85f, .protect = 12},  // exact
      {.mode = Moce::Prior, .lambda = 0.3f},
      {.mode = Moce::MaxRank, .window = 20},
      {.mode = Moce::CumProb, .mass = 0.9f},
  };
  std::mt19937 random(5);
  for (int round = 0; round < 12000; ++round) {
    const MoceOptions& mode = modes[static_cast<size_t>(round) % modes.size()];
    const int n = 16 + static_cast<int>(random() % 500);
    const int k = 2 + static_cast<int>(random() % 9);
    const std::vector<float> logits = random_logits(random, n);
    const std::vector<uint64_t> ready = random_bits(random, n);
    std::vector<float> p(logits.size()), weights(static_cast<size_t>(k));
    std::vector<int32_t> ids(static_cast<size_t>(k)), equal, wider;
    const RouteRule rule{k, true, 1.0f};
    if (mode.on()) {
      CacheRouter router(mode, one_layer(n));
      ASSERT_TRUE(router.route(0, logits, ready, rule, p.data(), ids.data(), weights.data()));
      router.rank(0, logits, ready, k, k, &equal);
      router.rank(0, logits, ready, k, k + 2, &wider);
    } else {
      ASSERT_TRUE(route_row(logits, rule, p.data(), ids.data(), weights.data()));
      equal = rank(logits, k);
      wider = rank(logits, k + 2);
    }
    const auto missing = [&](std::vector<int32_t> list) {
      std::erase_if(list, [&](int32_t e) { return has(ready, e); });
      return std::set<int32_t>(list.begin(), list.end());
    };
    ASSERT_EQ(missing(equal), missing(ids)) << round;
    ASSERT_EQ(wider.size(), static_cast<size_t>(k + 2));
    ASSERT_EQ(std::set<int32_t>(wider.begin(), wider.end()).size(), wider.size()) << round;
    wider.resize(static_cast<size_t>(k));
    ASSERT_EQ(missing(wider), missing(ids)) << round;
  }
}

// Three leaders that are not resident behind nine boosted residents: the leaders come first.
TEST(RankAhead, BoostedResidentsDoNotHideTheLeaders) {
  std::vector<float> logits(64, -5.0f);
  uint64_t ready = 0;
  for (int e = 0; e < 3; ++e)
    logits[static_cast<size_t>(20 + e)] = 2.0f - 0.1f * static_cast<float>(e);
  for (int e = 0; e < 9; ++e) {
    logits[static_cast<size_t>(40 + e)] = 1.6f;
    ready |= uint64_t{1} << (40 + e);
  }
  CacheRouter router({.mode = Moce::Bonus, .bonus = 0.85f}, one_layer(64));
  std::vector<int32_t> list;
  router.rank(0, logits, std::span(&ready, 1), 8, 8, &list);
  EXPECT_EQ(list, (std::vector<int32_t>{20, 21, 22, 40, 41, 42, 43, 44}));
}

TEST(AheadGovernor, KeepsWhatGaveMoreTokensPerSecond) {
  for (const bool helps : {true, false}) {
    AheadGovernor governor;
    const auto run = [&](int tokens) {
      int on = 0;
      for (int i = 0; i < tokens; ++i) {
        const bool active = governor.active();
        on += active ? 1 : 0;
        governor.step(1, active == helps ? 80 : 100);
      }
      return on;
    };
    EXPECT_EQ(run(AheadGovernor::kWarmUp), AheadGovernor::kWarmUp);
    EXPECT_EQ(governor.trials(), 0);
    constexpr AheadGovernor::Lengths kFirst = AheadGovernor::kFirst;
    constexpr AheadGovernor::Lengths kLater = AheadGovernor::kLater;
    EXPECT_EQ(run(kFirst.window), kFirst.window);
    EXPECT_EQ(run(kFirst.window), 0);
    EXPECT_EQ(run(kFirst.trial - 2 * kFirst.window), kFirst.trial / 2 - kFirst.window);
    EXPECT_EQ(governor.trials(), 1);
    EXPECT_EQ(governor.with_ns(), helps ? 80 : 100);
    EXPECT_EQ(governor.without_ns(), helps ? 100 : 80);
    EXPECT_EQ(run(kFirst.term), helps ? kFirst.term : 0);
    EXPECT_EQ(run(kLater.window), kLater.window);
    EXPECT_EQ(run(kLater.trial - kLater.window), kLater.trial / 2 - kLater.window);
    EXPECT_EQ(governor.trials(), 2);
    EXPECT_EQ(run(kLater.term), helps ? kLater.term : 0);
  }
}

Geometry plain_geometry(int n_layers, int n_expert) {
  Geometry geometry;
  for (int l = 0; l < n_layers; ++l) {
    LayerGeometry layer;
    layer.layer = l;
    layer.n_expert = n_expert;
    layer.n_used = 2;
    layer.gate.bytes = layer.up.bytes = layer.down.bytes = 4096;
    geometry.layers.push_back(layer);
  }
  return geometry;
}

TEST(ResidencyAhead, TakesOnlyWhatIsWorthLess) {
  const Geometry geometry = plain_geometry(2, 16);
  for (const Evict evict : {Evict::Lfu, Evict::Lru}) {
    ArenaShape shape = arena_shape(geometry, 512);
    shape.classes[0].slots = 3;
    Residency r(geometry, shape, evict);
    const auto load = [&](int expert, uint64_t used_at) {
      const int32_t id = r.acquire(0, expert, ReadReason::Demand, true);
      r.complete(id, true);
      r.pin(id);
      r.count_use(0, expert);
      r.unpin(id, used_at);
      return id;
    };
    const int32_t first = r.acquire_ahead(1, 0, 10, 5);  // an empty slot
    ASSERT_NE(first, kNoSlot);
    r.complete(first, true);
    r.pin(first);
    r.unpin(first, 8);
    EXPECT_EQ(r.unused_spec(), 1u);
    load(1, 9);
    load(2, 9);
    r.note_median();
    // Everything was used, or read ahead, since 8: nothing may go for a guess.
    EXPECT_EQ(r.acquire_ahead(1, 1, 8, 7), kNoSlot);
    // In a later token the guess that came to nothing goes first.
    EXPECT_EQ(r.acquire_ahead(1, 1, 9, 7), first);
    EXPECT_EQ(r.wasted_spec(), 1u);
    r.complete(first, true);
    r.pin(first);
    r.unpin(first, 20);
    EXPECT_TRUE(r.take_unused(first));
    EXPECT_FALSE(r.take_unused(first));
    EXPECT_EQ(r.unused_spec(), 0u);
    // Then what was not used lately.
    const int32_t cold = r.find(0, 1);
    EXPECT_EQ(r.acquire_ahead(1, 2, 20, 10), cold);
    r.complete(cold, false);
    EXPECT_EQ(r.wasted_spec(), 2u);
    EXPECT_EQ(r.unused_spec(), 0u);
  }
}

// What matters to the stream, of a model that predicts: logits of all layers, and what it
// foretells.
struct Script {
  std::vector<std::vector<float>> logits;     // by layer: [rows][n_expert]
  std::vector<std::vector<float>> predicted;  // the same, as foretold
};

class ReadAheadModes : public testing::TestWithParam<IoMode> {
 protected:
  std::unique_ptr<Stream> open(const Geometry& geometry, uint64_t n_slots, ReadAhead mode,
                               Faults faults = {}, const MoceOptions& moce = {}) {
    StreamOptions options;
    options.io = GetParam();
    options.moce = moce;
    options.depth = 8;
    options.read_ahead = mode;
    options.decorate = with_faults(std::move(faults));
    const auto files = open_expert_files(geometry, options.io);
    ArenaShape shape = arena_shape(geometry, files->alignment());
    share_slots(shape, n_slots, options.depth, static_cast<uint64_t>(options.transit_slots()));
    return make_stream(geometry, files, shape, options);
  }

  // One layer as a model runs it; every byte that is delivered is compared.
  static void run_layer(Stream& stream, const Script& script, int index, int rows, Phase phase,
                        bool foretell = true) {
    const std::vector<LayerGeometry>& layers = stream.geometry().layers;
    const auto l = static_cast<size_t>(index);
    const Routing routing =
        stream.begin(index, script.logits[l].data(), rows, {layers[l].n_used, true, 1.0f}, phase);
    for (size_t d = 1;
         foretell && d <= static_cast<size_t>(stream.look_ahead()) && l + d < layers.size(); ++d) {
      stream.predict(index + static_cast<int>(d), script.predicted[l + d].data(), rows);
    }
    std::set<int> wanted(routing.ids.begin(), routing.ids.end());
    for (auto batch = stream.next(); !batch.empty(); batch = stream.next()) {
      for (const ReadyExpert& ready : batch) {
        EXPECT_TRUE(same_expert(stream.geometry(), index, ready.data, ready.expert));
        EXPECT_EQ(wanted.erase(ready.expert), 1u);
      }
    }
    EXPECT_TRUE(wanted.empty());
    stream.end();
  }

  static void run_step(Stream& stream, const Script& script, int rows = 1,
                       Phase phase = Phase::Decode) {
    for (size_t l = 0; l < stream.geometry().layers.size(); ++l) {
      run_layer(stream, script, static_cast<int>(l), rows, phase);
    }
    if (phase == Phase::Decode) stream.end_step(rows);
  }

  // Predictions that are right by this share of the experts.
  static Script random_script(const Geometry& geometry, std::mt19937& random, int rows,
                              double right) {
    Script script;
    std::uniform_real_distribution<> chance(0, 1);
    for (const LayerGeometry& layer : geometry.layers) {
      const int n = layer.n_expert * rows;
      script.logits.push_back(random_logits(random, n));
      script.predicted.push_back(script.logits.back());
      for (float& z : script.predicted.back()) {
        if (chance(random) > right) z = static_cast<float>(random() % 100) * 0.05f;
      }
    }
    return script;
  }

  static Script script_for(const Geometry& geometry, const std::vector<std::vector<int>>& ids) {
    Script script;
    for (size_t l = 0; l < ids.size(); ++l) {
      script.logits.push_back(logits_for(geometry.layers[l].n_expert, ids[l]));
    }
    script.predicted = script.logits;
    return script;
  }
};

// Right and wrong guesses, faults and delays, one row and several, prompts in between: every byte
// is the right one, every selected expert arrives once, and the counters close at every step.
TEST_P(ReadAheadModes, DeliversTheRightBytesWhateverIsForetold) {
  const Directory directory;
  const Geometry geometry = write_experts(
      directory, {{.n_expert = 32}, {.n_expert = 24, .merged = true}, {}, {.n_expert = 40}});
  for (const double right : {1.0, 0.7, 0.0}) {
    for (const bool faulty : {false, true}) {
      for (const uint64_t slots : {14u, 40u, 200u}) {
        const auto stream = open(geometry, slots, ReadAhead::On,
                                 faulty ? Faults{.seed = 3,
                                                 .hold = 0.6,
                                                 .reorder = true,
                                                 .short_reads = 0.2,
                                                 .transient = 0.2}
                                        : Faults{});
        std::mt19937 random(17);
        for (int step = 0; step < 60; ++step) {
          const bool prompt = step % 9 == 5;
          const int rows = prompt ? 20 : step % 7 == 3 ? 3 : 1;
          run_step(*stream, random_script(geometry, random, rows, right), rows,
                   prompt ? Phase::Prompt : Phase::Decode);
        }
        const Counters& c = stream->counters();
        EXPECT_GT(c.ahead.issued, 0u);
        EXPECT_EQ(c.ahead.issued,
                  c.ahead.used_same_token + c.ahead.used_later + c.ahead.wasted + c.ahead.pending);
        EXPECT_EQ(c.first.total() + c.steady.total(), c.uses_expected);
        AheadMeasures all = stream->ahead()->total(1);
        all += stream->ahead()->total(2);
        EXPECT_EQ(all.issued, c.ahead.issued);
        EXPECT_EQ(all.used, c.ahead.used());
        EXPECT_LE(all.late, c.first.ra_late + c.steady.ra_late);  // which several rows may wait for
        if (right == 1.0 && slots == 40) {
          EXPECT_GT(c.steady.ra_timely + c.steady.ra_late, c.steady.total() / 20);
        }
      }
    }
  }
}

TEST_P(ReadAheadModes, AForetoldExpertIsNoMissAndIsReadOnce) {
  const Directory directory;
  const Geometry geometry = write_experts(directory, {{}, {}});
  const auto stream = open(geometry, 32, ReadAhead::On);
  const Script script = script_for(geometry, {{0, 1, 2, 3}, {4, 5, 6, 7}});
  run_step(*stream, script);
  const Counters& c = stream->counters();
  EXPECT_EQ(c.first.miss_issued + c.first.ra_timely + c.first.ra_late, 8u);
  EXPECT_GE(c.first.miss_issued, 4u);
  EXPECT_GT(c.ahead.used_same_token, 0u);
  // Beyond the four that are selected two more candidates are looked at; they may be read.
  EXPECT_EQ(c.experts_read, 8 + c.ahead.issued - c.ahead.used_same_token);
  EXPECT_LE(c.experts_read, 10u);
  run_step(*stream, script);
  EXPECT_EQ(stream->counters().steady.arena, 8u);  // the second use is an ordinary hit
  EXPECT_EQ(stream->counters().experts_read,
            8 + stream->counters().ahead.issued - stream->counters().ahead.used_same_token);
}

// What is being read already is neither read again nor taken for resident.
TEST_P(ReadAheadModes, AnExpertInFlightIsCoveredNotReadAgain) {
  const Directory directory;
  const Geometry geometry = write_experts(directory, {{}, {}, {}});
  const auto stream = open(geometry, 48, ReadAhead::On, {.hold = 1.0});
  const Script warm = script_for(geometry, {{0, 1, 2, 3}, {0, 1, 2, 3}, {0, 1, 2, 3}});
  for (int l = 0; l < 3; ++l) run_layer(*stream, warm, l, 1, Phase::Decode, false);
  stream->end_step(1);
  const uint64_t read = stream->counters().experts_read;
  const uint64_t issued = stream->counters().ahead.issued;
  const std::vector<float> guess = logits_for(16, {8, 9, 10, 11});
  stream->begin(0, warm.logits[0].data(), 1, {4, true, 1.0f}, Phase::Decode);
  stream->predict(1, guess.data(), 1);
  const uint64_t after = stream->counters().ahead.issued;
  EXPECT_EQ(after - issued, 4u);
  stream->predict(1, guess.data(), 1);
  EXPECT_EQ(stream->counters().ahead.issued, after);
  while (!stream->next().empty()) continue;
  stream->end();
  // All four are selected while they are still being read: late, and not one demand read.
  const Routing routing = stream->begin(1, guess.data(), 1, {4, true, 1.0f}, Phase::Decode);
  EXPECT_EQ(std::set<int>(routing.ids.begin(), routing.ids.end()), (std::set<int>{8, 9, 10, 11}));
  size_t delivered = 0;
  for (auto batch = stream->next(); !batch.empty(); batch = stream->next()) {
    for (const ReadyExpert& ready : batch) {
      EXPECT_TRUE(same_expert(geometry, 1, ready.data, ready.expert));
      ++delivered;
    }
  }
  EXPECT_EQ(delivered, 4u);
  run_layer(*stream, warm, 2, 1, Phase::Decode, false);
  stream->end_step(1);
  EXPECT_EQ(stream->counters().experts_read - read, 4u);
  EXPECT_EQ(stream->counters().steady.ra_late + stream->counters().steady.ra_timely, 4u);
  EXPECT_EQ(stream->counters().steady.miss_issued, 0u);
}

// A read that fails is an error only for the layer that needs it.
TEST_P(ReadAheadModes, AFailedGuessIsNoFailureUntilSomebodyWaitsForIt) {
  const Directory directory;
  const Geometry geometry = write_experts(directory, {{}, {}});
  const Script script = script_for(geometry, {{0, 1, 2, 3}, {4, 5, 6, 7}});
  const Script wrong = [&] {
    Script s = script;
    s.predicted[1] = logits_for(16, {8, 9, 10, 11});
    return s;
  }();
  // The first layer's four experts are the reads 1 to 12; guesses follow. Some of them fail.
  Faults faults;
  for (uint64_t n = 13; n <= 24; ++n) faults.errors[n] = EIO;
  {
    const auto stream = open(geometry, 32, ReadAhead::On, faults);
    // The guesses 8..11 fail; nobody asks for them. Layer 1's own reads come later.
    const Script& s = wrong;
    const auto run = [&] { run_step(*stream, s); };
    run_layer(*stream, s, 0, 1, Phase::Decode);
    bool failed = false;
    try {
      run_layer(*stream, s, 1, 1, Phase::Decode);
      stream->end_step(1);
    } catch (const Error& error) {
      // Guesses that were still queued when layer 1 was routed were dropped, so a demand read met
      // one of the errors: that one must be told, with the expert that failed.
      failed = true;
      EXPECT_EQ(error.kind(), ErrorKind::Io);
      EXPECT_EQ(std::string(error.what()).find("expert 8"), std::string::npos) << error.what();
      stream->end();
    }
    EXPECT_EQ(stream->counters().steps, failed ? 0u : 1u);
    for (int i = 0; i < 3; ++i) run();
    EXPECT_EQ(stream->counters().ahead.issued,
              stream->counters().ahead.used_same_token + stream->counters().ahead.used_later +
                  stream->counters().ahead.wasted + stream->counters().ahead.pending);
  }
  // Every read fails from the 13th on: whoever waits for such an expert is told.
  const auto stream = open(geometry, 32, ReadAhead::On, {.always = EIO, .always_from = 13});
  run_layer(*stream, script, 0, 1, Phase::Decode);
  std::string message;
  try {
    run_layer(*stream, script, 1, 1, Phase::Decode);
  } catch (const Error& error) {
    message = error.what();
  }
  EXPECT_NE(message.find("of layer 2 failed"), std::string::npos) << message;
  stream->end();
}

TEST_P(ReadAheadModes, AProbeReadsNothingAndItsControlIsPerfect) {
  const Directory directory;
  const Geometry geometry = write_experts(directory, {{.n_expert = 32}, {.n_expert = 32}, {}});
  const auto stream = open(geometry, 30, ReadAhead::Probe);
  std::mt19937 random(23);
  for (int step = 0; step < 40; ++step) {
    run_step(*stream, random_script(geometry, random, 1, 0.8));
  }
  const Counters& c = stream->counters();
  EXPECT_EQ(c.ahead.issued, 0u);
  EXPECT_EQ(c.spec.reads, 0u);
  EXPECT_EQ(c.first.ra_timely + c.steady.ra_timely + c.steady.ra_late, 0u);
  const AheadMeter& meter = *stream->ahead();
  EXPECT_EQ(meter.fresh().layers, 120u);
  EXPECT_EQ(meter.fresh().overlap, meter.fresh().slots);
  EXPECT_EQ(meter.prev().layers, 117u);
  EXPECT_EQ(meter.total(1).layers, 80u);
  EXPECT_EQ(meter.total(2).layers, 40u);
  EXPECT_GT(meter.total(1).overlap, meter.total(1).slots / 4);
  EXPECT_LT(meter.total(1).overlap, meter.total(1).slots);
  EXPECT_GT(meter.total(1).missing, meter.total(1).covered);
}

// The control ranks as the router selects, whichever variant that is and whatever it sees as
// resident.
TEST_P(ReadAheadModes, TheControlOfAProbeIsPerfectWithCacheAwareRoutingToo) {
  const Directory directory;
  const Geometry geometry = write_experts(directory, {{.n_expert = 32}, {.n_expert = 32}, {}});
  for (const MoceResidency residency : {MoceResidency::Live, MoceResidency::Epoch}) {
    for (const Moce mode : {Moce::Bonus, Moce::Prior, Moce::MaxRank, Moce::CumProb}) {
      const MoceOptions moce{.mode = mode, .protect = 1, .window = 12, .residency = residency};
      const auto stream = open(geometry, 30, ReadAhead::Probe, {}, moce);
      std::mt19937 random(23);
      for (int step = 0; step < 40; ++step) {
        run_step(*stream, random_script(geometry, random, 1, 0.8));
      }
      EXPECT_GT(stream->moce()->total().replaced, 0u);
      const AheadMeasures& fresh = stream->ahead()->fresh();
      EXPECT_EQ(fresh.layers, 120u);
      EXPECT_EQ(fresh.overlap, fresh.slots) << moce_name(mode);
    }
  }
}

TEST_P(ReadAheadModes, OffMeansOff) {
  const Directory directory;
  const Geometry geometry = write_experts(directory, {{}, {}});
  const auto stream = open(geometry, 16, ReadAhead::Off);
  std::mt19937 random(29);
  for (int step = 0; step < 20; ++step) run_step(*stream, random_script(geometry, random, 1, 1.0));
  EXPECT_EQ(stream->look_ahead(), 0);
  EXPECT_EQ(stream->counters().spec.reads, 0u);
  EXPECT_EQ(stream->ahead(), nullptr);
}

INSTANTIATE_TEST_SUITE_P(Io, ReadAheadModes, testing::Values(IoMode::Uring, IoMode::Pread),
                         [](const auto& mode) { return std::string(io_mode_name(mode.param)); });

}  // namespace
}  // namespace penstock::experts::test
