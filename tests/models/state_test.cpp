// What a state refuses, and how it gets well again.
#include <gtest/gtest.h>

#include "base/error.h"
#include "models/harness.h"

namespace penstock::testing {
namespace {

using models::State;

std::vector<std::byte> save(const State& state, State::Parts parts = State::Parts::All) {
  std::vector<std::byte> bytes;
  state.save(parts, [&](std::span<const std::byte> part) {
    bytes.insert(bytes.end(), part.begin(), part.end());
  });
  return bytes;
}

void restore(State& state, const std::vector<std::byte>& bytes) {
  size_t at = 0;
  state.restore(
      [&](std::span<std::byte> out) {
        if (at + out.size() > bytes.size()) fail(ErrorKind::Io, "the saved state ends early");
        std::memcpy(out.data(), bytes.data() + at, out.size());
        at += out.size();
      },
      "saved.bin");
}

ErrorKind kind_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.kind();
  }
  ADD_FAILURE() << "nothing was refused";
  return ErrorKind::Internal;
}

TEST(State, RefusesWhatDoesNotFit) {
  HarnessOptions options;
  options.state.n_ctx = 8;
  Harness h("qwen3moe", options);
  EXPECT_EQ(kind_of([&] { h.forward(tiny_tokens(9)); }), ErrorKind::Usage);
  EXPECT_EQ(kind_of([&] { h.forward({1, 128}); }), ErrorKind::Usage);
  EXPECT_EQ(kind_of([&] { h.forward({-1}); }), ErrorKind::Usage);
  EXPECT_EQ(kind_of([&] { h.forward({}); }), ErrorKind::Internal);
  EXPECT_EQ(h.state().position(), 0);
  h.forward(tiny_tokens(8));
  EXPECT_EQ(kind_of([&] { h.forward({1}); }), ErrorKind::Usage);
  EXPECT_EQ(kind_of([&] { h.model().new_state({.n_ctx = 0}); }), ErrorKind::Usage);
  EXPECT_EQ(kind_of([&] { h.model().new_state({.n_ctx = int64_t{1} << 40}); }), ErrorKind::Usage);
}

TEST(State, SaysWhatOfItLiesInMemory) {
  HarnessOptions options;
  options.state.n_ctx = int64_t{1} << 20;
  Harness h("qwen3moe", options);
  const uint64_t all = State::kv_bytes(h.state().shape(), options.state);
  const uint64_t before = h.state().resident_bytes();
  h.forward(tiny_tokens(8));
  EXPECT_GE(h.state().resident_bytes(), before + kPageSize);
  EXPECT_LT(h.state().resident_bytes(), all / 2);
}

TEST(State, PendingRowsMustBeSettled) {
  Harness h("qwen4exp");
  h.step({1, 2, 3});
  EXPECT_EQ(h.state().pending(), 3);
  EXPECT_EQ(kind_of([&] { h.forward({1}); }), ErrorKind::Internal);
  EXPECT_EQ(kind_of([&] { save(h.state()); }), ErrorKind::Internal);
  EXPECT_EQ(kind_of([&] { h.model().commit(h.state(), 4); }), ErrorKind::Internal);
  h.model().commit(h.state(), 2);
  EXPECT_EQ(h.state().position(), 2);
  EXPECT_EQ(kind_of([&] { h.step(tiny_tokens(9)); }), ErrorKind::Internal);
}

TEST(State, FailedReadLeavesItUnusableUntilReset) {
  Harness h("qwen35moe");
  const std::vector<float> expected = h.forward(tiny_tokens(5));
  h.state().reset();
  h.stream().fail_after(3);
  EXPECT_EQ(kind_of([&] { h.forward(tiny_tokens(5)); }), ErrorKind::Io);
  h.stream().fail_after(-1);
  EXPECT_EQ(kind_of([&] { h.forward({1}); }), ErrorKind::Internal);
  h.state().reset();
  EXPECT_TRUE(same_bits(h.forward(tiny_tokens(5)), expected));
  // A step that failed has changed nothing.
  h.stream().fail_after(3);
  EXPECT_EQ(kind_of([&] { h.step({1, 2}); }), ErrorKind::Io);
  h.stream().fail_after(-1);
  h.state().reset();
  h.forward(tiny_tokens(4));
  const std::vector<float> last = h.forward({tiny_tokens(5).back()});
  EXPECT_EQ(std::memcmp(last.data(), expected.data() + 4 * h.vocab(), h.vocab() * 4), 0);
}

