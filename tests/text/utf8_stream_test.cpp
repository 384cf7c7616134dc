#include "text/utf8_stream.h"

#include <gtest/gtest.h>

#include <random>

#include "fixtures.h"
#include "text/reasoning.h"
#include "text/unicode.h"

namespace penstock::text {
namespace {

std::string from_hex(const std::string& hex) {
  std::string out;
  for (size_t i = 0; i < hex.size(); i += 2) {
    out += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  }
  return out;
}

TEST(Utf8Stream, MatchesTheRecordedDecoderHoweverItIsCut) {
  std::mt19937 rng(3);
  for (const Json& c : fixture("utf8_cases.json")) {
    const std::string bytes = from_hex(c[0].get<std::string>());
    const auto expected = c[1].get<std::string>();
    EXPECT_EQ(replace_invalid_utf8(bytes), expected);
    for (int trial = 0; trial < 4; ++trial) {
      Utf8Stream stream;
      std::string out;
      for (size_t at = 0; at < bytes.size();) {
        const size_t n = trial == 0 ? 1 : 1 + rng() % 5;
        const std::string part = stream.push(std::string_view(bytes).substr(at, n));
        EXPECT_EQ(replace_invalid_utf8(part), part);  // every part is valid by itself
        out += part;
        at += n;
      }
      out += stream.flush();
      EXPECT_EQ(out, expected) << c[0];
    }
  }
}

TEST(Utf8Stream, HoldsBackNoMoreThanItMust) {
  Utf8Stream stream;
  EXPECT_EQ(stream.push("a\xF0\x9F"), "a");
  EXPECT_EQ(stream.push("\x99"), "");
  EXPECT_EQ(stream.push("\x82"
                        "b\xC3"),
            "\xF0\x9F\x99\x82"
            "b");
  EXPECT_EQ(stream.flush(), "\xEF\xBF\xBD");
  EXPECT_EQ(stream.flush(), "");
}

TEST(TokenStream, JoinsToTheWholeText) {
  const Tokenizer tokenizer(vocabulary("qwen35"));
  const std::string text = "Grüße 👩‍👩‍👧‍👦 漢字<|im_end|> नमस्ते";
  for (const bool render : {false, true}) {
    TokenStream stream(tokenizer, render);
    std::string out;
    for (const int32_t id : tokenizer.encode(text, true)) {
      const std::string part = stream.push(id);
      EXPECT_EQ(replace_invalid_utf8(part), part);
      out += part;
    }
    out += stream.flush();
    std::string expected = text;
    if (!render) expected.erase(expected.find("<|im_end|>"), 10);
    EXPECT_EQ(out, expected);
  }
}

// All parts of a text pushed in pieces of the given size: reasoning, answer.
std::pair<std::string, std::string> split(const std::string& text, size_t step, bool inside) {
  ReasoningSplitter splitter(inside);
  std::pair<std::string, std::string> out;
  const auto take = [&](const std::vector<ReasoningSplitter::Part>& parts) {
    for (const auto& part : parts) (part.reasoning ? out.first : out.second) += part.text;
  };
  for (size_t at = 0; at < text.size(); at += step) take(splitter.push(text.substr(at, step)));
  take(splitter.flush());
  return out;
}

TEST(Reasoning, SplitsHoweverItIsCut) {
  for (size_t step = 1; step < 30; ++step) {
    using Both = std::pair<std::string, std::string>;
    EXPECT_EQ(split("<think>\na < b\n</think>\n\nYes <b>.", step, false),
              Both("a < b\n", "Yes <b>."));
    EXPECT_EQ(split("still thinking</think>done", step, true), Both("still thinking", "done"));
    EXPECT_EQ(split("no tags </thin", step, false), Both("", "no tags </thin"));
    EXPECT_EQ(split("cut off <think>half </th", step, false), Both("half </th", "cut off "));
    EXPECT_EQ(split("<think></think>x", step, false), Both("", "x"));
  }
}

TEST(Reasoning, KnowsWhetherAPromptEndsInIt) {
  EXPECT_TRUE(ends_in_reasoning("<|im_start|>assistant\n<think>\n"));
  EXPECT_FALSE(ends_in_reasoning("<|im_start|>assistant\n<think>\n\n</think>\n\n"));
  EXPECT_FALSE(ends_in_reasoning("<|im_start|>assistant\n"));
}

}  // namespace
}  // namespace penstock::text
