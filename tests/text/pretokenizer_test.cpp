#include "text/pretokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <gtest/gtest.h>
#include <pcre2.h>

#include <array>
#include <memory>
#include <random>

#include "base/error.h"
#include "fixtures.h"
#include "text/unicode.h"

namespace penstock::text {
namespace {

std::vector<size_t> split(PreTokenizer splitter, std::string_view text) {
  std::vector<size_t> ends;
  split_pieces(splitter, text, ends);
  return ends;
}

TEST(PreTokenizer, MatchesTheRecordedLibraryForEveryPreType) {
  const Json data = fixture("split_cases.json");
  const auto strings = data.at("strings").get<std::vector<std::string>>();
  ASSERT_GT(strings.size(), 600U);
  for (const auto& [pre, ends] : data.at("ends").items()) {
    for (size_t i = 0; i < strings.size(); ++i) {
      EXPECT_EQ(split(pre_type(pre).splitter, strings[i]), ends[i].get<std::vector<size_t>>())
          << pre << ": " << strings[i];
    }
  }
}

TEST(PreTokenizer, UnknownNameListsTheKnown) {
  try {
    pre_type("nonesuch");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::Unsupported);
    EXPECT_NE(std::string(e.what()).find("qwen35"), std::string::npos);
    EXPECT_NE(std::string(e.what()).find("nonesuch"), std::string::npos);
  }
}

// A second opinion beside the recorded one, on fresh strings every time the seed is changed. The
// regular expressions' white space is spelled out: PCRE2 counts U+180E, which Unicode no longer
// does.
class Regex {
 public:
  explicit Regex(std::string pattern) {
    const std::string space =
        R"(\t-\r \x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";
    replace(pattern, R"([^\s)", "[^" + space);
    replace(pattern, R"(\s)", "[" + space + "]");
    replace(pattern, R"(\S)", "[^" + space + "]");
    int error = 0;
    PCRE2_SIZE offset = 0;
    code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                              PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr));
    if (!code_) throw std::runtime_error("pattern: " + pattern);
    pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE);
    match_.reset(pcre2_match_data_create_from_pattern(code_.get(), nullptr));
  }

  // Pieces matched one after the other from the start, which these expressions always can.
  std::vector<size_t> ends(std::string_view text) const {
    std::vector<size_t> out;
    size_t at = 0;
    while (at < text.size()) {
      const int n = pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                at, PCRE2_ANCHORED | PCRE2_NO_UTF_CHECK, match_.get(), nullptr);
      if (n <= 0) throw std::runtime_error("no match");
      at = pcre2_get_ovector_pointer(match_.get())[1];
      out.push_back(at);
    }
    return out;
  }

 private:
  static void replace(std::string& text, const std::string& from, const std::string& to) {
    for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) {
      text.replace(at, from.size(), to);
    }
  }
  struct Free {
    void operator()(pcre2_code* p) const { pcre2_code_free(p); }
    void operator()(pcre2_match_data* p) const { pcre2_match_data_free(p); }
  };
  std::unique_ptr<pcre2_code, Free> code_;
  std::unique_ptr<pcre2_match_data, Free> match_;
};

// Characters whose class has not changed since the Unicode version of PCRE2 10.42.
std::string random_text(std::mt19937& rng) {
  static constexpr std::array<char32_t, 64> kPool = {
      ' ',    ' ',    '\n',    '\r',    '\t',    'a',     'b',     'Z',    's',    'S',    't',
      'r',    'e',    'l',     'L',     '\'',    '\'',    '1',     '2',    '9',    '.',    ',',
      '/',    '-',    '_',     '(',     '$',     '+',     0xA0,    0x85,   0xDF,   0xE9,   0x17F,
      0x1C5,  0x2B0,  0x301,   0x323,   0x416,   0x436,   0x64E,   0x661,  0x905,  0x93F,  0xE01,
      0x2028, 0x200D, 0x2167,  0x3000,  0x3042,  0x30A2,  0x30FC,  0x4E00, 0xAC00, 0x1100, 0xFE0F,
      0xE000, 0x20AC, 0x1F642, 0x1F3FD, 0x10400, 0x10428, 0x1D49C, 0,      0x1B};
  std::string out;
  const size_t length = 1 + rng() % 24;
  for (size_t i = 0; i < length; ++i) {
    const char32_t c = kPool[rng() % kPool.size()];
    for (size_t repeat = rng() % 4 == 0 ? 3 : 1; repeat > 0; --repeat) append_utf8(out, c);
  }
  return out;
}

TEST(PreTokenizer, MatchesPcre2OnRandomText) {
  const std::string contraction = R"((?i:'s|'t|'re|'ve|'m|'ll|'d))";
  const std::string rest = R"(\s*[\r\n]+|\s+(?!\S)|\s+)";
  const std::string head = R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])",
                    tail = R"([\p{Ll}\p{Lm}\p{Lo}\p{M}])";
  struct Case {
    PreTokenizer splitter;
    Regex regex;
  };
  const Case cases[] = {
      {PreTokenizer::Qwen2,
       Regex(contraction + R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|)" + rest)},
      {PreTokenizer::Qwen35,
       Regex(contraction +
             R"(|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|)" + rest)},
      {PreTokenizer::Llama3,
       Regex(contraction + R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)" +
             rest)},
      {PreTokenizer::Gpt4o,
       Regex(R"([^\r\n\p{L}\p{N}]?)" + head + "*" + tail + "+" + contraction +
             R"(?|[^\r\n\p{L}\p{N}]?)" + head + "+" + tail + "*" + contraction +
             R"(?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|)" + rest)},
  };
  std::mt19937 rng(20261129);
  for (int i = 0; i < 20000; ++i) {
    const std::string text = random_text(rng);
    for (const Case& c : cases) {
      ASSERT_EQ(split(c.splitter, text), c.regex.ends(text))
          << static_cast<int>(c.splitter) << text;
    }
  }
}

TEST(PreTokenizer, CoversEveryByteOfInvalidText) {
  std::mt19937 rng(7);
  for (int i = 0; i < 5000; ++i) {
    std::string text;
    for (size_t n = rng() % 40; n > 0; --n) text += static_cast<char>(rng() % 256);
    for (const auto splitter : {PreTokenizer::Qwen2, PreTokenizer::Qwen35, PreTokenizer::Llama3,
                                PreTokenizer::Gpt4o, PreTokenizer::DeepSeek3}) {
      size_t last = 0;
      for (const size_t end : split(splitter, text)) {
        ASSERT_GT(end, last);
        last = end;
      }
      ASSERT_EQ(last, text.size());
    }
  }
}

TEST(PreTokenizer, InvalidBytesSplitLikeTheReplacementCharacter) {
  EXPECT_EQ(split(PreTokenizer::Qwen35, "ab \xFF\xFF!c"), (std::vector<size_t>{2, 6, 7}));
}

}  // namespace
}  // namespace penstock::text
