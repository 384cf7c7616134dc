// Telling reasoning from content, however the text is cut.
#include <gtest/gtest.h>

#include "server/answer_splitter.h"

namespace penstock::server::test {
namespace {

struct Case {
  bool inside;
  const char* text;
  const char* reasoning;
  const char* content;
};

constexpr Case kCases[] = {
    {false, "Hello there", "", "Hello there"},
    {false, "  Hello", "", "  Hello"},
    {false, "<think>\nhm\n</think>\n\nHello", "hm\n", "Hello"},
    {false, "\n<think>hm</think>Hello", "hm", "Hello"},
    {false, "<thin air>", "", "<thin air>"},
    {false, "<th", "", "<th"},
    {false, "Write <think> and </think>.", "", "Write <think> and </think>."},
    {false, "<think>a</think>b<think>c</think>d", "a", "b<think>c</think>d"},
    {true, "hm\n</think>\n\nHello <think>", "hm\n", "Hello <think>"},
    {true, "never ends", "never ends", ""},
    {true, "a </thi", "a </thi", ""},
    {true, "</think>\n", "", ""},
    {false, "", "", ""},
    {false, " \n", "", " \n"},
};

TEST(AnswerSplitter, IsTheSameHoweverTheTextIsCut) {
  for (const Case& c : kCases) {
    const std::string text = c.text;
    for (size_t step = 1; step <= text.size() + 1; ++step) {
      AnswerSplitter splitter(c.inside);
      AnswerSplitter::Parts all;
      const auto add = [&](const AnswerSplitter::Parts& parts) {
        all.reasoning += parts.reasoning;
        all.content += parts.content;
      };
      for (size_t at = 0; at < text.size(); at += step) add(splitter.push(text.substr(at, step)));
      add(splitter.flush());
      EXPECT_EQ(all.reasoning, c.reasoning) << text << " by " << step;
      EXPECT_EQ(all.content, c.content) << text << " by " << step;
      const bool has_content = *c.content != '\0';
      EXPECT_EQ(splitter.content_begin().has_value(), has_content || (text.empty() && !c.inside));
      if (has_content) {
        EXPECT_EQ(text.substr(*splitter.content_begin()), c.content);
      }
    }
  }
}

}  // namespace
}  // namespace penstock::server::test
