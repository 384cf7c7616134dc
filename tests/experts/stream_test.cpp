#include "experts/stream.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "base/error.h"
#include "base/machine.h"
#include "base/memory.h"
#include "experts/expert_files.h"
#include "experts/faulty_backend.h"
#include "experts/opened_stream.h"
#include "experts/record.h"

namespace penstock::experts::test {
namespace {

// Runs a layer and returns the experts in the order of delivery, having compared every byte.
std::vector<int> run_layer(Stream& stream, int index, const std::vector<float>& logits, int rows,
                           Phase phase) {
  const RouteRule rule{stream.geometry().layers[static_cast<size_t>(index)].n_used, true, 1.0f};
  const Routing routing = stream.begin(index, logits.data(), rows, rule, phase);
  const std::set<int> selected(routing.ids.begin(), routing.ids.end());
  std::vector<int> order;
  for (;;) {
    const std::span<const ReadyExpert> batch = stream.next();
    if (batch.empty()) break;
    for (const ReadyExpert& ready : batch) {
      EXPECT_TRUE(same_expert(stream.geometry(), index, ready.data, ready.expert))
          << index << " " << ready.expert;
      order.push_back(ready.expert);
    }
  }
  stream.end();
  std::vector<int> sorted = order;
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(sorted, std::vector<int>(selected.begin(), selected.end()));
  return order;
}

std::vector<int> use(Stream& stream, int index, const std::vector<int>& ids) {
  const int n = stream.geometry().layers[static_cast<size_t>(index)].n_expert;
  return run_layer(stream, index, logits_for(n, ids), 1, Phase::Decode);
}

void prompt(Stream& stream, int index, const std::vector<std::vector<int>>& rows) {
  const int n = stream.geometry().layers[static_cast<size_t>(index)].n_expert;
  std::vector<float> logits;
  for (const std::vector<int>& ids : rows) {
    const std::vector<float> row = logits_for(n, ids);
    logits.insert(logits.end(), row.begin(), row.end());
  }
  run_layer(stream, index, logits, static_cast<int>(rows.size()), Phase::Prompt);
}

// Steps of decode and prompts with random logits, the same for the same seed.
void random_work(Stream& stream, int steps, int decode_rows = 1) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0, 2);
  for (int step = 0; step < steps; ++step) {
    const Phase phase = step % 8 == 3 ? Phase::Prompt : Phase::Decode;
    const int rows = phase == Phase::Prompt ? 20 : decode_rows;
    for (size_t l = 0; l < stream.geometry().layers.size(); ++l) {
      const auto n = static_cast<size_t>(stream.geometry().layers[l].n_expert);
      std::vector<float> logits(static_cast<size_t>(rows) * n);
      for (float& z : logits) z = normal(random);
      run_layer(stream, static_cast<int>(l), logits, rows, phase);
    }
    if (phase == Phase::Decode) stream.end_step(rows);
  }
}

const std::vector<LayerSpec> kMixed = {{},
                                       {.n_expert = 24, .merged = true},
                                       {.gate_bytes = 8192, .down_bytes = 512, .shard = 1},
                                       {.n_expert = 12, .n_used = 2, .gate_bytes = 160}};

class StreamModes : public testing::TestWithParam<IoMode> {};

TEST_P(StreamModes, RandomStepsDeliverEveryExpertOnceWithItsBytes) {
  const Directory directory;
  const Geometry geometry = write_experts(directory, kMixed, 2);
  StreamOptions options;
  options.io = GetParam();
  options.depth = 2;
  Opened s = open_stream(geometry, 30, options);
  EXPECT_GT(s.shape.classes.size(), 1u);
  random_work(*s.stream, 40);
  const Counters& c = s.stream->counters();
  EXPECT_EQ(c.tokens, 35u);
  EXPECT_EQ(c.uses_expected, 35u * 14u);
  EXPECT_EQ(c.first.total(), 14u);
  EXPECT_EQ(c.first.total() + c.steady.total(), c.uses_expected);
  EXPECT_GT(c.steady.arena, 0u);
  EXPECT_GT(c.evict_total, 0u);
  EXPECT_GT(c.prompt_arena_used, 0u);
  EXPECT_EQ(c.evict_hot, 0u);
  EXPECT_GT(c.io_busy_ns, 0u);
}

