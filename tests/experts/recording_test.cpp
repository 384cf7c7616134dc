// Routing traces and timelines: what a stream did is what is written down.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "base/error.h"
#include "experts/expert_files.h"
#include "experts/io_choice.h"
#include "experts/mapped_stream.h"
#include "experts/opened_stream.h"
#include "experts/residency.h"
#include "experts/timeline.h"
#include "experts/trace_file.h"

namespace penstock::experts::test {
namespace {

Opened open_shallow(const Geometry& geometry, uint64_t n_slots, StreamOptions options) {
  options.depth = 2;
  return open_stream(geometry, n_slots, options);
}

// A prompt of 5 rows, then tokens of one or two rows; random logits.
void work(Stream& stream, int tokens) {
  std::mt19937 random(9);
  std::normal_distribution<float> normal(0, 2);
  const auto n_layers = static_cast<int>(stream.geometry().layers.size());
  for (int t = -1; t < tokens; ++t) {
    const Phase phase = t < 0 ? Phase::Prompt : Phase::Decode;
    const int rows = t < 0 ? 5 : t % 4 == 3 ? 2 : 1;
    for (int l = 0; l < n_layers; ++l) {
      const LayerGeometry& layer = stream.geometry().layers[static_cast<size_t>(l)];
      std::vector<float> logits(static_cast<size_t>(rows * layer.n_expert));
      for (float& z : logits) z = normal(random);
      stream.begin(l, logits.data(), rows, {layer.n_used, true, 1.0f}, phase);
      for (int d = 1; d <= stream.look_ahead() && l + d < n_layers; ++d) {
        const auto n = static_cast<size_t>(
            stream.geometry().layers[static_cast<size_t>(l + d)].n_expert * rows);
        stream.predict(l + d, std::vector<float>(n, 0.5f).data(), rows);
      }
      for (auto batch = stream.next(); !batch.empty(); batch = stream.next()) {
        for (const ReadyExpert& ready : batch) {
          EXPECT_TRUE(same_expert(stream.geometry(), l, ready.data, ready.expert));
        }
      }
      stream.end();
    }
    if (phase == Phase::Decode) stream.end_step(rows);
  }
  stream.end_turn();
}

// Replays the policy lfu from the trace alone: what the simulator will do in full.
struct Replayer final : TraceVisitor {
  Replayer(const Geometry& geometry, const ArenaShape& shape)
      : residency(geometry, shape, Evict::Lfu), n_expert(geometry.layers[0].n_expert) {}

  void decode(int index, int, std::span<const uint16_t> ids, std::span<const float> z) override {
    logits += z.size();
    ++clock;
    std::vector<int32_t> pinned;
    for (const uint16_t e : ids) {
      const int32_t slot = residency.find(index, e);
      if (slot != kNoSlot) {
        ++hits;
        residency.pin(slot);
        pinned.push_back(slot);
      }
      residency.count_use(index, e);
    }
    std::vector<int> missing;
    for (const uint16_t e : ids) {
      if (residency.find(index, e) == kNoSlot) missing.push_back(e);
    }
    std::sort(missing.begin(), missing.end());
    for (const int e : missing) {
      ++misses;
      const int32_t slot = residency.acquire(index, e, ReadReason::Demand, true);
      residency.complete(slot, true);
      residency.pin(slot);
      pinned.push_back(slot);
    }
    for (const int32_t slot : pinned) residency.unpin(slot, clock);
  }
  void predicted(int, int distance, int, std::span<const float> z) override {
    EXPECT_GE(distance, 1);
    EXPECT_EQ(z[0], 0.5f);
    ++predictions;
  }
  void prompt(int index, uint32_t rows, std::span<const uint32_t> uses) override {
    ++clock;
    prompt_rows += rows;
    for (int e = 0; e < n_expert; ++e) {
      selections += uses[static_cast<size_t>(e)];
      if (uses[static_cast<size_t>(e)] == 0) continue;
      if (residency.find(index, e) != kNoSlot) continue;
      const int32_t slot = residency.acquire(index, e, ReadReason::Prompt, false);
      if (slot == kNoSlot) continue;
      residency.complete(slot, true);
      residency.pin(slot);
      residency.unpin(slot, clock);
    }
  }
  void step_ended(int rows) override {
    steps += rows;
    if (steps % default_half_life(Evict::Lfu) == 0) residency.halve_frequencies();
  }
  void turn_ended() override { ++turns; }
  void token(int32_t id) override { tokens.push_back(id); }

