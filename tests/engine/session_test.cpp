// Sessions, generation and conversations on tiny models.
#include "engine/session.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/error.h"
#include "engine/conversation.h"
#include "engine/generate.h"
#include "engine/tiny_runtime.h"

namespace penstock::engine::test {
namespace {

class SessionTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    penstock::testing::TinyOptions options;
    options.matrices = gguf::TypeId::Q8_0;
    path_ = penstock::testing::write_tiny(folder_.path(), GetParam(), options);
    runtime_ = open_tiny(path_, {});
    tokens_ = penstock::testing::tiny_tokens(64);
  }

  penstock::testing::TemporaryFolder folder_;
  std::string path_;
  std::unique_ptr<Runtime> runtime_;
  std::vector<int32_t> tokens_;
};

const auto kIgnoreText = [](std::string_view) {};

TEST_P(SessionTest, GeneratesTheSameTwiceAndRespectsTheLimits) {
  GenerateOptions options;
  options.max_tokens = 12;
  GenerateResult results[2];
  for (GenerateResult& result : results) {
    Session session(*runtime_);
    session.prefill(std::span(tokens_).first(9));
    Sampler sampler({.temperature = 1.0f, .seed = 5});
    result = generate(session, sampler, options, kIgnoreText);
    EXPECT_EQ(session.position(), 9 + 12);
    EXPECT_EQ(session.timings().prefill_tokens, 9);
    EXPECT_EQ(session.timings().first_tokens, 1);
    EXPECT_EQ(session.timings().decode_tokens, 11);
  }
  EXPECT_EQ(results[0].tokens.size(), 12U);
  EXPECT_EQ(results[0].reason, StopReason::Length);
  EXPECT_EQ(results[0].tokens, results[1].tokens);
}

TEST_P(SessionTest, StopsWhenTheContextIsFull) {
  Session session(*runtime_);
  session.prefill(std::span(tokens_).first(60));
  Sampler sampler({.temperature = 1.0f, .seed = 1});
  const GenerateResult result = generate(session, sampler, {}, kIgnoreText);
  EXPECT_EQ(result.reason, StopReason::ContextFull);
  EXPECT_EQ(session.position(), session.n_ctx());
  EXPECT_EQ(result.tokens.size(), 96U - 60 + 1);  // the last one has no room to be evaluated
  EXPECT_THROW(session.decode(1), Error);
  EXPECT_THROW(session.prefill(std::span(tokens_).first(1)), Error);
}

TEST_P(SessionTest, StopTokensAndCancellation) {
  Session session(*runtime_);
  session.prefill(std::span(tokens_).first(9));
  Sampler greedy({});
  GenerateOptions options;
  options.max_tokens = 3;
  const GenerateResult free = generate(session, greedy, options, kIgnoreText);
  ASSERT_EQ(free.tokens.size(), 3U);

  session.reset();
  session.prefill(std::span(tokens_).first(9));
  options.stop_tokens = {free.tokens[0]};
  Sampler again({});
  const GenerateResult stopped = generate(session, again, options, kIgnoreText);
  EXPECT_EQ(stopped.reason, StopReason::StopToken);
  EXPECT_TRUE(stopped.tokens.empty());

  const std::atomic<bool> cancel{true};
  EXPECT_EQ(generate(session, again, {}, kIgnoreText, &cancel).reason, StopReason::Cancelled);
  EXPECT_FALSE(session.prefill(std::span(tokens_).first(5), &cancel));
  EXPECT_EQ(session.position(), 9);
}

TEST_P(SessionTest, AConversationReusesWhatTheStateHolds) {
  const auto n_vocab = static_cast<size_t>(runtime_->info().n_vocab);
  const auto fresh = [&](std::span<const int32_t> prompt) {
    const auto runtime = open_tiny(path_, {});
    Session session(*runtime);
    session.prefill(prompt);
    return std::vector<float>(session.logits().begin(), session.logits().end());
  };
  const auto same = [&](Session& session, const std::vector<float>& expected) {
    return std::memcmp(session.logits().data(), expected.data(), n_vocab * sizeof(float)) == 0;
  };

  Session session(*runtime_);
  Conversation conversation(session);
  std::vector<int32_t> prompt(tokens_.begin(), tokens_.begin() + 12);
  ASSERT_TRUE(conversation.advance(prompt, 10));
  EXPECT_EQ(conversation.reused(), 0);
  EXPECT_TRUE(same(session, fresh(prompt)));

  // The answer becomes part of the next prompt as it was generated: all of it is reused.
  session.decode(7);
  prompt.insert(prompt.end(), {7, 8, 9});
  ASSERT_TRUE(conversation.advance(prompt, 14));
  EXPECT_EQ(conversation.reused(), 13);
  EXPECT_TRUE(same(session, fresh(prompt)));

  // The template rewrote the answer: back to where the prompts agree, at the latest to the
  // checkpoint at the stable prefix.
  session.decode(20);
  session.decode(21);
  prompt.resize(14);
  prompt.insert(prompt.end(), {30, 31});
  ASSERT_TRUE(conversation.advance(prompt, 15));
  EXPECT_EQ(conversation.reused(), 14);
  EXPECT_TRUE(same(session, fresh(prompt)));

  // Another conversation altogether.
  prompt.assign(tokens_.begin() + 3, tokens_.begin() + 20);
  ASSERT_TRUE(conversation.advance(prompt, 17));
  EXPECT_EQ(conversation.reused(), 0);
  EXPECT_TRUE(same(session, fresh(prompt)));

  // The same prompt again: only what is needed for its last logits is evaluated.
  ASSERT_TRUE(conversation.advance(prompt, 17));
  EXPECT_TRUE(same(session, fresh(prompt)));
  EXPECT_THROW(conversation.advance({}, 0), Error);
}

TEST_P(SessionTest, RefusesStatesThatAreNotItsOwn) {
  const std::string file = folder_.path() + "/state";
  Session session(*runtime_);
  session.prefill(std::span(tokens_).first(9));
  session.save(file);

  std::filesystem::resize_file(file, std::filesystem::file_size(file) - 1);
  EXPECT_THROW(session.restore(file), Error);
  std::filesystem::resize_file(file, 10);
  EXPECT_THROW(session.restore(file), Error);
  std::ofstream(file) << "not a state, but long enough to hold a header and all the logits"
                      << std::string(100000, ' ');
  EXPECT_THROW(session.restore(file), Error);
  EXPECT_THROW(session.restore(folder_.path() + "/missing"), Error);

  // Of a model that has other weights.
  penstock::testing::TinyOptions options;
  options.n_expert = 12;
  options.matrices = gguf::TypeId::Q8_0;
  const auto other = open_tiny(
      penstock::testing::write_tiny(folder_.path(), GetParam(), options, "other.gguf"), {});
  Session stranger(*other);
  stranger.prefill(std::span(tokens_).first(9));
  stranger.save(file);
  EXPECT_THROW(session.restore(file), Error);
  session.reset();
  session.prefill(std::span(tokens_).first(9));  // and it is usable again
  EXPECT_EQ(session.position(), 9);
}

TEST_P(SessionTest, RefusesPlansThatDoNotFitBeforeTakingMemory) {
  RuntimeOptions options;
  options.model_path = path_;
  options.memory = 1 << 20;
  try {
    Runtime::open(options, nullptr);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Plan);
    EXPECT_NE(std::string(error.what()).find("--memory"), std::string::npos) << error.what();
  }
}

INSTANTIATE_TEST_SUITE_P(Architectures, SessionTest, ::testing::Values("qwen4exp", "qwen3moe"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace penstock::engine::test