TEST(State, Truncate) {
  Harness plain("qwen3moe");
  const std::vector<float> expected = plain.forward(tiny_tokens(12));
  ASSERT_TRUE(plain.state().truncate(7));
  plain.forward({1, 2, 3});
  ASSERT_TRUE(plain.state().truncate(7));
  const std::vector<int32_t> tokens = tiny_tokens(12);
  const std::vector<float> rest = plain.forward({tokens.begin() + 7, tokens.end()});
  EXPECT_EQ(std::memcmp(rest.data(), expected.data() + 7 * plain.vocab(), rest.size() * 4), 0);
  EXPECT_FALSE(plain.state().truncate(13));

  Harness recurrent("qwen4exp");
  recurrent.forward(tokens);
  EXPECT_FALSE(recurrent.state().truncate(7));
  EXPECT_TRUE(recurrent.state().truncate(12));
  EXPECT_TRUE(recurrent.state().truncate(0));
  EXPECT_EQ(recurrent.state().position(), 0);
}

TEST(State, RestoreRefusesForeignOrDamagedBytes) {
  Harness h("qwen4exp");
  h.forward(tiny_tokens(6));
  const std::vector<std::byte> good = save(h.state());
  for (const size_t at : {0, 8, 12, 20, 48, 52, 56, 64 + 7, 72 + 7}) {
    std::vector<std::byte> bad = good;
    bad[at] ^= std::byte{0x80};
    EXPECT_EQ(kind_of([&] { restore(h.state(), bad); }), ErrorKind::Format) << at;
    EXPECT_EQ(h.state().position(), 0);
  }
  std::vector<std::byte> bad = good;
  bad[80 + 3] = std::byte{0x7f};  // a token id
  EXPECT_EQ(kind_of([&] { restore(h.state(), bad); }), ErrorKind::Format);
  bad.assign(good.begin(), good.end() - 1);
  EXPECT_EQ(kind_of([&] { restore(h.state(), bad); }), ErrorKind::Io);
  EXPECT_EQ(kind_of([&] { h.forward({1}); }), ErrorKind::Internal);
  restore(h.state(), good);
  EXPECT_EQ(h.state().position(), 6);

  HarnessOptions half;
  half.state.kv = models::KvType::F16;
  Harness other("qwen4exp", half);
  EXPECT_EQ(kind_of([&] { restore(other.state(), good); }), ErrorKind::Format);
  Harness another("qwen35moe");
  EXPECT_EQ(kind_of([&] { restore(another.state(), good); }), ErrorKind::Format);
}

TEST(State, RecurrentPartsNeedTheirPrefix) {
  Harness h("qwen4exp");
  h.forward(tiny_tokens(6));
  const std::vector<std::byte> saved = save(h.state(), State::Parts::Recurrent);
  EXPECT_LT(saved.size(), h.state().saved_bytes(State::Parts::All));
  h.state().reset();
  h.forward({1, 2, 3, 4, 5, 6, 7});
  EXPECT_EQ(kind_of([&] { restore(h.state(), saved); }), ErrorKind::Format);
}

TEST(Needs, AreWhatIsTaken) {
  for (const char* architecture : {"qwen3moe", "qwen4exp"}) {
    Harness h(architecture);
    const models::StateOptions options{.n_ctx = 1000, .kv = models::KvType::F16};
    const models::MemoryNeeds small = h.model().needs(options, 16);
    const models::MemoryNeeds large = h.model().needs(options, 512);
    EXPECT_GT(large.scratch_prompt, small.scratch_prompt);
    EXPECT_EQ(large.scratch_decode, small.scratch_decode);
    EXPECT_GT(h.model().needs({.n_ctx = 2000}, 16).kv, small.kv);
    EXPECT_GT(small.dense, 0u);
    EXPECT_GT(small.dense_mapped, 0u);
    EXPECT_EQ(small.logits, h.vocab() * 4);
    const auto n_attention = static_cast<uint64_t>(h.info().n_attention_layers);
    EXPECT_GE(small.kv, 1000 * n_attention * 2 * 32 * 2);  // two kv heads of 16 at least
  }
}

}  // namespace
}  // namespace penstock::testing