  Residency residency;
  int n_expert;
  uint64_t clock = 0, hits = 0, misses = 0, predictions = 0, prompt_rows = 0, turns = 0,
           selections = 0;
  int steps = 0;
  size_t logits = 0;
  std::vector<int32_t> tokens;
};

TEST(TraceFile, AReplayFindsTheStreamsOwnHitsAndMisses) {
  const Directory directory;
  const Geometry geometry =
      write_experts(directory, std::vector<LayerSpec>(4, LayerSpec{.n_expert = 24}));
  const std::string path = directory.file("a.xrt");
  StreamOptions options;
  Opened s = open_shallow(geometry, 40, options);
  TraceWriter writer(path, geometry, false, R"({"why": "test"})");
  s.stream->observe(&writer);
  // One row per step: with several the rows of a step share their reads.
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 1);
  for (int t = 0; t < 100; ++t) {
    writer.token(t);
    for (int l = 0; l < 4; ++l) {
      const int rows = t == 50 ? 7 : 1;
      std::vector<float> logits(static_cast<size_t>(24 * rows));
      for (float& z : logits) z = normal(random);
      const Phase phase = t == 50 ? Phase::Prompt : Phase::Decode;
      s.stream->begin(l, logits.data(), rows, {4, true, 1.0f}, phase);
      while (!s.stream->next().empty()) {
      }
      s.stream->end();
    }
    if (t != 50) s.stream->end_step(1);
  }
  writer.finish();
  const TraceHeader header = read_trace_header(path);
  EXPECT_EQ(header.layers.size(), 4u);
  EXPECT_EQ(header.layers[2].layer, 3);
  EXPECT_EQ(header.layers[2].n_expert, 24);
  EXPECT_FALSE(header.logits);
  EXPECT_EQ(header.settings, R"({"why":"test"})");
  Replayer replay(geometry, s.stream->shape());
  read_trace(path, replay);
  const Counters& c = s.stream->counters();
  EXPECT_EQ(replay.hits, c.first.arena + c.steady.arena);
  EXPECT_EQ(replay.misses, c.first.miss_issued + c.steady.miss_issued);
  EXPECT_EQ(replay.steps, 99);
  EXPECT_EQ(replay.prompt_rows, 28u);
  EXPECT_EQ(replay.selections, 28u * 4);  // every row's, not only which experts
  EXPECT_EQ(replay.tokens.size(), 100u);
  EXPECT_EQ(replay.tokens[99], 99);
}

TEST(TraceFile, LogitsAndPredictionsAreThereWhenAskedFor) {
  const Directory directory;
  const Geometry geometry = write_experts(directory, std::vector<LayerSpec>(3));
  for (const bool logits : {false, true}) {
    const std::string path = directory.file("b.xrt");
    Opened s = open_shallow(geometry, 20, {.read_ahead = ReadAhead::On});
    TraceWriter writer(path, geometry, logits, "{}");
    s.stream->observe(&writer);
    work(*s.stream, 8);
    writer.finish();
    EXPECT_EQ(writer.bytes(), std::filesystem::file_size(path));
    Replayer replay(geometry, s.stream->shape());
    read_trace(path, replay);
    EXPECT_EQ(replay.steps, 10);
    EXPECT_EQ(replay.turns, 1u);
    EXPECT_EQ(replay.logits, logits ? size_t{10 * 3 * 16} : size_t{0});
    EXPECT_EQ(replay.predictions, logits ? 20u : 0u);
  }
}

TEST(TraceFile, DamageIsFound) {
  const Directory directory;
  const Geometry geometry = write_experts(directory, std::vector<LayerSpec>(2));
  const std::string path = directory.file("c.xrt");
  {
    Opened s = open_shallow(geometry, 20, {});
    TraceWriter writer(path, geometry, true, "{}");
    s.stream->observe(&writer);
    work(*s.stream, 5);
    EXPECT_FALSE(std::filesystem::exists(path));  // nothing half-written
    writer.finish();
  }
  std::ifstream in(path, std::ios::binary);
  const std::string good((std::istreambuf_iterator<char>(in)), {});
  const auto refused = [&](const std::string& bytes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
    Opened s = open_shallow(geometry, 20, {});
    Replayer replay(geometry, s.stream->shape());
    try {
      read_trace(path, replay);
    } catch (const Error& error) {
      return error.kind() == ErrorKind::Format || error.kind() == ErrorKind::Unsupported;
    }
    return false;
  };
  EXPECT_FALSE(refused(good));
  for (size_t cut = 0; cut < good.size(); cut += 41) EXPECT_TRUE(refused(good.substr(0, cut)));
  for (size_t at = 0; at < good.size(); at += 23) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 0x10);
    // A changed letter inside the header may still be a header; everything behind it is checked.
    const bool found = refused(bad);
    EXPECT_TRUE(found || at <= 400) << at;
  }
  EXPECT_TRUE(refused(good + "x"));
}

