// What a session does when memory gets short: slots go, the text stays; then it ends in order.
#include <gtest/gtest.h>

#include <atomic>

#include "base/error.h"
#include "engine/generate.h"
#include "engine/tiny_runtime.h"

namespace penstock::engine::test {
namespace {

constexpr uint64_t kPlenty = uint64_t{1} << 50;

class WatchedSession : public ::testing::Test {
 protected:
  void SetUp() override {
    penstock::testing::TinyOptions options;
    options.matrices = gguf::TypeId::Q8_0;
    path_ = penstock::testing::write_tiny(folder_.path(), "qwen3moe", options);
    tokens_ = penstock::testing::tiny_tokens(16);
  }

  std::unique_ptr<Runtime> open() {
    RuntimeOptions options;
    options.model_path = path_;
    options.threads = 1;
    options.n_ctx = 96;
    options.arena_slots = 4096;
    options.stream.huge_seconds = 0;
    options.stream.depth = 1;
    options.stream.pack.file = "none";
    options.watchdog_ms = 60000;  // looks once by itself, then when told to
    options.memory_sampler = [this] { return experts::MemorySample{0, available_, 0}; };
    return Runtime::open(options, nullptr);
  }

  // The tokens of a run in which memory has this state from token `from` on.
  GenerateResult run(Runtime& runtime, int from, uint64_t available) {
    available_ = kPlenty;
    runtime.watchdog()->look();
    Session session(runtime);
    session.prefill(tokens_);
    Sampler sampler({.temperature = 1.0f, .seed = 5});
    GenerateOptions options;
    options.max_tokens = 40;
    int n = 0;
    return generate(
        session, sampler, options, [](const Output&) {},
        [&] {
          if (n++ == from) {
            available_ = available;
            runtime.watchdog()->look();
          }
          return true;
        });
  }

  penstock::testing::TemporaryFolder folder_;
  std::string path_;
  std::vector<int32_t> tokens_;
  std::atomic<uint64_t> available_{kPlenty};
};

TEST_F(WatchedSession, ShrinkingChangesNoToken) {
  const auto runtime = open();
  const GenerateResult calm = run(*runtime, 1000, kPlenty);
  const uint64_t slots = runtime->stream().shape().slots();
  EXPECT_TRUE(runtime->watchdog()->report().events.empty());
  const uint64_t fuse = runtime->plan().fuse;
  const GenerateResult shrunk = run(*runtime, 5, fuse - 1);
  EXPECT_EQ(shrunk.tokens, calm.tokens);
  EXPECT_EQ(shrunk.reason, StopReason::Length);
  EXPECT_LT(runtime->stream().shape().slots(), slots);
  const experts::WatchdogReport report = runtime->watchdog()->report();
  ASSERT_EQ(report.events.size(), 1u);
  EXPECT_EQ(report.events[0].pressure, experts::Pressure::Shrink);
  EXPECT_GT(report.events[0].given_back, 0u);
  // On fewer slots, prompt and all, the same again.
  EXPECT_EQ(run(*runtime, 1000, kPlenty).tokens, calm.tokens);
}

TEST_F(WatchedSession, APromptGivesBackBetweenItsLayers) {
  const auto runtime = open();
  Session calm(*runtime);
  ASSERT_TRUE(calm.prefill(tokens_));
  const std::vector<float> logits(calm.logits().begin(), calm.logits().end());
  const uint64_t slots = runtime->stream().shape().slots();
  Session session(*runtime);
  int asked = 0;
  uint64_t during = 0;  // slots while the only chunk is under way
  ASSERT_TRUE(session.prefill(tokens_, [&] {
    during = runtime->stream().shape().slots();
    if (++asked == 2) {
      available_ = runtime->plan().fuse - 1;
      runtime->watchdog()->look();
    }
    return true;
  }));
  EXPECT_GE(asked, 3);
  EXPECT_LT(during, slots);
  EXPECT_TRUE(std::equal(logits.begin(), logits.end(), session.logits().begin()));
}

TEST_F(WatchedSession, TheTokenIsFinishedBeforeTheRunEnds) {
  const auto runtime = open();
  const GenerateResult calm = run(*runtime, 1000, kPlenty);
  const GenerateResult ended = run(*runtime, 7, 0);
  EXPECT_EQ(ended.reason, StopReason::Watchdog);
  EXPECT_STREQ(stop_reason_text(ended.reason), "watchdog");
  ASSERT_EQ(ended.tokens.size(), 8u);
  EXPECT_TRUE(std::equal(ended.tokens.begin(), ended.tokens.end(), calm.tokens.begin()));
  EXPECT_EQ(runtime->watchdog()->report().events.back().pressure, experts::Pressure::Abort);
  // Nothing new begins.
  Session session(*runtime);
  EXPECT_FALSE(session.prefill(tokens_));
  EXPECT_EQ(prefill_stop(session), StopReason::Watchdog);
}

TEST_F(WatchedSession, AWarningStopsReadAheadOnly) {
  const auto runtime = open();
  const GenerateResult calm = run(*runtime, 1000, kPlenty);
  const uint64_t slots = runtime->stream().shape().slots();
  const GenerateResult warned = run(*runtime, 3, runtime->plan().fuse);
  EXPECT_EQ(warned.tokens, calm.tokens);
  EXPECT_EQ(runtime->stream().shape().slots(), slots);
  EXPECT_EQ(runtime->stream().look_ahead(), 0);
}

}  // namespace
}  // namespace penstock::engine::test
