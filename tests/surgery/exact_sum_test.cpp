#include "surgery/exact_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace penstock::surgery {
namespace {

TEST(ExactSum, DoesNotDependOnTheOrder) {
  std::mt19937_64 random(1);
  std::vector<double> terms;
  for (int i = 0; i < 2000; ++i) {
    const double exponent = static_cast<double>(random() % 90) - 45;
    terms.push_back((static_cast<double>(random() % 20001) - 10000) * std::exp2(exponent));
  }
  ExactSum forward, backward, left, right;
  for (size_t i = 0; i < terms.size(); ++i) {
    ASSERT_TRUE(forward.add(terms[i]));
    ASSERT_TRUE((i % 3 == 0 ? left : right).add(terms[i]));
  }
  std::reverse(terms.begin(), terms.end());
  for (const double term : terms) ASSERT_TRUE(backward.add(term));
  EXPECT_EQ(forward, backward);
  ASSERT_TRUE(left.add(right));
  EXPECT_EQ(forward, left);
}

TEST(ExactSum, HoldsWhatFitsExactly) {
  for (const double term :
       {0.0, 1.0, -1.0, 0.5, -0.375, 0x1p-64, -0x1p-64, 0x1.8p59, -0x1.8p59, 1e6 + 0x1p-30}) {
    ExactSum sum;
    ASSERT_TRUE(sum.add(term));
    EXPECT_EQ(sum.value(), term);
    EXPECT_EQ(ExactSum::from_words(sum.high(), sum.low()), sum);
  }
}

TEST(ExactSum, RefusesWhatIsNoNumberOrTooLarge) {
  ExactSum sum;
  ASSERT_TRUE(sum.add(2.5));
  EXPECT_FALSE(sum.add(std::nan("")));
  EXPECT_FALSE(sum.add(HUGE_VAL));
  EXPECT_FALSE(sum.add(-HUGE_VAL));
  EXPECT_FALSE(sum.add(0x1p60));
  ASSERT_TRUE(sum.add(0x1.8p59));
  EXPECT_FALSE(sum.add(0x1.8p59));  // the sum would be
  EXPECT_EQ(sum.value(), 0x1.8p59 + 2.5);
}

}  // namespace
}  // namespace penstock::surgery