TEST_P(StreamModes, LateReorderedAndShortReadsChangeNothing) {
  const Directory directory;
  const Geometry geometry = write_experts(directory, kMixed, 2);
  StreamOptions options;
  options.io = GetParam();
  options.depth = 2;
  Opened plain = open_stream(geometry, 30, options);
  random_work(*plain.stream, 40, 2);
  for (uint32_t seed = 1; seed <= 3; ++seed) {
    options.decorate = with_faults(
        {.seed = seed, .hold = 0.7, .reorder = true, .short_reads = 0.3, .transient = 0.3});
    Opened faulty = open_stream(geometry, 30, options);
    random_work(*faulty.stream, 40, 2);  // compares every byte
    const Counters& a = plain.stream->counters();
    const Counters& b = faulty.stream->counters();
    EXPECT_EQ(a.steady.arena, b.steady.arena);
    EXPECT_EQ(a.steady.miss_issued, b.steady.miss_issued);
    EXPECT_EQ(a.steady.miss_joined, b.steady.miss_joined);
    EXPECT_EQ(a.demand.reads, b.demand.reads);
    EXPECT_EQ(a.demand.bytes, b.demand.bytes);
    EXPECT_EQ(a.prompt.bytes, b.prompt.bytes);
    EXPECT_EQ(a.evict_total, b.evict_total);
    EXPECT_EQ(a.read_errors_retried, 0u);
    EXPECT_GT(b.read_errors_retried, 50u);
  }
}

TEST_P(StreamModes, AFailedReadStopsTheStepAndTheNextOneIsSound) {
  const Directory directory;
  const Geometry geometry = write_experts(directory, {{}, {}});
  StreamOptions options;
  options.io = GetParam();
  options.depth = 2;
  // Layer 0 of the first step reads 4 experts in 12 parts; the 17th is the second expert of layer
  // 1, its up matrix.
  options.decorate = with_faults({.errors = {{17, EIO}}});
  Opened s = open_stream(geometry, 8, options);
  use(*s.stream, 0, {1, 3, 5, 7});
  const std::vector<float> logits = logits_for(16, {2, 6, 9, 11});
  s.stream->begin(1, logits.data(), 1, {4, true, 1.0f}, Phase::Decode);
  std::string message;
  ErrorKind kind = ErrorKind::Internal;
  try {
    while (!s.stream->next().empty()) continue;
  } catch (const Error& error) {
    message = error.what();
    kind = error.kind();
  }
  EXPECT_EQ(kind, ErrorKind::Io);
  const uint64_t offset = round_down(
      geometry.layers[1].up.offset + 6 * geometry.layers[1].up.stride, s.files->alignment());
  for (const std::string& part :
       {std::string("expert 6 of layer 2"), "offset " + std::to_string(offset), geometry.shards[0],
        std::string("(errno 5)")}) {
    EXPECT_NE(message.find(part), std::string::npos) << message << "\nlacks " << part;
  }
  // The layer never looks complete, however often it is asked.
  EXPECT_THROW(s.stream->next(), Error);
  s.stream->end();
  EXPECT_EQ(s.stream->counters().steps, 0u);
  for (int step = 0; step < 4; ++step) {
    use(*s.stream, 0, {1, 3, 5, 7});
    use(*s.stream, 1, {2, 6, 9, 11});
    s.stream->end_step(1);
  }
  EXPECT_EQ(s.stream->counters().steps, 4u);
}

TEST_P(StreamModes, AnErrorThatStaysIsBelieved) {
  const Directory directory;
  const Geometry geometry = write_experts(directory, {{}});
  StreamOptions options;
  options.io = GetParam();
  options.depth = 2;
  options.decorate = with_faults({.always = EAGAIN, .always_from = 3});
  Opened s = open_stream(geometry, 8, options);
  EXPECT_THROW(use(*s.stream, 0, {1, 3, 5, 7}), Error);
}

INSTANTIATE_TEST_SUITE_P(Io, StreamModes,
                         testing::Values(IoMode::Auto, IoMode::Uring, IoMode::Pread,
                                         IoMode::Buffered),
                         [](const auto& mode) { return std::string(io_mode_name(mode.param)); });

