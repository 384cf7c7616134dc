#include "surgery/reuse.h"

#include <gtest/gtest.h>

#include <array>

namespace penstock::surgery {
namespace {

TEST(Reuse, HitsByRecency) {
  ReuseMeter meter(1, 8);
  meter.add(0, std::array<int32_t, 2>{0, 1});  // nothing is there yet
  meter.add(0, std::array<int32_t, 2>{1, 2});  // 1 is at depth 1
  meter.add(0, std::array<int32_t, 2>{0, 3});  // recency is 1 2 0: 0 is at depth 2
  EXPECT_EQ(meter.uses(), 6u);
  EXPECT_DOUBLE_EQ(meter.hit_rate(1), 0.0);
  EXPECT_DOUBLE_EQ(meter.hit_rate(2), 1.0 / 6);
  EXPECT_DOUBLE_EQ(meter.hit_rate(3), 2.0 / 6);
  EXPECT_DOUBLE_EQ(meter.hit_rate(100), 2.0 / 6);
  EXPECT_DOUBLE_EQ(meter.repeat_rate(), 1.0 / 4);
  EXPECT_DOUBLE_EQ(meter.mean_distinct(), 4.0);
}

TEST(Reuse, AUseIsJudgedByWhatWasThereBeforeTheToken) {
  // With two slots the miss on 2 must not push 1 out before 1 is looked up.
  ReuseMeter meter(1, 8);
  meter.add(0, std::array<int32_t, 2>{0, 1});
  meter.add(0, std::array<int32_t, 2>{2, 1});
  EXPECT_DOUBLE_EQ(meter.hit_rate(2), 1.0 / 4);
}

TEST(Reuse, LayersAreApart) {
  ReuseMeter meter(2, 4);
  meter.add(0, std::array<int32_t, 1>{3});
  meter.add(1, std::array<int32_t, 1>{3});
  EXPECT_DOUBLE_EQ(meter.hit_rate(4), 0.0);
  EXPECT_DOUBLE_EQ(meter.repeat_rate(), 0.0);
  meter.add(1, std::array<int32_t, 1>{3});
  EXPECT_DOUBLE_EQ(meter.hit_rate(4), 1.0 / 3);
  EXPECT_DOUBLE_EQ(meter.repeat_rate(), 1.0);
}

}  // namespace
}  // namespace penstock::surgery
