// Whole models: what the engine counted while it wrote a trace is what a replay of it counts.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "engine/generate.h"
#include "engine/tiny_runtime.h"
#include "experts/trace_file.h"
#include "measure/sim.h"
#include "measure/sim_support.h"

namespace penstock::measure {
namespace {

using engine::test::open_tiny;

struct Recorded {
  experts::Counters counters;
  SimCounts sim;
};

// Three turns of prompts in chunks and generated tokens.
void three_turns(engine::Runtime& runtime, const std::vector<int32_t>& text, int tokens) {
  engine::Session session(runtime);
  size_t at = 0;
  for (const size_t prompt : {size_t{17}, size_t{3}, size_t{9}}) {
    session.prefill(std::span(text).subspan(at, prompt));
    at += prompt;
    engine::GenerateOptions options;
    options.max_tokens = tokens;
    options.ignore_end = true;
    engine::Sampler sampler({.temperature = 0.9f, .seed = at});
    engine::generate(session, sampler, options, [](const engine::Output&) {});
  }
}

Recorded record(engine::RuntimeOptions options, const std::string& path,
                const std::vector<int32_t>& text, int tokens) {
  options.stream.huge_seconds = 0;
  const auto runtime = engine::Runtime::open(options, nullptr);
  experts::Stream& stream = runtime->stream();
  experts::TraceWriter writer(
      path, stream.geometry(), options.stream.moce.on(),
      trace_header(stream.shape(), stream.geometry().layers.size(), options.stream.depth));
  stream.observe(&writer);
  three_turns(*runtime, text, tokens);
  writer.finish();
  const TraceModel model = read_trace_model(path);
  SimRequest request;
  request.settings = {{.policy = policy_of(options.stream.evict),
                       .hot_share = options.stream.hot_share,
                       .half_life = options.stream.half_life}};
  return {runtime->counters(), simulate(model, request)[0].counts};
}

class SimAgainstEngine : public ::testing::TestWithParam<const char*> {
 protected:
  penstock::testing::TemporaryFolder folder_;
};

TEST_P(SimAgainstEngine, TinyModelsAtEveryPolicyAndSize) {
  penstock::testing::TinyOptions tiny;
  tiny.matrices = gguf::TypeId::Q8_0;
  const std::string path = penstock::testing::write_tiny(folder_.path(), GetParam(), tiny);
  const std::vector<int32_t> text = penstock::testing::tiny_tokens(64);
  for (const experts::Evict evict :
       {experts::Evict::Lfu, experts::Evict::Lru, experts::Evict::Cycle}) {
    for (const uint64_t slots : {8, 13, 25, 31, 4096}) {
      // The others want what one token can touch, at the least.
      if (evict != experts::Evict::Lfu && slots < 24) continue;
      engine::RuntimeOptions options;
      options.model_path = path;
      options.threads = 1;
      options.n_ctx = 96;
      options.prompt_chunk = 7;
      options.arena_slots = slots;
      options.stream.depth = 1;
      options.stream.evict = evict;
      options.stream.read_ahead = experts::ReadAhead::Off;
      options.stream.pack.file = "none";
      options.profile = "none";
      const Recorded run = record(options, folder_.path() + "/t.xrt", text, 20);
      EXPECT_EQ(run.counters.tokens, 60u);
      expect_same(run.counters, run.sim,
                  fmt::format("{} {} {}", GetParam(), experts::evict_name(evict), slots));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Architectures, SimAgainstEngine,
                         ::testing::Values("qwen4exp", "qwen3moe", "qwen35moe", "qwen3next"));

TEST(SimAgainstSample, EveryPolicyAndSize) {
  const penstock::testing::TemporaryFolder folder;
  const std::vector<int32_t> text = penstock::testing::tiny_tokens(64);
  for (const experts::Evict evict :
       {experts::Evict::Lfu, experts::Evict::Lru, experts::Evict::Cycle}) {
    for (const uint64_t slots : {66, 100, 300}) {
      engine::RuntimeOptions options;
      options.model_path = PENSTOCK_SOURCE_DIR "/models/sample-qwen4exp-q8_0.gguf";
      options.threads = 2;
      options.n_ctx = 160;
      options.prompt_chunk = 8;
      options.arena_slots = slots;
      options.stream.evict = evict;
      options.stream.hot_share = slots == 300 ? 0.25 : 0;
      options.stream.read_ahead = experts::ReadAhead::Off;
      options.stream.pack.file = "none";
      options.profile = "none";
      const Recorded run = record(options, folder.path() + "/t.xrt", text, 40);
      expect_same(run.counters, run.sim, fmt::format("{} {}", experts::evict_name(evict), slots));
      EXPECT_GT(run.sim.misses(), 0u);
    }
  }
}

}  // namespace
}  // namespace penstock::measure