TEST(Stream, UsesAreClassifiedFromTheSnapshot) {
  const Directory directory;
  const Geometry geometry = write_experts(directory, {{}, {}});
  Opened s = open_stream(geometry, 12, {.depth = 2});
  use(*s.stream, 0, {1, 2, 3, 4});
  use(*s.stream, 1, {1, 2, 3, 4});
  s.stream->end_step(1);
  EXPECT_EQ(s.stream->counters().first.miss_issued, 8u);
  use(*s.stream, 0, {1, 2, 3, 5});
  use(*s.stream, 1, {1, 2, 3, 4});
  s.stream->end_step(1);
  EXPECT_EQ(s.stream->counters().steady.arena, 7u);
  EXPECT_EQ(s.stream->counters().steady.miss_issued, 1u);

  // Two rows: the second one's 6 joins the first one's read; its 5 is resident.
  std::vector<float> logits = logits_for(16, {1, 2, 6, 7});
  const std::vector<float> row = logits_for(16, {1, 5, 6, 8});
  logits.insert(logits.end(), row.begin(), row.end());
  run_layer(*s.stream, 0, logits, 2, Phase::Decode);
  run_layer(*s.stream, 1, logits, 2, Phase::Decode);
  s.stream->end_step(2);
  const UseCounts& steady = s.stream->counters().steady;
  EXPECT_EQ(steady.miss_joined, 2u);
  EXPECT_EQ(steady.total(), 8u + 16u);
  EXPECT_EQ(s.stream->counters().tokens, 4u);
}

TEST(Stream, BytesAreRecordsTimesMisses) {
  const Directory directory;
  // Sizes that are multiples of every alignment, at aligned places: nothing is widened.
  const Geometry geometry = write_experts(directory, {{.gate_bytes = 8192, .down_bytes = 4096}});
  StreamOptions options;
  options.io = IoMode::Buffered;
  options.depth = 2;
  Opened s = open_stream(geometry, 8, options);
  random_work(*s.stream, 50);
  const Counters& c = s.stream->counters();
  const uint64_t misses = c.first.miss_issued + c.steady.miss_issued;
  EXPECT_EQ(c.demand.bytes, misses * geometry.layers[0].expert_bytes());
  EXPECT_EQ(c.demand.reads, misses * 3);
  const uint64_t prompt_read = c.prompt_experts_touched - c.prompt_arena_used;
  EXPECT_EQ(c.prompt.bytes, prompt_read * geometry.layers[0].expert_bytes());
  EXPECT_EQ(c.experts_read, misses + prompt_read);
}

TEST(Stream, MergedTensorsAreTwoReads) {
  const Directory directory;
  const Geometry geometry = write_experts(directory, {{.merged = true}});
  Opened s = open_stream(geometry, 8, {.depth = 2});
  use(*s.stream, 0, {0, 1, 2, 15});
  s.stream->end_step(1);
  EXPECT_EQ(s.stream->counters().demand.reads, 8u);
  EXPECT_EQ(s.stream->counters().experts_read, 4u);
}

TEST(Stream, ResidentExpertsComeFirstAndTogether) {
  const Directory directory;
  const Geometry geometry = write_experts(directory, {{}});
  StreamOptions options;
  options.depth = 2;
  options.decorate = with_faults({.hold = 1.0});  // a result only comes when one waits for it
  Opened s = open_stream(geometry, 12, options);
  use(*s.stream, 0, {8, 9, 10, 11});
  s.stream->end_step(1);
  const uint64_t stalls = s.stream->counters().stall_events;
  EXPECT_GT(stalls, 0u);
  const std::vector<float> logits = logits_for(16, {9, 2, 8, 1});
  s.stream->begin(0, logits.data(), 1, {4, true, 1.0f}, Phase::Decode);
  const std::span<const ReadyExpert> batch = s.stream->next();
  ASSERT_EQ(batch.size(), 2u);
  EXPECT_EQ(std::set<int>({batch[0].expert, batch[1].expert}), std::set<int>({8, 9}));
  EXPECT_EQ(s.stream->counters().stall_events, stalls);
  size_t later = 0;
  for (auto more = s.stream->next(); !more.empty(); more = s.stream->next()) later += more.size();
  EXPECT_EQ(later, 2u);
  s.stream->end_step(1);
  EXPECT_GT(s.stream->counters().stall_events, stalls);
  EXPECT_GT(s.stream->layer_stall_ns()[0], 0u);
}

TEST(Stream, EverythingResidentReadsNothing) {
  const Directory directory;
  const Geometry geometry = write_experts(directory, kMixed, 2);
  Opened s = open_stream(geometry, 1000);
  EXPECT_EQ(s.shape.transit, 0u);
  random_work(*s.stream, 40);
  const ReadCounts before = s.stream->counters().demand;
  const uint64_t touched = s.stream->counters().prompt.reads;
  random_work(*s.stream, 40);
  EXPECT_EQ(s.stream->counters().demand.reads, before.reads);
  EXPECT_EQ(s.stream->counters().prompt.reads, touched);
  EXPECT_EQ(s.stream->counters().evict_total, 0u);
}