TEST(TimelineTest, EveryReadAndEveryKindOfWorkIsThere) {
  const Directory directory;
  const Geometry geometry =
      write_experts(directory, std::vector<LayerSpec>(4, LayerSpec{.n_expert = 24}));
  Opened s = open_shallow(geometry, 30, {});
  Timeline timeline;
  s.stream->record(&timeline);
  work(*s.stream, 10);
  s.stream->record(nullptr);
  const std::string path = directory.file("t.json");
  timeline.write(path);
  std::ifstream in(path);
  const auto json = nlohmann::json::parse(in);
  const Counters& c = s.stream->counters();
  std::map<std::string, uint64_t> n;
  uint64_t bytes = 0;
  std::map<int, double> lane_end;
  std::map<int, double> lane_start;
  for (const auto& e : json["traceEvents"]) {
    if (e["ph"] != "X") continue;
    const std::string name = e["name"];
    ++n[name.starts_with("token") ? "token" : name];
    if (e["args"].contains("bytes")) bytes += e["args"]["bytes"].get<uint64_t>();
    const int tid = e["tid"];
    const double from = e["ts"], length = e["dur"];
    EXPECT_GE(length, 0);
    if (tid >= 10) {  // reads of a lane follow one another
      EXPECT_GE(from, lane_end[tid] - 0.002);
      lane_end[tid] = from + length;
    }
  }
  EXPECT_EQ(n["demand"], c.demand.reads);
  EXPECT_EQ(n["prompt"], c.prompt.reads);
  EXPECT_EQ(bytes, c.demand.bytes + c.prompt.bytes);
  EXPECT_EQ(n["waiting for reads"] >= c.stall_events, true);
  EXPECT_EQ(n["token"], 9u);
  EXPECT_EQ(n["route"], 4u * 11);
  EXPECT_GE(n["experts"], 4u * 11);
  EXPECT_EQ(timeline.lost(), 0u);
  Timeline small(5);
  for (int i = 0; i < 9; ++i) small.read(ReadReason::Demand, 1, 10 * i, 10 * i + 5);
  EXPECT_EQ(small.lost(), 4u);
}

TEST(TimelineTest, TheTypicalTokenIsTheMedianCutAtItsEnds) {
  Timeline timeline;
  timeline.start(1000);
  EXPECT_FALSE(timeline.typical_token());
  int64_t now = 1000;
  for (const int64_t ms : {1, 9, 5, 7, 3}) {  // the first only begins the second
    timeline.read(ReadReason::Spec, 64, now + 100, now + ms * 1000 + 200);  // beyond its end
    now += ms * 500;
    timeline.work(Work::Dense, 3, 0, now);
    now += ms * 500;
    timeline.work(Work::Stall, 4, 0, now);
    timeline.token(now);
  }
  const std::optional<TokenTimeline> token = timeline.typical_token();
  ASSERT_TRUE(token);
  EXPECT_EQ(token->token, 3u);  // of 9, 5, 7, 3
  EXPECT_EQ(token->ns, 7000);
  ASSERT_EQ(token->spans.size(), 4u);  // the end of the read before, work, its own read, waiting
  EXPECT_TRUE(token->spans[0].read);
  EXPECT_EQ(token->spans[0].from_ns, 0);
  EXPECT_EQ(token->spans[0].ns, 200);
  EXPECT_EQ(token->spans[1].what, static_cast<uint8_t>(Work::Dense));
  EXPECT_EQ(token->spans[1].layer, 3);
  EXPECT_EQ(token->spans[1].ns, 3500);
  EXPECT_EQ(token->spans[2].from_ns, 100);
  EXPECT_EQ(token->spans[2].ns, 6900);
  EXPECT_EQ(token->spans[3].what, static_cast<uint8_t>(Work::Stall));
}

