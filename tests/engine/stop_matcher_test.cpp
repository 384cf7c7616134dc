#include "engine/stop_matcher.h"

#include <gtest/gtest.h>

#include <string>

namespace penstock::engine {
namespace {

// Feeds `text` in pieces of n bytes; what was shown in all, "|" and the stop that matched.
std::string feed(StopMatcher matcher, const std::string& text, size_t n) {
  std::string shown;
  for (size_t at = 0; at < text.size() && !matcher.stopped(); at += n) {
    shown += matcher.push(std::string_view(text).substr(at, n));
  }
  if (!matcher.stopped()) shown += matcher.finish();
  return shown + "|" + matcher.matched();
}

TEST(StopMatcher, ShowsEverythingButTheStopHoweverTheTextIsCut) {
  const StopMatcher matcher({"END", "\n\n", "ENDING", ""});
  for (size_t n : {1U, 2U, 3U, 100U}) {
    EXPECT_EQ(feed(matcher, "one EN two E", n), "one EN two E|") << n;
    EXPECT_EQ(feed(matcher, "a\nb\n\nc", n), "a\nb|\n\n") << n;
    EXPECT_EQ(feed(matcher, "xEEND more", n), "xE|END") << n;
  }
  // With the whole text at hand the longer of two that begin together is taken.
  EXPECT_EQ(feed(matcher, "x ENDING", 100), "x |ENDING");
}

TEST(StopMatcher, HoldsBackOnlyWhatMayBecomeAStop) {
  StopMatcher matcher({"stop"});
  EXPECT_EQ(matcher.push("go st"), "go ");
  EXPECT_EQ(matcher.push("ay"), "stay");
  EXPECT_EQ(matcher.push(" sto"), " ");
  EXPECT_EQ(matcher.push("p now"), "");
  EXPECT_TRUE(matcher.stopped());
  EXPECT_EQ(matcher.push("more"), "");
}

TEST(StopMatcher, WithoutStopsNothingIsHeld) {
  StopMatcher matcher({});
  EXPECT_EQ(matcher.push("abc"), "abc");
  EXPECT_EQ(matcher.finish(), "");
}

}  // namespace
}  // namespace penstock::engine