TEST(Stream, AStepOfMoreExpertsThanSlotsStillRuns) {
  const Directory directory;
  const Geometry geometry = write_experts(directory, {{.n_expert = 32}, {.n_expert = 32}});
  for (const Evict evict : {Evict::Lfu, Evict::Lru}) {
    Opened s = open_stream(geometry, 5, {.depth = 1, .evict = evict});
    random_work(*s.stream, 30, 8);  // up to 32 experts at once through five slots
    EXPECT_EQ(s.stream->counters().tokens, 26u * 8u);
  }
}

// What LRU evicts for a layer is what a later layer needs; frequency keeps the favourites.
TEST(Stream, UnderOneTokenCycleLruNeverHitsAndLfuDoes) {
  const Directory directory;
  const Geometry geometry = write_experts(directory, {{}, {}, {}});
  for (const Evict evict : {Evict::Lru, Evict::Lfu}) {
    Opened s = open_stream(geometry, 8, {.depth = 2, .evict = evict});
    for (int step = 0; step < 24; ++step) {
      const int group = step % 4 * 4;
      use(*s.stream, 0, {1, 2, 3, 4});
      for (int l = 1; l < 3; ++l) use(*s.stream, l, {group, group + 1, group + 2, group + 3});
      s.stream->end_step(1);
    }
    if (evict == Evict::Lru) {
      EXPECT_EQ(s.stream->counters().steady.arena, 0u);
    } else {
      EXPECT_GT(s.stream->counters().steady.arena, 70u);
    }
  }
}

TEST(Stream, AgeingHalvesEvery32Tokens) {
  const Directory directory;
  const Geometry geometry = write_experts(directory, {{.n_used = 1}});
  // Expert 0 is used 32 times, then 1 to 4 twelve times each: unaged, 0 would stay for ever.
  for (const int half_life : {32, 1 << 20}) {
    Opened s = open_stream(geometry, 3, {.depth = 2, .half_life = half_life});
    for (int i = 0; i < 32; ++i) {
      use(*s.stream, 0, {0});
      s.stream->end_step(1);
    }
    for (int i = 0; i < 96; ++i) {
      use(*s.stream, 0, {1 + i % 4});
      s.stream->end_step(1);
    }
    const uint64_t before = s.stream->counters().steady.arena;
    use(*s.stream, 0, {0});
    s.stream->end_step(1);
    EXPECT_EQ(s.stream->counters().steady.arena - before, half_life == 32 ? 0u : 1u);
  }
}

TEST(Stream, APromptFillsEmptySlotsAndDisturbsNothing) {
  const Directory directory;
  const Geometry geometry = write_experts(directory, {{}});
  Opened s = open_stream(geometry, 6, {.depth = 2});
  use(*s.stream, 0, {0, 1, 2, 3});
  s.stream->end_step(1);
  // 12 experts: 4 resident, 2 find empty slots, 6 pass through.
  prompt(*s.stream, 0, {{0, 1, 2, 3}, {8, 9, 10, 11}, {4, 5, 6, 7}});
  const Counters& c = s.stream->counters();
  EXPECT_EQ(c.prompt_experts_touched, 12u);
  EXPECT_EQ(c.prompt_arena_used, 4u);
  EXPECT_EQ(c.evict_total, 0u);
  // The decode set is untouched, 4 and 5 came first in file order and stayed.
  const uint64_t before = c.steady.arena;
  use(*s.stream, 0, {0, 1, 2, 3});
  s.stream->end_step(1);
  EXPECT_EQ(s.stream->counters().steady.arena - before, 4u);
  use(*s.stream, 0, {0, 1, 4, 5});
  s.stream->end_step(1);
  EXPECT_EQ(s.stream->counters().steady.arena - before, 8u);
  EXPECT_EQ(s.stream->counters().tokens, 3u);
}

