#include "experts/stream.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "experts/expert_files.h"

namespace penstock::experts::test {
namespace {

struct Opened {
  Geometry geometry;
  std::shared_ptr<const StreamFiles> files;
  ArenaShape shape;
  std::unique_ptr<Stream> stream;
};

Opened open_stream(const Geometry& geometry, uint64_t n_slots, const StreamOptions& options = {}) {
  Opened s{geometry, open_expert_files(geometry, options.io), {}, nullptr};
  s.shape = arena_shape(geometry, s.files->alignment());
  share_slots(s.shape, n_slots, options.depth, static_cast<uint64_t>(options.transit_slots()));
  s.stream = make_stream(geometry, s.files, s.shape, options);
  return s;
}

// Runs a layer and returns the experts in the order of delivery, having compared every byte.
std::vector<int> run_layer(Stream& stream, int index, const std::vector<float>& logits, int rows,
                           Phase phase) {
  const RouteRule rule{stream.geometry().layers[static_cast<size_t>(index)].n_used, true, 1.0f};
  const Routing routing = stream.begin(index, logits.data(), rows, rule, phase);
  std::set<int> selected(routing.ids.begin(), routing.ids.end());
  std::vector<int> order;
  for (;;) {
    const std::span<const ReadyExpert> batch = stream.next();
    if (batch.empty()) break;
    for (const ReadyExpert& ready : batch) {
      expect_expert(stream.geometry(), index, ready);
      order.push_back(ready.expert);
    }
  }
  stream.end();
  std::vector<int> sorted = order;
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(sorted, std::vector<int>(selected.begin(), selected.end()));
  return order;
}

class StreamModes : public testing::TestWithParam<IoMode> {};

TEST_P(StreamModes, RandomStepsDeliverEveryExpertOnceWithItsBytes) {
  const Directory directory;
  const Geometry geometry = write_experts(
      directory, {{}, {.n_expert = 24, .merged = true}, {.gate_bytes = 4096, .down_bytes = 512}});
  StreamOptions options;
  options.io = GetParam();
  options.depth = 2;
  Opened s = open_stream(geometry, 30, options);
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0, 2);
  for (int step = 0; step < 40; ++step) {
    const Phase phase = step % 8 == 3 ? Phase::Prompt : Phase::Decode;
    const int rows = phase == Phase::Prompt ? 20 : 1;
    for (size_t l = 0; l < geometry.layers.size(); ++l) {
      std::vector<float> logits(static_cast<size_t>(rows) *
                                static_cast<size_t>(geometry.layers[l].n_expert));
      for (float& z : logits) z = normal(random);
      run_layer(*s.stream, static_cast<int>(l), logits, rows, phase);
    }
    if (phase == Phase::Decode) s.stream->end_step(rows);
  }
  const Counters& c = s.stream->counters();
  EXPECT_EQ(c.tokens, 35u);
  EXPECT_EQ(c.first.total() + c.steady.total(), 35u * 12u);
  EXPECT_GT(c.steady.arena, 0u);
  EXPECT_GT(c.evict_total, 0u);
  EXPECT_GT(c.prompt_arena_used, 0u);
}

INSTANTIATE_TEST_SUITE_P(Io, StreamModes,
                         testing::Values(IoMode::Auto, IoMode::Uring, IoMode::Pread,
                                         IoMode::Buffered),
                         [](const auto& mode) { return std::string(io_mode_name(mode.param)); });

}  // namespace
}  // namespace penstock::experts::test
