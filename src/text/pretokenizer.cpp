#include "text/pretokenizer.h"

#include <array>
#include <cstdint>

#include "base/error.h"
#include "text/unicode.h"

namespace penstock::text {
namespace {

struct NamedPreType {
  std::string_view name;
  PreType type;
};

// spec/moe-architectures.md §9. NFC: what the models' own tokenizer classes declare. bailingmoe2's
// expression differs from qwen2's only in `\s*[\r\n]` against `\s*[\r\n]+`, which match the same:
// the greedy \s* takes all but the last line break of the run either way.
constexpr std::array kPreTypes = {
    NamedPreType{"qwen2", {PreTokenizer::Qwen2, true, false, false}},
    NamedPreType{"qwen35", {PreTokenizer::Qwen35, true, false, false}},
    NamedPreType{"deepseek-r1-qwen", {PreTokenizer::Qwen2, true, false, false}},
    NamedPreType{"bailingmoe2", {PreTokenizer::Qwen2, false, false, false}},
    NamedPreType{"glm4", {PreTokenizer::Llama3, false, false, false}},
    NamedPreType{"chatglm-bpe", {PreTokenizer::Llama3, false, false, false}},
    NamedPreType{"llama-bpe", {PreTokenizer::Llama3, false, true, true}},
    NamedPreType{"gpt-4o", {PreTokenizer::Gpt4o, false, false, false}},
    NamedPreType{"deepseek-v3", {PreTokenizer::DeepSeek3, false, false, false}},
};

struct Char {
  char32_t value;
  uint32_t length;
  uint8_t bits;
};

// A text, or a part of one that the expression must see as if it were the whole.
class Scanner {
 public:
  Scanner(std::string_view text, size_t end) : text_(text.substr(0, end)) {}

  bool at_end(size_t at) const { return at >= text_.size(); }
  size_t end() const { return text_.size(); }

  Char get(size_t at) const {
    const auto byte = static_cast<unsigned char>(text_[at]);
    if (byte < 0x80) return {byte, 1, char_bits(byte)};
    const CodePoint c = decode_utf8(text_, at);
    if (c.value == kInvalid) return {kInvalid, 1, kSymbol};
    return {c.value, c.length, char_bits(c.value)};
  }

  // End of the run of characters from `at` that have one of the bits.
  size_t run(size_t at, uint8_t bits) const {
    while (!at_end(at)) {
      const Char c = get(at);
      if ((c.bits & bits) == 0) break;
      at += c.length;
    }
    return at;
  }

  // End of the run of characters that have none of the bits.
  size_t run_without(size_t at, uint8_t bits) const {
    while (!at_end(at)) {
      const Char c = get(at);
      if ((c.bits & bits) != 0) break;
      at += c.length;
    }
    return at;
  }

  size_t numbers(size_t at, int most) const {
    for (int i = 0; i < most && !at_end(at); ++i) {
      const Char c = get(at);
      if ((c.bits & kNumber) == 0) break;
      at += c.length;
    }
    return at;
  }

  size_t line_breaks(size_t at, bool slashes = false) const {
    while (!at_end(at) &&
           (text_[at] == '\r' || text_[at] == '\n' || (slashes && text_[at] == '/'))) {
      ++at;
    }
    return at;
  }

  // (?i:'s|'t|'re|'ve|'m|'ll|'d) at `at`: its end, or `at`. Case-insensitive matching makes the
  // long s (U+017F) an s.
  size_t contraction(size_t at) const {
    if (at + 1 >= text_.size() || text_[at] != '\'') return at;
    const auto lower = [&](size_t i) {
      return i < text_.size() ? static_cast<char>(text_[i] | 0x20) : '\0';
    };
    const char a = lower(at + 1);
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return at + 2;
    const char b = lower(at + 2);
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return at + 3;
    if (text_.substr(at + 1, 2) == "\xC5\xBF") return at + 3;
    return at;
  }

