// Law 2: the logits do not depend, bit for bit, on anything but the model and the tokens. Law 7 of
// a failed read: it ends the run and says where, it never becomes fluent text.
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/tiny_runtime.h"
#include "experts/faulty_backend.h"
#include "experts/shape.h"

namespace penstock::engine::test {
namespace {

constexpr int kTokens = 40;

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

class SameBits : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    penstock::testing::TinyOptions options;
    options.matrices = gguf::TypeId::Q8_0;
    path_ = penstock::testing::write_tiny(folder_.path(), GetParam(), options);
    tokens_ = penstock::testing::tiny_tokens(kTokens);
    const auto runtime = open_tiny(path_, {});
    EXPECT_TRUE(runtime->plan().shape.holds_all());
    reference_ = all_logits(*runtime, tokens_, kTokens);
    // The fewest slots a token can run with, for reads of depth 1.
    minimum_ = experts::hard_floor(
        experts::arena_shape(runtime->model().experts(), runtime->plan().shape.alignment), 1);
    n_experts_ = runtime->plan().shape.n_experts();
    ASSERT_EQ(reference_.size(),
              static_cast<size_t>(kTokens) * static_cast<size_t>(runtime->info().n_vocab));
    ASSERT_LT(minimum_, n_experts_);
  }

  void expect_same(const char* what, Variant variant, size_t n_prompt) {
    const auto runtime = open_tiny(path_, variant);
    EXPECT_TRUE(same_bits(all_logits(*runtime, tokens_, n_prompt), reference_)) << what;
    const experts::Counters counters = runtime->counters();
    EXPECT_EQ(counters.first.total() + counters.steady.total(), counters.uses_expected) << what;
  }

  penstock::testing::TemporaryFolder folder_;
  std::string path_;
  std::vector<int32_t> tokens_;
  std::vector<float> reference_;
  uint64_t minimum_ = 0, n_experts_ = 0;
};

TEST_P(SameBits, WhateverTheArenaHolds) {
  for (const uint64_t slots : {minimum_, minimum_ + 1, (minimum_ + n_experts_) / 2, n_experts_}) {
    for (const size_t n_prompt : {size_t{0}, size_t{17}, size_t{kTokens}}) {
      expect_same(("slots " + std::to_string(slots)).c_str(), {.slots = slots}, n_prompt);
    }
  }
}

TEST_P(SameBits, WhicheverWayTheBytesCome) {
  for (const experts::IoMode io :
       {experts::IoMode::Uring, experts::IoMode::Pread, experts::IoMode::Buffered}) {
    expect_same(experts::io_mode_name(io), {.slots = minimum_, .io = io}, 17);
  }
  expect_same("dense map", {.slots = minimum_, .dense = models::DenseMode::Map}, 17);
}

TEST_P(SameBits, WithAndWithoutReadAhead) {
  using experts::ReadAhead;
  for (const ReadAhead mode : {ReadAhead::Off, ReadAhead::Auto, ReadAhead::Probe}) {
    expect_same(experts::read_ahead_name(mode),
                {.slots = minimum_ + 20, .threads = 2, .read_ahead = mode}, 7);
  }
  expect_same("predictor", {.slots = minimum_ + 20, .predictor = experts::Predictor::Residual}, 7);
  for (const int depth : {1, 2, 4}) {
    const auto runtime = open_tiny(path_, {.slots = n_experts_ - 4, .threads = 2, .depth = depth});
    EXPECT_TRUE(same_bits(all_logits(*runtime, tokens_, 7), reference_)) << depth;
    EXPECT_GT(runtime->counters().ahead.issued, 0u);
  }
}

TEST_P(SameBits, WithAnyThreadsAndChunks) {
  for (const int threads : {1, 2, 3}) {
    for (const int chunk : {1, 7, 17, 512}) {
      expect_same(("chunk " + std::to_string(chunk)).c_str(),
                  {.slots = minimum_ + 2, .threads = threads, .chunk = chunk}, 33);
    }
  }
}

