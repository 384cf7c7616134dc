// Law 2: the same bits, however a text came in and whatever ran beside it.
#include <gtest/gtest.h>

#include <tuple>

#include "models/harness.h"

namespace penstock::testing {
namespace {

using experts::Phase;
using quant::Precision;

HarnessOptions options_for(Precision precision) {
  HarnessOptions options;
  options.open.precision = precision;
  // Quantised weights, so that the fast path rounds activations to 8-bit blocks.
  if (precision == Precision::Fast) options.tiny.matrices = gguf::TypeId::Q8_0;
  return options;
}

std::vector<int32_t> part(const std::vector<int32_t>& tokens, size_t start, size_t n) {
  const auto first = tokens.begin() + static_cast<std::ptrdiff_t>(start);
  return {first, first + static_cast<std::ptrdiff_t>(n)};
}

// 40 tokens cross the sparse threshold (11 in the tiny qwen4exp) and hold two end-of-sequence
// tokens, at 9 and 20.
constexpr int kTokens = 40;

class Invariance : public ::testing::TestWithParam<std::tuple<std::string, Precision>> {
 protected:
  std::string architecture() const { return std::get<0>(GetParam()); }
  HarnessOptions options() const { return options_for(std::get<1>(GetParam())); }
  std::vector<float> reference() const {
    Harness h(architecture(), options());
    return h.forward(tiny_tokens(kTokens));
  }
};

TEST_P(Invariance, ChunksAndPhases) {
  const std::vector<float> expected = reference();
  const std::vector<int32_t> tokens = tiny_tokens(kTokens);
  Harness h(architecture(), options());
  EXPECT_TRUE(same_bits(h.forward_chunks(tokens, {1}, Phase::Decode), expected)) << "one by one";
  const std::vector<std::vector<size_t>> splits = {{13}, {1, 39}, {9, 2, 9, 1, 19}, {39, 1}, {7}};
  for (const auto& sizes : splits) {
    h.state().reset();
    EXPECT_TRUE(same_bits(h.forward_chunks(tokens, sizes, Phase::Prompt), expected))
        << "chunks of " << sizes[0];
  }
}

TEST_P(Invariance, SequencesTogether) {
  const std::vector<int32_t> tokens = tiny_tokens(kTokens);
  const std::vector<std::vector<int32_t>> texts = {
      tokens, {tokens.begin() + 3, tokens.begin() + 20}, {tokens.rbegin(), tokens.rend()}};
  std::vector<std::vector<float>> expected;
  for (const std::vector<int32_t>& text : texts) {
    Harness h(architecture(), options());
    expected.push_back(h.forward(text));
  }
  Harness h(architecture(), options());
  std::vector<std::unique_ptr<models::State>> states;
  std::vector<models::Sequence> sequences;
  for (const std::vector<int32_t>& text : texts) {
    states.push_back(h.model().new_state(options().state));
    sequences.push_back({states.back().get(), text, 0});
  }
  const std::vector<int32_t> after = {5};
  for (const size_t rows_at_once : {size_t{1}, size_t{7}, size_t{100}}) {
    std::vector<float> buffer(rows_at_once * h.vocab());
    std::vector<std::vector<float>> got(texts.size());
    for (auto& state : states) state->reset();
    sequences[1].first_logits = 11;
    h.model().forward_together(sequences, h.stream(), buffer,
                               [&](size_t s, int64_t first, std::span<const float> logits) {
                                 EXPECT_EQ(static_cast<size_t>(first) * h.vocab(),
                                           got[s].size() + (s == 1 ? 11 * h.vocab() : 0));
                                 got[s].insert(got[s].end(), logits.begin(), logits.end());
                               });
    EXPECT_TRUE(same_bits(got[0], expected[0])) << rows_at_once;
    const auto from = expected[1].begin() + static_cast<std::ptrdiff_t>(11 * h.vocab());
    EXPECT_TRUE(same_bits(got[1], {from, expected[1].end()})) << rows_at_once;
    EXPECT_TRUE(same_bits(got[2], expected[2])) << rows_at_once;
  }
  // The states go on as if each had been alone.
  std::vector<float> next(h.vocab()), alone(h.vocab());
  h.state().reset();
  h.model().forward(h.state(), h.stream(), {texts[2], Phase::Prompt, models::Logits::None, nullptr},
                    nullptr);
  const models::Batch batch{after, Phase::Decode, models::Logits::Last, nullptr};
  h.model().forward(h.state(), h.stream(), batch, alone.data());
  h.model().forward(*states[2], h.stream(), batch, next.data());
  EXPECT_TRUE(same_bits(next, alone));
}

TEST_P(Invariance, ThreadsArrivalAndMapping) {
  const std::vector<float> expected = reference();
  for (const auto& [threads, arrival] :
       {std::pair(2, Arrival::OneByOne), std::pair(3, Arrival::Backwards)}) {
    HarnessOptions other = options();
    other.threads = threads;
    other.arrival = arrival;
    other.dense = models::DenseMode::Map;
    Harness h(architecture(), other);
    EXPECT_TRUE(same_bits(h.forward_chunks(tiny_tokens(kTokens), {24, 1}, Phase::Decode), expected))
        << threads << " threads";
  }
}

TEST_P(Invariance, StepsAndCommit) {
  const std::vector<float> expected = reference();
  const std::vector<int32_t> tokens = tiny_tokens(kTokens);
  Harness h(architecture(), options());
  const size_t vocab = h.vocab();
  // Rows evaluated and rows kept; what is not kept was a wrong guess.
  const std::vector<std::pair<size_t, int>> steps = {{1, 1}, {4, 2}, {8, 8}, {3, 0}, {5, 1},
                                                     {8, 5}, {1, 0}, {2, 2}, {8, 7}, {6, 3}};
  size_t at = 0;
  for (const auto& [rows, keep] : steps) {
    std::vector<int32_t> guess = part(tokens, at, rows);
    for (size_t i = static_cast<size_t>(keep) + 1; i < rows; ++i) guess[i] = 77;
    const std::vector<float> logits = h.step(guess);
    const size_t right = std::min(rows, static_cast<size_t>(keep) + 1);
    EXPECT_EQ(
        std::memcmp(logits.data(), expected.data() + at * vocab, right * vocab * sizeof(float)), 0)
        << "at " << at;
    h.model().commit(h.state(), keep);
    at += static_cast<size_t>(keep);
    EXPECT_EQ(h.state().position(), static_cast<int64_t>(at));
  }
  const std::vector<float> rest = h.forward(part(tokens, at, tokens.size() - at), Phase::Decode);
  EXPECT_EQ(std::memcmp(rest.data(), expected.data() + at * vocab, rest.size() * sizeof(float)), 0);
}

TEST_P(Invariance, SaveAndRestoreAnywhere) {
  const std::vector<float> expected = reference();
  const std::vector<int32_t> tokens = tiny_tokens(kTokens);
  Harness a(architecture(), options());
  Harness b(architecture(), options());
  const size_t vocab = a.vocab();
  for (size_t at = 1; at + 4 < tokens.size(); ++at) {
    a.forward(part(tokens, at - 1, 1), Phase::Decode);
    if (at % 3 != 0 && at > 12) continue;
    std::vector<std::byte> saved;
    a.state().save(models::State::Parts::All, [&](std::span<const std::byte> bytes) {
      saved.insert(saved.end(), bytes.begin(), bytes.end());
    });
    EXPECT_EQ(saved.size(), a.state().saved_bytes(models::State::Parts::All));
    size_t read = 0;
    b.state().reset();
    b.state().restore(
        [&](std::span<std::byte> out) {
          ASSERT_LE(read + out.size(), saved.size());
          std::memcpy(out.data(), saved.data() + read, out.size());
          read += out.size();
        },
        "test");
    EXPECT_EQ(read, saved.size());
    const std::vector<float> logits = b.forward(part(tokens, at, 4));
    EXPECT_EQ(std::memcmp(logits.data(), expected.data() + at * vocab, 4 * vocab * sizeof(float)),
              0)
        << "at " << at;
  }
}

// Going back to a checkpoint: the recurrent parts alone, keys and values still in memory.
TEST_P(Invariance, Checkpoint) {
  const std::vector<float> expected = reference();
  const std::vector<int32_t> tokens = tiny_tokens(kTokens);
  Harness h(architecture(), options());
  h.forward(part(tokens, 0, 18));
  std::vector<std::byte> saved;
  h.state().save(models::State::Parts::Recurrent, [&](std::span<const std::byte> bytes) {
    saved.insert(saved.end(), bytes.begin(), bytes.end());
  });
  h.forward({1, 2, 3, 4, 5, 6, 7});
  size_t read = 0;
  h.state().restore(
      [&](std::span<std::byte> out) {
        std::memcpy(out.data(), saved.data() + read, out.size());
        read += out.size();
      },
      "test");
  const std::vector<float> rest = h.forward(part(tokens, 18, 22));
  EXPECT_EQ(std::memcmp(rest.data(), expected.data() + 18 * h.vocab(), rest.size() * sizeof(float)),
            0);
}

TEST_P(Invariance, InstructionSets) {
  const quant::Isa best = quant::current_isa();
  const std::vector<float> expected = reference();
  ASSERT_TRUE(quant::set_isa(quant::Isa::Scalar));
  const std::vector<float> scalar = reference();
  quant::set_isa(best);
  EXPECT_TRUE(same_bits(scalar, expected));
}

TEST_P(Invariance, LastLogitsAlone) {
  const std::vector<float> expected = reference();
  Harness h(architecture(), options());
  std::vector<float> logits(h.vocab());
  const std::vector<int32_t> tokens = tiny_tokens(kTokens);
  h.model().forward(h.state(), h.stream(),
                    {part(tokens, 0, 30), Phase::Prompt, models::Logits::None, nullptr}, nullptr);
  h.model().forward(h.state(), h.stream(),
                    {part(tokens, 30, 10), Phase::Prompt, models::Logits::Last, nullptr},
                    logits.data());
  EXPECT_EQ(std::memcmp(logits.data(), expected.data() + (kTokens - 1) * h.vocab(),
                        h.vocab() * sizeof(float)),
            0);
}

INSTANTIATE_TEST_SUITE_P(All, Invariance,
                         ::testing::Combine(::testing::Values("qwen3moe", "qwen35moe", "qwen3next",
                                                              "qwen4exp"),
                                            ::testing::Values(Precision::Exact, Precision::Fast)),
                         [](const auto& test) {
                           return std::get<0>(test.param) +
                                  (std::get<1>(test.param) == Precision::Fast ? "_fast" : "_exact");
                         });

// A prompt long enough for several blocks of 256 positions, dense and sparse.
TEST(LongPrompt, ChunksAndThreads) {
  for (const char* architecture : {"qwen3moe", "qwen4exp"}) {
    std::vector<int32_t> tokens;
    for (int i = 0; i < 600; ++i) tokens.push_back((i * i + 7 * i + 11) % 128);
    HarnessOptions options = options_for(Precision::Fast);
    options.state = {.n_ctx = 640, .kv = models::KvType::F16};
    std::vector<float> expected;
    {
      Harness h(architecture, options);
      expected = h.forward(tokens);
    }
    options.threads = 2;
    Harness h(architecture, options);
    EXPECT_TRUE(same_bits(h.forward_chunks(tokens, {1, 300, 3, 8, 256}, Phase::Prompt), expected))
        << architecture;
  }
}

TEST(Draft, ChunksDoNotMatter) {
  HarnessOptions options = options_for(Precision::Fast);
  options.tiny.draft = true;
  options.open.draft = true;
  for (const char* architecture : {"qwen4exp", "qwen35moe"}) {
    Harness h(architecture, options);
    const std::vector<int32_t> tokens = tiny_tokens(17);
    const auto width = static_cast<size_t>(h.info().n_hidden);
    std::vector<float> hidden(tokens.size() * width);
    h.forward(tokens, Phase::Prompt, hidden.data());
    std::vector<std::vector<float>> results;
    for (const size_t chunk : {16, 1, 5}) {
      h.state().truncate_draft(0);
      results.emplace_back(h.vocab());
      for (size_t at = 0; at < 16; at += chunk) {
        const size_t n = std::min(chunk, 16 - at);
        h.model().draft(h.state(), h.stream(), part(tokens, at + 1, n), hidden.data() + at * width,
                        results.back().data(), nullptr);
      }
      EXPECT_TRUE(same_bits(results.back(), results.front())) << architecture << " " << chunk;
    }
  }
}

// Pruned: the expert count comes from the tensors.
TEST(Pruned, FourExperts) {
  HarnessOptions options;
  options.tiny.n_expert = 4;
  options.tiny.set["expert_count"] = 8u;
  Harness h("qwen4exp", options);
  EXPECT_EQ(h.model().experts().layers.front().n_expert, 4);
  const std::vector<float> expected = h.forward(tiny_tokens(20));
  h.state().reset();
  EXPECT_TRUE(same_bits(h.forward_chunks(tiny_tokens(20), {1}, Phase::Decode), expected));
}

TEST(Tied, OutputIsTheEmbedding) {
  HarnessOptions options;
  options.tiny.tied = true;
  Harness h("qwen3moe", options);
  const std::vector<float> logits = h.forward(tiny_tokens(2));
  EXPECT_EQ(logits.size(), 2 * h.vocab());
}

}  // namespace
}  // namespace penstock::testing