  // \s*[\r\n]+|\s+(?!\S)|\s+ at a space: up to the last line break of the run; else all of the run
  // at the end of the text; else all but its last character, which goes with what follows.
  size_t spaces(size_t at) const {
    size_t last_break = at, last_start = at, end = at;
    while (!at_end(end)) {
      const Char c = get(end);
      if ((c.bits & kSpace) == 0) break;
      last_start = end;
      end += c.length;
      if (c.value == '\r' || c.value == '\n') last_break = end;
    }
    if (last_break != at) return last_break;
    if (at_end(end) || last_start == at) return end;
    return last_start;
  }

 private:
  std::string_view text_;
};

bool is_line_break(const Char& c) {
  return c.value == '\r' || c.value == '\n';
}

// The qwen2 family, alternatives in the order of the expression.
template <uint8_t kWord, int kDigits>
size_t word_piece(const Scanner& s, size_t at) {
  constexpr uint8_t kNotSymbol = kSpace | kNumber | kWord;
  const Char c = s.get(at);
  if (c.value == '\'') {
    const size_t end = s.contraction(at);
    if (end != at) return end;
  }
  if ((c.bits & kWord) != 0) return s.run(at + c.length, kWord);
  const size_t next = at + c.length;
  const bool more = !s.at_end(next);
  const uint8_t next_bits = more ? s.get(next).bits : uint8_t{0};
  if ((c.bits & kNumber) == 0 && !is_line_break(c) && (next_bits & kWord) != 0) {
    return s.run(next, kWord);
  }
  if ((c.bits & kNumber) != 0) return s.numbers(at, kDigits);
  if ((c.bits & kSpace) == 0) return s.line_breaks(s.run_without(next, kNotSymbol));
  if (c.value == ' ' && more && (next_bits & kNotSymbol) == 0) {
    return s.line_breaks(s.run_without(next, kNotSymbol));
  }
  return s.spaces(at);
}

// gpt-4o words. [head]*[tail]+ with head = Lu Lt Lm Lo M, tail = Ll Lm Lo M: the greedy head run
// gives characters back until the tail can match one. Returns `at` if there is no match.
constexpr uint8_t kHead = kUpper | kOtherLetter | kMark;
constexpr uint8_t kTail = kLower | kOtherLetter | kMark;

size_t cased_word(const Scanner& s, size_t at) {
  size_t end = at, give_back = at;
  while (!s.at_end(end)) {
    const Char c = s.get(end);
    if ((c.bits & kHead) == 0) break;
    end += c.length;
    if ((c.bits & kTail) != 0) give_back = end;
  }
  const size_t tail = s.run(end, kTail);
  return tail != end ? tail : give_back;
}

size_t gpt4o_piece(const Scanner& s, size_t at) {
  constexpr uint8_t kNotSymbol = kSpace | kNumber | kLetter;
  const Char c = s.get(at);
  const size_t next = at + c.length;
  const bool may_prefix = (c.bits & (kLetter | kNumber)) == 0 && !is_line_break(c);
  size_t word = next;
  if (may_prefix) word = cased_word(s, next);
  if (word == next) {
    word = cased_word(s, at);
    if (word == at && may_prefix) {  // second alternative: [head]+[tail]*, and the tail is empty
      word = s.run(next, kHead);
      if (word == next) word = at;
    }
    if (word == at) word = s.run(at, kHead);
  }
  if (word != at) return s.contraction(word);
  if ((c.bits & kNumber) != 0) return s.numbers(at, 3);
  if ((c.bits & kSpace) == 0) return s.line_breaks(s.run_without(next, kNotSymbol), true);
  if (c.value == ' ' && !s.at_end(next) && (s.get(next).bits & kNotSymbol) == 0) {
    return s.line_breaks(s.run_without(next, kNotSymbol), true);
  }
  return s.spaces(at);
}

bool ascii_letter(char32_t c) {
  return (c | 0x20) >= 'a' && (c | 0x20) <= 'z';
}

// deepseek-v3, third expression. Characters that no alternative matches stay together as a piece.
size_t deepseek_match(const Scanner& s, size_t at) {
  constexpr uint8_t kWord = kLetter | kMark;
  constexpr uint8_t kSign = kPunctuation | kSymbol;
  const Char c = s.get(at);
  const size_t next = at + c.length;
  const bool more = !s.at_end(next);
  if (c.value < 0x80 && (c.bits & kSign) != 0 && more && ascii_letter(s.get(next).value)) {
    size_t end = next;
    while (!s.at_end(end) && ascii_letter(s.get(end).value)) ++end;
    return end;
  }
  if ((c.bits & kWord) != 0) return s.run(at, kWord);
  if ((c.bits & kSign) == 0 && !is_line_break(c) && more && (s.get(next).bits & kWord) != 0) {
    return s.run(next, kWord);
  }
  if ((c.bits & kSign) != 0) return s.line_breaks(s.run(at, kSign));
  if (c.value == ' ' && more && (s.get(next).bits & kSign) != 0) {
    return s.line_breaks(s.run(next, kSign));
  }
  if ((c.bits & kSpace) != 0) return s.spaces(at);
  return at;
}

size_t deepseek_piece(const Scanner& s, size_t at) {
  size_t end = deepseek_match(s, at);
  if (end != at) return end;
  do {
    end += s.get(end).length;
  } while (!s.at_end(end) && deepseek_match(s, end) == end);
  return end;
}

bool is_kana_or_han(char32_t c) {
  return (c >= 0x4E00 && c <= 0x9FA5) || (c >= 0x3040 && c <= 0x30FF);
}

void split_deepseek(std::string_view text, std::vector<size_t>& ends) {
  const Scanner whole(text, text.size());
  size_t at = 0;
  while (at < text.size()) {
    const Char c = whole.get(at);
    if ((c.bits & kNumber) != 0) {
      at = whole.numbers(at, 3);
      ends.push_back(at);
      continue;
    }
    const bool kana_or_han = is_kana_or_han(c.value);
    size_t end = at;
    while (end < text.size()) {
      const Char d = whole.get(end);
      if ((d.bits & kNumber) != 0 || is_kana_or_han(d.value) != kana_or_han) break;
      end += d.length;
    }
    const Scanner part(text, end);
    while (at < end) {
      at = deepseek_piece(part, at);
      ends.push_back(at);
    }
  }
}

template <typename Next>
void split_with(std::string_view text, std::vector<size_t>& ends, Next next) {
  const Scanner scanner(text, text.size());
  for (size_t at = 0; at < text.size();) {
    at = next(scanner, at);
    ends.push_back(at);
  }
}

}  // namespace

PreType pre_type(std::string_view name) {
  std::string known;
  for (const NamedPreType& entry : kPreTypes) {
    if (entry.name == name) return entry.type;
    known += known.empty() ? "" : ", ";
    known += entry.name;
  }
  fail(ErrorKind::Unsupported,
       "tokenizer.ggml.pre '{}' is not a pre-tokenizer this build knows; known: {}", name, known);
}

void split_pieces(PreTokenizer splitter, std::string_view text, std::vector<size_t>& ends) {
  switch (splitter) {
    case PreTokenizer::Qwen2:
      return split_with(text, ends, word_piece<kLetter, 1>);
    case PreTokenizer::Qwen35:
      return split_with(text, ends, word_piece<kLetter | kMark, 1>);
    case PreTokenizer::Llama3:
      return split_with(text, ends, word_piece<kLetter, 3>);
    case PreTokenizer::Gpt4o:
      return split_with(text, ends, gpt4o_piece);
    case PreTokenizer::DeepSeek3:
      return split_deepseek(text, ends);
  }
}

}  // namespace penstock::text