TEST_P(SameBits, WhateverIsLateOrTornOrInAnotherOrder) {
  for (uint32_t seed = 1; seed <= 4; ++seed) {
    const experts::test::Faults faults{
        .seed = seed, .hold = 0.6, .reorder = true, .short_reads = 0.2, .transient = 0.1};
    expect_same("faults",
                {.slots = minimum_, .threads = 2, .decorate = experts::test::with_faults(faults)},
                17);
  }
}

TEST_P(SameBits, InStepsOfSeveralRowsOfWhichAPrefixIsKept) {
  const auto runtime = open_tiny(path_, {.slots = minimum_ + 8, .threads = 2});
  const auto n_vocab = static_cast<size_t>(runtime->info().n_vocab);
  Session session(*runtime);
  const std::vector<int> rows = {1, 2, 8, 5, 3, 8, 8, 4, 8, 6};
  size_t turn = 0;
  while (session.position() < kTokens) {
    const auto at = static_cast<size_t>(session.position());
    const size_t n = std::min<size_t>(static_cast<size_t>(rows[turn % rows.size()]), kTokens - at);
    const auto kept = static_cast<int>(n == 1 ? 1 : 1 + (turn * 7) % n);
    // What comes after the kept rows is a wrong guess.
    std::vector<int32_t> guess(tokens_.begin() + static_cast<ptrdiff_t>(at),
                               tokens_.begin() + static_cast<ptrdiff_t>(at + n));
    for (size_t i = static_cast<size_t>(kept); i < n; ++i) guess[i] = (guess[i] + 1) % 100;
    const std::span<const float> logits = session.step(guess);
    ASSERT_EQ(std::memcmp(logits.data(), reference_.data() + at * n_vocab,
                          static_cast<size_t>(kept) * n_vocab * sizeof(float)),
              0)
        << "turn " << turn;
    session.commit(kept);
    ++turn;
  }
  EXPECT_GT(turn, 10U);
}

TEST_P(SameBits, AfterSaveAndRestoreAtAnyPosition) {
  const std::string file = folder_.path() + "/state";
  const auto runtime = open_tiny(path_, {.slots = minimum_ + 8});
  const auto n_vocab = static_cast<size_t>(runtime->info().n_vocab);
  for (const size_t at : {1U, 10U, 11U, 23U, 39U}) {
    {
      Session session(*runtime);
      session.prefill(std::span(tokens_).first(at));
      session.save(file);
      session.decode(3);  // and the state moves on
    }
    const auto other = open_tiny(path_, {.slots = minimum_, .threads = 2});
    Session session(*other);
    session.restore(file);
    ASSERT_EQ(session.position(), static_cast<int64_t>(at));
    EXPECT_EQ(std::memcmp(session.logits().data(), reference_.data() + (at - 1) * n_vocab,
                          n_vocab * sizeof(float)),
              0);
    for (size_t next = at; next < kTokens; ++next) {
      session.decode(tokens_[next]);
      ASSERT_EQ(std::memcmp(session.logits().data(), reference_.data() + next * n_vocab,
                            n_vocab * sizeof(float)),
                0)
          << "saved at " << at << ", position " << next;
    }
  }
}

TEST_P(SameBits, AReadErrorEndsTheRunAndSaysWhere) {
  for (const bool prompt : {false, true}) {
    experts::test::Faults faults;
    faults.always = EIO;
    faults.always_from = 40;
    const auto runtime =
        open_tiny(path_, {.slots = minimum_, .decorate = experts::test::with_faults(faults)});
    try {
      all_logits(*runtime, tokens_, prompt ? kTokens : 0);
      FAIL() << "computed from a failed read";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::Io) << error.what();
      const std::string message = error.what();
      for (const char* part : {"layer", "expert", "offset", "errno 5"}) {
        EXPECT_NE(message.find(part), std::string::npos) << part << " in: " << message;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Architectures, SameBits,
                         ::testing::Values("qwen4exp", "qwen3moe", "qwen35moe", "qwen3next"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace penstock::engine::test