// Slots go, the work goes on, byte for byte; what was given back is really gone.
TEST_P(StreamModes, ShrinksBetweenSteps) {
  const Directory directory;
  const std::vector<LayerSpec> layers(4, {.n_expert = 64, .gate_bytes = 64 << 10});
  const Geometry geometry = write_experts(directory, layers);
  for (const uint64_t slots : {uint64_t{100}, uint64_t{256}}) {  // some and all experts
    StreamOptions options;
    options.io = GetParam();
    options.depth = 2;
    options.read_ahead = ReadAhead::On;
    Opened s = open_stream(geometry, slots, options);
    random_work(*s.stream, 10);
    const uint64_t before = footprint().total();
    // Not where this user's other programs hold all the memory that may be locked.
    const bool registered = s.stream->io().registered_bytes != 0;
    const uint64_t given_back = s.stream->shrink(0.5);
    const uint64_t left = s.stream->shape().slots();
    EXPECT_EQ(left, slots - slots / 2 - 1);
    EXPECT_GE(given_back, (slots - left - 1) * s.shape.largest_slot());
    EXPECT_LE(footprint().total() + given_back, before + (1 << 20));
    EXPECT_TRUE(!registered || s.stream->io().engine == Engine::Uring);
    // Buffers are registered anew; that may be refused.
    EXPECT_TRUE(s.stream->io().registered_bytes == 0 || (registered && given_back != 0));
    random_work(*s.stream, 20);
    while (s.stream->shrink(0.5) != 0) random_work(*s.stream, 3);
    EXPECT_EQ(s.stream->shape().slots(), hard_floor(s.shape, options.depth));
    random_work(*s.stream, 10, 2);
  }
}

TEST(Stream, AnAbandonedStepIsNotCounted) {
  const Directory directory;
  const Geometry geometry = write_experts(directory, {{}, {}});
  Opened s = open_stream(geometry, 8, {.depth = 2});
  use(*s.stream, 0, {0, 1, 2, 3});
  std::vector<float> logits = logits_for(16, {4, 5, 6, 7});
  s.stream->begin(1, logits.data(), 1, {4, true, 1.0f}, Phase::Decode);  // and no more of it
  for (int l = 0; l < 2; ++l) use(*s.stream, l, {0, 1, 2, 3});
  s.stream->end_step(1);
  EXPECT_EQ(s.stream->counters().uses_expected, 8u);
  EXPECT_EQ(s.stream->counters().first.total(), 8u);

  logits[3] = std::numeric_limits<float>::quiet_NaN();
  try {
    s.stream->begin(1, logits.data(), 1, {4, true, 1.0f}, Phase::Decode);
    FAIL() << "NaN was routed";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Numeric);
    EXPECT_NE(std::string(error.what()).find("layer 2"), std::string::npos);
  }
}

TEST(Stream, CountersThatDoNotCloseFailTheRun) {
  const Directory directory;
  const Geometry geometry = write_experts(directory, {{}});
  Opened s = open_stream(geometry, 8, {.depth = 2});
  std::vector<float> logits = logits_for(16, {0, 1, 2, 3});
  logits.resize(32);
  run_layer(*s.stream, 0, logits, 2, Phase::Decode);
  EXPECT_THROW(s.stream->end_step(1), Error);
}

TEST(Stream, ADraftLayerMayRunSeveralTimesAStep) {
  const Directory directory;
  const Geometry geometry = write_experts(directory, {{}, {}});  // the second: a draft block
  Opened s = open_stream(geometry, 12, {.depth = 2});
  for (int step = 0; step < 3; ++step) {
    for (int draft = 0; draft < 2; ++draft) use(*s.stream, 1, {draft, 4, 5, 6});
    use(*s.stream, 0, {0, 1, 2, 3});
    s.stream->end_step(1);
  }
  EXPECT_EQ(s.stream->counters().uses_expected, 3u * 12u);
}

TEST(Stream, TheTraceSeesEveryRowInRankOrder) {
  const Directory directory;
  const Geometry geometry = write_experts(directory, {{}});
  Opened s = open_stream(geometry, 8, {.depth = 2});
  struct Observer final : RouteObserver {
    std::vector<std::vector<int>> seen;
    int steps = 0, turns = 0;
    void selected(int index, int row, Phase phase, std::span<const int32_t> ids,
                  std::span<const float> logits) override {
      EXPECT_EQ(index, 0);
      EXPECT_EQ(row, static_cast<int>(seen.size()));
      EXPECT_EQ(phase, Phase::Prompt);
      EXPECT_EQ(logits.size(), 16u);
      EXPECT_EQ(std::max_element(logits.begin(), logits.end()) - logits.begin(), ids[0]);
      seen.emplace_back(ids.begin(), ids.end());
    }
    void step_ended(int) override { ++steps; }
    void turn_ended() override { ++turns; }
  } observer;
  s.stream->observe(&observer);
  prompt(*s.stream, 0, {{7, 3, 9, 1}, {2, 11, 3, 0}});
  EXPECT_EQ(observer.seen, (std::vector<std::vector<int>>{{7, 3, 9, 1}, {2, 11, 3, 0}}));
  EXPECT_EQ(observer.steps, 0);
  s.stream->end_turn();
  EXPECT_EQ(observer.turns, 1);
}

