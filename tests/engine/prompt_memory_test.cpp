// The scratch of a prompt is there for the prompt only, as the footprint shows (spec/streaming.md
// §G.4).
#include <gtest/gtest.h>

#include "base/machine.h"
#include "engine/tiny_runtime.h"

namespace penstock::engine::test {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

class PromptScratch : public ::testing::Test {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "a sanitizer's shadow of the scratch stays";
#endif
  }
  std::unique_ptr<Runtime> open(int64_t n_ctx) {
    penstock::testing::TinyOptions tiny;
    tiny.matrices = gguf::TypeId::Q8_0;
    RuntimeOptions options;
    options.model_path = penstock::testing::write_tiny(folder_.path(), "qwen4exp", tiny);
    options.threads = 1;
    options.n_ctx = n_ctx;
    options.prompt_chunk = static_cast<int>(n_ctx);
    options.arena_slots = 4096;
    options.stream.huge_seconds = 0;
    options.stream.pack.file = "none";
    return Runtime::open(options, nullptr);
  }
  penstock::testing::TemporaryFolder folder_;
};

// A release that does nothing: what the measurement is there to find.
class Keeper final : public Session {
 public:
  using Session::Session;

 protected:
  void release_scratch() override {}
};

TEST_F(PromptScratch, AQuarterOfAGibibyteComesAndGoes) {
  const int64_t rows = 40960;
  const auto runtime = open(rows);
  const uint64_t planned = runtime->plan().terms.scratch_prompt;
  ASSERT_GE(planned, 256 * kMiB) << "take more rows";
  const uint64_t before = footprint().total();
  runtime->model().map_prompt_scratch(rows, runtime->state());
  const uint64_t peak = footprint().total();
  runtime->model().release_prompt_scratch();
  const uint64_t after = footprint().total();
  EXPECT_GE(peak - before, planned);
  EXPECT_LE(peak - before, planned + planned / 50);
  EXPECT_LE(after, before + planned / 20);
}

TEST_F(PromptScratch, ASessionMeasuresItsReleaseAndFindsOneThatIsMissing) {
  const auto runtime = open(1024);
  const std::vector<int32_t> tokens = penstock::testing::tiny_tokens(700);
  Session session(*runtime);
  session.prefill(tokens);
  const PromptMemory good = session.prompt_memory();
  EXPECT_GT(good.scratch, 4 * kMiB);
  EXPECT_GE(good.peak, good.before + good.scratch / 2);
  EXPECT_FALSE(good.kept());
  EXPECT_EQ(session.prompts_that_kept_scratch(), 0);
  EXPECT_GT(session.timings().scratch_s, 0);

  Keeper keeper(*runtime);
  keeper.prefill(tokens);
  EXPECT_TRUE(keeper.prompt_memory().kept());
  EXPECT_EQ(keeper.prompts_that_kept_scratch(), 1);
  runtime->model().release_prompt_scratch();

  // A few tokens go through the scratch of decode, which stays.
  Session small(*runtime);
  small.prefill(std::span(tokens).first(2));
  EXPECT_EQ(small.prompt_memory().scratch, 0u);
}

TEST(PromptChunk, ALongOnePaysWhereManyExpertsAreMissing) {
  experts::Plan plan;
  plan.shape.classes = {{.slot_bytes = 1 << 20, .n_experts = 10000}};
  const auto pays = [&](uint64_t slots, uint64_t scratch_mib) {
    plan.shape.classes[0].slots = slots;
    plan.arena = slots << 20;
    plan.terms.scratch_prompt = scratch_mib * kMiB;
    return long_chunk_pays(plan);
  };
  EXPECT_TRUE(pays(2500, 230));  // an eighth of three quarters of 2500 MiB
  EXPECT_FALSE(pays(2500, 240));
  EXPECT_TRUE(pays(5000, 300));
  EXPECT_FALSE(pays(9500, 300));  // there is little to read again
  EXPECT_FALSE(pays(200, 100));   // a small arena can not spare the memory
}

}  // namespace
}  // namespace penstock::engine::test
