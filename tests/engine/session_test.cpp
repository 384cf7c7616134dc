// Sessions, generation and conversations on tiny models.
#include "engine/session.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
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

const auto kIgnoreText = [](const Output&) {};

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

  const KeepGoing never = [] { return false; };
  EXPECT_EQ(generate(session, again, {}, kIgnoreText, never).reason, StopReason::Cancelled);
  EXPECT_FALSE(session.prefill(std::span(tokens_).first(5), never));
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

TEST_P(SessionTest, APromptStopsBetweenTwoLayers) {
  const auto n_vocab = static_cast<size_t>(runtime_->info().n_vocab);
  const std::span<const int32_t> prompt = std::span(tokens_).first(40);
  std::vector<float> expected;
  {
    const auto runtime = open_tiny(path_, {});
    Session session(*runtime);
    session.prefill(prompt);
    expected.assign(session.logits().begin(), session.logits().end());
  }
  Session session(*runtime_);
  const int n_layer = runtime_->info().n_layer;
  for (int stop_at = 0; stop_at <= 2 * n_layer + 3; ++stop_at) {
    session.reset();
    Conversation conversation(session);
    int asked = 0;
    const KeepGoing until = [&] { return asked++ < stop_at; };
    // Two chunks, before and after the checkpoint: each asks once, and once for every layer.
    const bool done = conversation.advance(prompt, 30, until);
    EXPECT_EQ(done, stop_at >= 2 * (n_layer + 1));
    EXPECT_EQ(session.intact(), done || stop_at % (n_layer + 1) == 0);
    ASSERT_TRUE(conversation.advance(prompt, 30));
    EXPECT_TRUE(session.intact());
    EXPECT_EQ(std::memcmp(session.logits().data(), expected.data(), n_vocab * sizeof(float)), 0);
  }
}

TEST_P(SessionTest, HandsOutLogProbabilities) {
  Session session(*runtime_);
  session.prefill(std::span(tokens_).first(9));
  Sampler sampler({.temperature = 1.0f, .seed = 5});
  GenerateOptions options;
  options.max_tokens = 12;
  options.n_logprobs = 3;
  std::vector<GeneratedToken> tokens;
  const GenerateResult result = generate(session, sampler, options, [&](const Output& output) {
    tokens.insert(tokens.end(), output.tokens.begin(), output.tokens.end());
  });
  ASSERT_EQ(tokens.size(), 12U);
  session.reset();
  session.prefill(std::span(tokens_).first(9));
  for (size_t i = 0; i < tokens.size(); ++i) {
    EXPECT_EQ(tokens[i].id, result.tokens[i]);
    const std::vector<TokenProbability> all =
        top_logprobs(session.logits(), static_cast<int>(session.logits().size()));
    ASSERT_EQ(tokens[i].top.size(), 3U);
    for (size_t k = 0; k < 3; ++k) EXPECT_EQ(tokens[i].top[k].id, all[k].id);
    const auto own = std::find_if(all.begin(), all.end(),
                                  [&](const TokenProbability& p) { return p.id == tokens[i].id; });
    EXPECT_EQ(tokens[i].logprob, own->logprob);
    session.decode(tokens[i].id);
  }
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

void expect_refused(const RuntimeOptions& options, ErrorKind kind, const std::string& flag) {
  try {
    Runtime::open(options, nullptr);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind);
    EXPECT_NE(std::string(error.what()).find(flag), std::string::npos) << error.what();
  }
}

TEST_P(SessionTest, RefusesPlansThatDoNotFitBeforeTakingMemory) {
  RuntimeOptions options;
  options.model_path = path_;
  options.memory = 1 << 20;
  expect_refused(options, ErrorKind::Plan, "--memory");
}

// Neither of the two has what it needs: several streams in one, no shared expert in the other.
TEST_P(SessionTest, RefusesAPredictorThatTheModelCannotHave) {
  RuntimeOptions options;
  options.model_path = path_;
  options.stream.predictor = experts::Predictor::ResidualShared;
  expect_refused(options, ErrorKind::Usage, "--predictor");
}

INSTANTIATE_TEST_SUITE_P(Architectures, SessionTest, ::testing::Values("qwen4exp", "qwen3moe"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace penstock::engine::test
