#include "experts/watchdog.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace penstock::experts {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

WatchdogPolicy policy() {
  WatchdogPolicy p;
  p.fuse = 1000 * kMiB;
  p.margin = 100 * kMiB;
  p.swap_limit = 64 * kMiB;
  return p;
}

struct Machine {
  uint64_t available = 2000 * kMiB;
  uint64_t swapped = 0;
  Watchdog::Sampler sampler() {
    return [this] { return MemorySample{0, available, swapped}; };
  }
};

TEST(WatchdogTest, TheLevelsLieAroundTheFuse) {
  Machine machine;
  Watchdog dog(policy(), machine.sampler(), false);
  const auto at = [&](uint64_t mib) {
    machine.available = mib * kMiB;
    dog.look();
    return dog.pressure();
  };
  EXPECT_EQ(at(1100), Pressure::None);
  EXPECT_EQ(at(1099), Pressure::Warn);
  EXPECT_EQ(at(1000), Pressure::Warn);
  EXPECT_EQ(at(999), Pressure::Shrink);
  EXPECT_EQ(at(900), Pressure::Shrink);
  EXPECT_EQ(at(899), Pressure::Abort);
  EXPECT_EQ(at(5000), Pressure::None);
  const WatchdogReport report = dog.report();
  EXPECT_EQ(report.samples, 7u);
  EXPECT_EQ(report.min_available, 899 * kMiB);
  ASSERT_EQ(report.events.size(), 4u);  // changes only, each with the sample that caused it
  EXPECT_EQ(report.events[1].pressure, Pressure::Shrink);
  EXPECT_EQ(report.events[1].sample.available, 999 * kMiB);
  EXPECT_EQ(report.policy.warn_below(), 1100 * kMiB);
}

TEST(WatchdogTest, TooMuchSwappedOutEndsTheRun) {
  Machine machine;
  Watchdog dog(policy(), machine.sampler(), false);
  machine.swapped = 64 * kMiB;
  dog.look();
  EXPECT_EQ(dog.pressure(), Pressure::None);
  machine.swapped += 1;
  dog.look();
  EXPECT_EQ(dog.pressure(), Pressure::Abort);
  EXPECT_EQ(dog.report().max_swapped, 64 * kMiB + 1);
}

TEST(WatchdogTest, AShareAtATimeIsGivenBack) {
  Machine machine;
  WatchdogPolicy p = policy();
  p.shrink_pause_ms = 20;
  Watchdog dog(p, machine.sampler(), false);
  EXPECT_FALSE(dog.take_shrink());
  machine.available = 950 * kMiB;
  dog.look();
  EXPECT_TRUE(dog.take_shrink());
  dog.gave_back(7);
  EXPECT_FALSE(dog.take_shrink());
  std::this_thread::sleep_for(std::chrono::milliseconds(25));
  EXPECT_TRUE(dog.take_shrink());
  dog.gave_back(5);
  EXPECT_EQ(dog.report().events.at(0).given_back, 12u);
}

TEST(WatchdogTest, LooksByItselfAndRecordsEvenWhenNothingHappens) {
  std::atomic<int> looked{0};
  WatchdogPolicy p = policy();
  p.period_ms = 1;
  Watchdog dog(p, [&] {
    ++looked;
    return MemorySample{0, 3000 * kMiB, 0};
  });
  while (looked < 5) std::this_thread::yield();
  const WatchdogReport report = dog.report();
  EXPECT_GE(report.samples, 4u);
  EXPECT_EQ(report.min_available, 3000 * kMiB);
  EXPECT_TRUE(report.events.empty());
}

TEST(WatchdogTest, TheMachineIsSampled) {
  const MemorySample sample = machine_sampler()();
  EXPECT_GT(sample.available, 0u);
}

TEST(WatchdogTest, ThePolicyIsThatOfThePlan) {
  Plan plan;
  plan.fuse = 123;
  plan.margin = 200;
  const WatchdogPolicy p = watchdog_policy(plan);
  EXPECT_EQ(p.warn_below(), 323u);
  EXPECT_EQ(p.shrink_below(), 123u);
  EXPECT_EQ(p.abort_below(), 0u);
}

}  // namespace
}  // namespace penstock::experts
