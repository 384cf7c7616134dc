// Law 2 with packs: the logits do not depend on whether experts come from the model's own tensors
// or from a pack, and neither does anything else that a run leaves behind.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/tiny_runtime.h"
#include "experts/faulty_backend.h"
#include "experts/pack_writer.h"
#include "experts/shape.h"

namespace penstock::engine::test {
namespace {

namespace fs = std::filesystem;

constexpr int kTokens = 40;

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

void pack(const std::string& model, const std::string& out, const std::string& dense_out = {}) {
  const auto file = std::make_shared<const gguf::Model>(gguf::Model::open(model));
  const auto opened = models::open({.trunk = file, .draft = nullptr, .table = nullptr}, {});
  experts::PackRequest request;
  request.source = file.get();
  request.geometry = opened->experts();
  request.n_trunk = opened->info().n_layer;
  request.out = out;
  request.dense_out = dense_out;
  request.tool = "test";
  request.align = 4096;
  experts::write_pack(request);
}

class Packs : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    penstock::testing::TinyOptions options;
    options.matrices = gguf::TypeId::Q8_0;
    options.merged_gate_up = std::string(GetParam()) == "qwen35moe";
    path_ = penstock::testing::write_tiny(folder_.path(), GetParam(), options);
    pack_ = folder_.path() + "/any name.xpk";
    dense_ = folder_.path() + "/dense.gguf";
    pack(path_, pack_, dense_);
    tokens_ = penstock::testing::tiny_tokens(kTokens);
    const auto runtime = open_tiny(path_, {});
    EXPECT_FALSE(runtime->source().pack.has_value());
    reference_ = all_logits(*runtime, tokens_, kTokens);
    minimum_ = experts::hard_floor(
        experts::arena_shape(runtime->model().experts(), runtime->plan().shape.alignment), 1);
    n_experts_ = runtime->plan().shape.n_experts();
  }

  penstock::testing::TemporaryFolder folder_;
  std::string path_, pack_, dense_;
  std::vector<int32_t> tokens_;
  std::vector<float> reference_;
  uint64_t minimum_ = 0, n_experts_ = 0;
};

TEST_P(Packs, GiveTheSameBitsWithAnyArenaAndBackend) {
  for (const std::string& model : {path_, dense_}) {
    for (const experts::IoMode io :
         {experts::IoMode::Uring, experts::IoMode::Pread, experts::IoMode::Buffered}) {
      for (const uint64_t slots : {minimum_, (minimum_ + n_experts_) / 2, n_experts_}) {
        for (const size_t n_prompt : {size_t{0}, size_t{17}}) {
          const auto runtime = open_tiny(
              model, {.slots = slots, .io = io, .threads = 2, .pack = "auto", .verify = 3});
          ASSERT_TRUE(runtime->source().pack.has_value());
          EXPECT_EQ(runtime->source().pack->path, pack_);
          EXPECT_TRUE(same_bits(all_logits(*runtime, tokens_, n_prompt), reference_))
              << model << " " << experts::io_mode_name(io) << " " << slots;
          const experts::Counters c = runtime->counters();
          EXPECT_EQ(c.first.total() + c.steady.total(), c.uses_expected);
          EXPECT_EQ(c.demand.reads + c.prompt.reads + c.spec.reads, c.experts_read);
          // What is still being read ahead at the end has not been looked at.
          EXPECT_LE(c.records_verified, c.experts_read / 3);
          EXPECT_GE(c.records_verified + 1, (c.experts_read - c.ahead.pending) / 3);
        }
      }
    }
  }
}

TEST_P(Packs, GiveTheSameBitsWhateverIsLateOrTorn) {
  for (uint32_t seed = 1; seed <= 2; ++seed) {
    const experts::test::Faults faults{
        .seed = seed, .hold = 0.6, .reorder = true, .short_reads = 0.2, .transient = 0.1};
    const auto runtime = open_tiny(path_, {.slots = minimum_,
                                           .threads = 2,
                                           .decorate = experts::test::with_faults(faults),
                                           .pack = pack_,
                                           .verify = 1});
    EXPECT_TRUE(same_bits(all_logits(*runtime, tokens_, 17), reference_));
  }
}

TEST_P(Packs, SavedStatesGoFromOneToTheOther) {
  const std::string state = folder_.path() + "/state";
  const std::string* const models[] = {&path_, &path_, &dense_};
  const std::string packs[] = {"none", pack_, pack_};
  for (int from = 0; from < 3; ++from) {
    {
      const auto runtime = open_tiny(*models[from], {.slots = minimum_, .pack = packs[from]});
      Session session(*runtime);
      session.prefill(std::span(tokens_).first(20));
      session.save(state);
    }
    for (int to = 0; to < 3; ++to) {
      const auto runtime = open_tiny(*models[to], {.slots = minimum_, .pack = packs[to]});
      Session session(*runtime);
      session.restore(state);
      session.decode(tokens_[20]);
      const auto n_vocab = static_cast<size_t>(runtime->info().n_vocab);
      EXPECT_EQ(std::memcmp(session.logits().data(), reference_.data() + 20 * n_vocab,
                            n_vocab * sizeof(float)),
                0)
          << from << " to " << to;
    }
  }
}

TEST_P(Packs, ADamagedRecordNeverBecomesText) {
  // Two bytes of every record.
  {
    const experts::Pack opened = experts::Pack::open(pack_);
    const int fd = ::open(pack_.c_str(), O_WRONLY);
    for (const experts::PackLayer& layer : opened.layers()) {
      for (uint64_t e = 0; e < layer.n_expert; ++e) {
        ASSERT_EQ(
            ::pwrite(fd, "\x55\xaa", 2, static_cast<off_t>(layer.base_off + e * layer.stride)), 2);
      }
    }
    ::close(fd);
  }
  for (const size_t n_prompt : {size_t{0}, size_t{17}}) {
    const auto runtime = open_tiny(path_, {.slots = minimum_, .pack = pack_, .verify = 1});
    try {
      all_logits(*runtime, tokens_, n_prompt);
      FAIL() << "computed with damaged weights";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::Format);
      EXPECT_NE(std::string(error.what()).find(pack_), std::string::npos) << error.what();
    }
  }
}

TEST_P(Packs, ADenseOnlyModelWithoutItsPackIsRefusedByName) {
  fs::remove(pack_);
  try {
    open_tiny(dense_, {.slots = minimum_, .pack = "auto"});
    FAIL() << "opened";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Format);
    EXPECT_NE(std::string(error.what()).find("_exps.weight"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("--pack FILE"), std::string::npos) << error.what();
  }
}

INSTANTIATE_TEST_SUITE_P(Architectures, Packs,
                         ::testing::Values("qwen4exp", "qwen3moe", "qwen35moe", "qwen3next"));

}  // namespace
}  // namespace penstock::engine::test
