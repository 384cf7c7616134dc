#include "experts/plan_advice.h"

#include <gtest/gtest.h>

#include "base/machine.h"
#include "experts/plan_requests.h"

namespace penstock::experts {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kGiB = uint64_t{1} << 30;

PlanRequest request() {
  PlanRequest request;
  request.terms.dense = 500 * kMiB;
  request.terms.kv = 64 * kMiB;
  request.terms.scratch_prompt = 64 * kMiB;
  request.shape = test::four_layers();
  request.machine.total = request.machine.available = 8 * kGiB;
  request.ctx = 4096;
  request.kv_per_position = 16384;
  request.prompt_chunk = 512;
  request.scratch_per_token = 128 * 1024;
  return request;
}

// The advice that begins with `flag`; empty if there is none.
std::string find(const std::vector<std::string>& advice, const std::string& flag) {
  for (const std::string& text : advice) {
    if (text.rfind(flag, 0) == 0) return text;
  }
  return {};
}

TEST(PlanAdvice, NoneWhereEveryExpertHasASlot) {
  const PlanRequest all = request();
  EXPECT_TRUE(plan_advice(all, make_plan(all)).empty());
}

TEST(PlanAdvice, FollowedItHoldsEveryExpert) {
  PlanRequest tight = request();
  tight.memory = 700 * kMiB;
  const std::vector<std::string> advice = plan_advice(tight, make_plan(tight));
  const std::string all = find(advice, "--memory ");
  ASSERT_NE(all.find("all 128 experts"), std::string::npos) << all;
  PlanRequest followed = tight;
  followed.memory = parse_size(all.substr(9, all.find(' ', 9) - 9));
  EXPECT_TRUE(make_plan(followed).shape.holds_all());
  EXPECT_NE(find(advice, "--memory auto").find("128 slots"), std::string::npos);
  // Half the context frees 32 MiB: so many slots more.
  const std::string half = find(advice, "--ctx 2048");
  ASSERT_FALSE(half.empty());
  followed = tight;
  followed.ctx = 2048;
  followed.terms.kv = 32 * kMiB;
  EXPECT_NE(half.find(std::to_string(make_plan(followed).slots()) + " slots"), std::string::npos);
  EXPECT_FALSE(find(advice, "--prompt-chunk 256").empty());
}

TEST(PlanAdvice, BelowATokenCycleItNamesTheMemoryForOne) {
  PlanRequest tight = request();
  tight.arena_slots = 14;
  const Plan plan = make_plan(tight);
  ASSERT_LT(plan.slots(), plan.cycle);
  tight.chunk_shrunk = true;
  const std::string cycle = find(plan_advice(tight, plan), "--memory ");
  EXPECT_NE(cycle.find("the 16 experts of one token"), std::string::npos) << cycle;
  EXPECT_NE(cycle.find("--prompt-chunk 512"), std::string::npos) << cycle;
}

TEST(PlanAdvice, SaysWhatTheMachineHasWhenItIsTooLittle) {
  PlanRequest tight = request();
  tight.machine.available = 2 * kGiB;
  tight.machine.total = 8 * kGiB;  // fuse 1 GiB, margin 256 MiB: 768 MiB are free
  const std::vector<std::string> advice = plan_advice(tight, make_plan(tight));
  EXPECT_NE(find(advice, "--memory ").find("0.8 GiB are free here"), std::string::npos);
  EXPECT_TRUE(find(advice, "--memory auto").empty());  // it is auto
}

}  // namespace
}  // namespace penstock::experts
