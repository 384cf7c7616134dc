// Refusals as data: what lacks and what would help.
#include <gtest/gtest.h>

#include "base/error.h"
#include "experts/plan.h"
#include "experts/plan_requests.h"

namespace penstock::experts {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kGiB = uint64_t{1} << 30;

// 1 GiB of dense weights.
PlanRequest request() {
  PlanRequest request;
  request.terms.dense = kGiB;
  request.terms.kv = 256 * kMiB;
  request.terms.scratch_prompt = 128 * kMiB;
  request.shape = test::four_layers();
  request.machine.total = 8 * kGiB;
  request.machine.available = 8 * kGiB;
  request.ctx = 4096;
  request.kv_per_position = 65536;
  request.prompt_chunk = 512;
  request.scratch_per_token = 256 * 1024;
  return request;
}

TEST(PlanRefusal, AFittingPlanHasNone) {
  const PlanOutcome outcome = try_plan(request());
  EXPECT_TRUE(outcome.fits());
  EXPECT_EQ(outcome.plan.slots(), 128u);
  EXPECT_FALSE(outcome.plan.memory_chosen);
  EXPECT_EQ(make_plan(request()).peak_prefill, outcome.plan.peak_prefill);
}

TEST(PlanRefusal, KeepsThePlanAndTheShortfall) {
  PlanRequest tight = request();
  tight.memory = kGiB;
  const PlanOutcome outcome = try_plan(tight);
  ASSERT_FALSE(outcome.fits());
  EXPECT_TRUE(outcome.plan.memory_chosen);
  EXPECT_EQ(outcome.plan.slots(), outcome.plan.cycle);
  EXPECT_EQ(outcome.refusal->shortfall, outcome.plan.peak_prefill - kGiB);
  EXPECT_NE(outcome.refusal->why.find("smallest arena"), std::string::npos);
  ASSERT_EQ(outcome.refusal->remedies.size(), 3u);
  EXPECT_EQ(outcome.refusal->remedies[0].rfind("--ctx ", 0), 0u);
  EXPECT_EQ(outcome.refusal->remedies[1].rfind("--prompt-chunk ", 0), 0u);
  EXPECT_EQ(outcome.refusal->remedies[2].rfind("--memory ", 0), 0u);
  try {
    make_plan(tight);
    FAIL() << "the plan was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Plan);
    const std::string text = error.what();
    EXPECT_NE(text.find(outcome.refusal->why), std::string::npos);
    EXPECT_NE(text.find(format_plan(outcome.plan)), std::string::npos);
    EXPECT_NE(text.find(format_refusal(*outcome.refusal)), std::string::npos);
    for (const std::string& remedy : outcome.refusal->remedies) {
      EXPECT_NE(text.find(remedy), std::string::npos) << remedy;
    }
  }
}

TEST(PlanRefusal, SlotsThatCannotWorkAreNoShortfall) {
  PlanRequest few = request();
  few.arena_slots = 3;
  const PlanOutcome floor = try_plan(few);
  ASSERT_FALSE(floor.fits());
  EXPECT_EQ(floor.refusal->shortfall, 0u);
  EXPECT_EQ(floor.refusal->remedies.front(),
            "--arena-slots " + std::to_string(floor.plan.hard_floor));
  few.arena_slots = floor.plan.hard_floor;
  EXPECT_TRUE(try_plan(few).fits());
  few.evict = Evict::Lru;
  EXPECT_TRUE(try_plan(few).fits());  // with a warning
}

TEST(PlanRefusal, MemoryForSlotsIsEnoughAndNotMuchMore) {
  for (const uint64_t slots : {20u, 50u, 100u, 128u}) {
    PlanRequest exact = request();
    exact.memory = memory_for_slots(exact, slots);
    EXPECT_GE(try_plan(exact).plan.slots(), slots);
    exact.memory = *exact.memory - 2 * exact.shape.largest_slot();
    EXPECT_LT(try_plan(exact).plan.slots(), slots);
  }
  PlanRequest all = request();
  all.memory = memory_for_slots(all, 100000);
  EXPECT_TRUE(try_plan(all).plan.shape.holds_all());
}

}  // namespace
}  // namespace penstock::experts