TEST(MappedStreamTest, DeliversWhatLiesInTheFile) {
  const Directory directory;
  const Geometry geometry = write_experts(
      directory, {{}, {.n_expert = 24, .merged = true}, {.gate_bytes = 8192, .shard = 1}}, 2);
  Opened s = open_shallow(geometry, 0, {.io = IoMode::Mmap});
  TraceWriter writer(directory.file("m.xrt"), geometry, false, "{}");
  s.stream->observe(&writer);
  Timeline timeline;
  s.stream->record(&timeline);
  work(*s.stream, 12);
  const Counters& c = s.stream->counters();
  EXPECT_EQ(c.tokens, 15u);
  EXPECT_EQ(c.mapped, 15u * 12);
  EXPECT_EQ(c.uses_expected, c.mapped);
  EXPECT_EQ(c.steady.total() + c.first.total(), 0u);  // outside the classes
  EXPECT_EQ(c.demand.reads + c.prompt.reads, 0u);
  EXPECT_TRUE(s.stream->io().mapped);
  EXPECT_GT(timeline.events(), 0u);
  EXPECT_GT(c.prompt_experts_touched, 0u);
}

TEST(MappedStreamTest, RefusesWhatNeedsResidencyAndFilesThatAreTooShort) {
  const Directory directory;
  const Geometry geometry = write_experts(directory, {{}});
  StreamOptions options;
  options.io = IoMode::Mmap;
  options.moce.mode = Moce::Bonus;
  EXPECT_THROW(open_shallow(geometry, 0, options), Error);
  options = {.io = IoMode::Mmap, .alias = true};
  EXPECT_THROW(open_shallow(geometry, 0, options), Error);
  options = {.io = IoMode::Mmap};
  std::filesystem::resize_file(geometry.shards[0],
                               std::filesystem::file_size(geometry.shards[0]) - 1);
  EXPECT_THROW(open_shallow(geometry, 0, options), Error);
}

TEST(MappedStreamTest, PaysForAShortRunOverACacheThatHoldsEverything) {
  constexpr uint64_t kBytes = uint64_t{8} << 30;
  const IoFacts facts{
      .holds_all = true, .expert_bytes = kBytes, .cached_bytes = kBytes, .max_tokens = 100};
  EXPECT_TRUE(mapping_pays(facts));
  const auto with = [&](auto&& change) {
    IoFacts other = facts;
    change(other);
    return mapping_pays(other);
  };
  EXPECT_FALSE(with([](IoFacts& f) { f.holds_all = false; }));
  EXPECT_FALSE(with([](IoFacts& f) { f.cached_bytes = f.cached_bytes / 10 * 9; }));
  EXPECT_FALSE(with([](IoFacts& f) { f.max_tokens = 1000; }));
  EXPECT_FALSE(with([](IoFacts& f) { f.max_tokens = 0; }));
  EXPECT_FALSE(with([](IoFacts& f) { f.expert_bytes = f.cached_bytes = 1 << 20; }));

  StreamOptions options;
  const ArenaShape shape;
  options.io = IoMode::Mmap;
  EXPECT_EQ(io_choice(options, shape), "in the page cache (--io mmap)");
  EXPECT_NE(io_choice(options, shape, true).find("--io auto"), std::string::npos);
  options.io = IoMode::Auto;
  EXPECT_NE(io_choice(options, shape).find("in an arena (--io auto"), std::string::npos);
}

TEST(MappedStreamTest, WhatIsInThePageCacheIsSeen) {
  const Directory directory;
  const Geometry geometry = write_experts(directory, {{.gate_bytes = 64 << 10}});
  // Just written: in the cache as a whole, but for pages that hold something else too.
  EXPECT_GE(cached_expert_bytes(geometry), 16 * geometry.layers[0].expert_bytes());
}

}  // namespace
}  // namespace penstock::experts::test