TEST(Stream, AliasedExpertsNeedNoReadsAndHaveTheLayersBytes) {
  const Directory directory;
  const Geometry geometry = write_experts(directory, kMixed, 2);
  StreamOptions options;
  options.depth = 2;
  options.alias = true;
  Opened s = open_stream(geometry, 30, options);
  const ReadCounts filled = s.stream->counters().fill;
  std::mt19937 random(5);
  for (int step = 0; step < 10; ++step) {
    for (size_t l = 0; l < geometry.layers.size(); ++l) {
      const LayerGeometry& layer = geometry.layers[l];
      std::vector<float> logits(static_cast<size_t>(layer.n_expert));
      for (float& z : logits) z = static_cast<float>(random() % 1000);
      const Routing routing = s.stream->begin(static_cast<int>(l), logits.data(), 1,
                                              {layer.n_used, true, 1.0f}, Phase::Decode);
      std::set<int> delivered;
      for (auto batch = s.stream->next(); !batch.empty(); batch = s.stream->next()) {
        for (const ReadyExpert& ready : batch) {
          delivered.insert(ready.expert);
          bool known = false;
          for (int e = 0; e < layer.n_expert && !known; ++e) {
            known = same_expert(geometry, static_cast<int>(l), ready.data, e);
          }
          EXPECT_TRUE(known);
        }
      }
      EXPECT_EQ(delivered, std::set<int>(routing.ids.begin(), routing.ids.end()));
      s.stream->end();
    }
    s.stream->end_step(1);
  }
  const Counters& c = s.stream->counters();
  EXPECT_GT(filled.reads, 0u);
  EXPECT_EQ(c.demand.reads, 0u);
  EXPECT_EQ(c.fill.reads, filled.reads);
  EXPECT_EQ(c.steady.miss_issued, 0u);
}

TEST(Stream, ATruncatedFileIsRefusedAtTheStart) {
  const Directory directory;
  const Geometry geometry = write_experts(directory, {{}});
  ASSERT_EQ(::truncate(geometry.shards[0].c_str(),
                       static_cast<off_t>(geometry.layers[0].down.offset + 100)),
            0);
  try {
    open_stream(geometry, 8, {.depth = 2});
    FAIL() << "opened";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Format);
    EXPECT_NE(std::string(error.what()).find(geometry.shards[0]), std::string::npos);
  }
}

TEST(Stream, AFileThatShrinksWhileItIsReadIsAnIoError) {
  const Directory directory;
  const Geometry geometry = write_experts(directory, {{}});
  Opened s = open_stream(geometry, 8, {.depth = 2});
  ASSERT_EQ(::truncate(geometry.shards[0].c_str(),
                       static_cast<off_t>(geometry.layers[0].down.offset + 100)),
            0);
  try {
    use(*s.stream, 0, {12, 13, 14, 15});
    FAIL() << "read";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Io);
    EXPECT_NE(std::string(error.what()).find("the file ends there"), std::string::npos);
  }
}

TEST(Stream, CountersAgreeWithTheKernelOnAColdFile) {
  const Directory directory;
  const Geometry geometry = write_experts(
      directory, {{.n_expert = 32, .gate_bytes = 64 * 1024, .down_bytes = 64 * 1024}});
  Opened s = open_stream(geometry, 8, {.depth = 2});
  if (!s.files->direct()) GTEST_SKIP() << "no direct reads on " << s.files->report().file_system;
  const uint64_t before = storage_bytes_read();
  const ReadCounts none = s.stream->counters().demand;
  random_work(*s.stream, 20);
  const Counters& c = s.stream->counters();
  const uint64_t fetched = storage_bytes_read() - before;
  const uint64_t asked = c.demand.bytes - none.bytes + c.prompt.bytes;
  if (fetched == 0) GTEST_SKIP() << "the kernel does not count reads of this file system";
  EXPECT_GT(asked, 10u << 20);
  EXPECT_NEAR(static_cast<double>(fetched), static_cast<double>(asked),
              0.01 * static_cast<double>(asked));
}

}  // namespace
}  // namespace penstock::experts::test
