#include "text/jinja_lexer.h"

#include <algorithm>
#include <array>

#include "text/jinja_text.h"
#include "text/unicode.h"

namespace penstock::text::jinja {

void template_error(ErrorKind kind, int line, std::string_view message) {
  fail(kind,
       "chat template, line {}: {} (to go on without the model's template: --chat-format chatml or "
       "raw)",
       line, message);
}

namespace {

// Line ends become "\n" and the last one goes, as Jinja does before anything else.
std::string normalise(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out += source[i];
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

bool is_name_char(char32_t c) {
  if (c < 0x80) return c == '_' || (char_bits(c) & (kLetter | kNumber)) != 0;
  return c != kInvalid && (char_bits(c) & (kLetter | kNumber | kMark)) != 0;
}

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) data();
    add(TokenKind::End, "");
    return std::move(tokens_);
  }

 private:
  std::string_view rest() const { return std::string_view(source_).substr(at_); }
  bool next_is(std::string_view s) const { return rest().substr(0, s.size()) == s; }
  void add(TokenKind kind, std::string text) { tokens_.push_back({kind, line_, std::move(text)}); }
  [[noreturn]] void error(std::string_view message) const {
    template_error(ErrorKind::Format, line_, message);
  }

  void advance(size_t bytes) {
    for (size_t i = 0; i < bytes; ++i) line_ += source_[at_ + i] == '\n' ? 1 : 0;
    at_ += bytes;
  }

  void skip_space() {
    while (at_ < source_.size()) {
      const CodePoint c = decode_utf8(source_, at_);
      if (!is_python_space(c.value)) break;
      advance(c.length);
    }
  }

  static size_t right_stripped(std::string_view text) {
    size_t end = 0;
    for (size_t at = 0; at < text.size();) {
      const CodePoint c = decode_utf8(text, at);
      at += c.length;
      if (!is_python_space(c.value)) end = at;
    }
    return end;
  }

  // How much of the text before a tag is kept. `line_start`: the text begins a line.
  static std::string_view before_tag(std::string_view text, char sign, bool strip_indent,
                                     bool line_start) {
    if (sign == '-') return text.substr(0, right_stripped(text));
    if (sign == '+' || !strip_indent) return text;
    const size_t newline = text.rfind('\n');
    const size_t indent = newline == std::string_view::npos ? 0 : newline + 1;
    if (indent == 0 && !line_start) return text;
    return right_stripped(text.substr(indent)) == 0 ? text.substr(0, indent) : text;
  }

  char sign_after(size_t open) const {
    const char c = open + 2 < source_.size() ? source_[open + 2] : '\0';
    return c == '-' || c == '+' ? c : '\0';
  }

  void emit_data(size_t end, char sign, bool strip_indent) {
    const bool line_start = at_ == 0 || source_[at_ - 1] == '\n';
    const std::string_view text = std::string_view(source_).substr(at_, end - at_);
    const std::string_view kept = before_tag(text, sign, strip_indent, line_start);
    if (!kept.empty()) add(TokenKind::Data, std::string(kept));
    advance(end - at_);
  }

  // After a closing mark: "-" takes all white space, none takes one line end, "+" nothing.
  void after_tag(char sign, bool trim_line_end) {
    if (sign == '-') {
      skip_space();
    } else if (sign != '+' && trim_line_end && next_is("\n")) {
      advance(1);
    }
  }

  void data() {
    size_t open = at_;
    for (;; ++open) {
      open = source_.find('{', open);
      if (open == std::string::npos || open + 1 >= source_.size()) {
        open = source_.size();
        break;
      }
      const char kind = source_[open + 1];
      if (kind == '{' || kind == '%' || kind == '#') break;
    }
    if (open == source_.size()) {
      emit_data(open, '\0', false);
      return;
    }
    const char kind = source_[open + 1];
    const char sign = sign_after(open);
    emit_data(open, sign, kind != '{');
    advance(sign == '\0' ? 2 : 3);
    if (kind == '#') {
      comment();
    } else if (kind == '{') {
      add(TokenKind::OutputBegin, "");
      expression("}}", TokenKind::OutputEnd);
    } else if (raw_tag("raw")) {
      raw();
    } else {
      add(TokenKind::BlockBegin, "");
      expression("%}", TokenKind::BlockEnd);
    }
  }

  void comment() {
    const size_t close = source_.find("#}", at_);
    if (close == std::string::npos) error("comment without an end");
    const char before = close > at_ ? source_[close - 1] : '\0';
    advance(close + 2 - at_);
    after_tag(before, true);
  }

  // At the inside of a tag: if it is just `name`, goes past it and its end mark. Unlike other tags
  // {% raw %} leaves the line end after it alone.
  bool raw_tag(std::string_view name) {
    size_t i = at_;
    const auto space = [&] {
      while (i < source_.size() && is_python_space(static_cast<unsigned char>(source_[i]))) ++i;
    };
    space();
    if (std::string_view(source_).substr(i, name.size()) != name) return false;
    i += name.size();
    space();
    char sign = '\0';
    if (i < source_.size() && (source_[i] == '-' || source_[i] == '+')) sign = source_[i++];
    if (std::string_view(source_).substr(i, 2) != "%}") return false;
    advance(i + 2 - at_);
    after_tag(sign, name != "raw");
    return true;
  }

  void raw() {
    size_t open = at_;
    while (true) {
      open = source_.find("{%", open);
      if (open == std::string::npos) error("{% raw %} without {% endraw %}");
      const size_t at = at_;
      const int line = line_;
      const char sign = sign_after(open);
      at_ = open + (sign == '\0' ? 2 : 3);
      if (raw_tag("endraw")) {
        const size_t end = at_;
        at_ = at;
        line_ = line;
        emit_data(open, sign, true);
        advance(end - at_);
        return;
      }
      at_ = at;
      line_ = line;
      open += 2;
    }
  }

  // Jinja looks for the end mark before operators, but not while a bracket is open.
  bool at_end_mark(std::string_view mark, TokenKind kind) {
    size_t skip = 0;
    char sign = '\0';
    if (next_is("-") || (next_is("+") && mark == "%}")) {
      sign = source_[at_];
      skip = 1;
    }
    if (rest().substr(skip, 2) != mark) return false;
    add(kind, "");
    advance(skip + 2);
    after_tag(sign, mark == "%}");
    return true;
  }

  void expression(std::string_view mark, TokenKind end_kind) {
    std::vector<char> open;
    const int start = line_;
    while (true) {
      skip_space();
      if (at_ >= source_.size()) {
        template_error(ErrorKind::Format, start, mark == "}}" ? "{{ without }}" : "{% without %}");
      }
      if (open.empty() && at_end_mark(mark, end_kind)) return;
      const char c = source_[at_];
      if (c == '\'' || c == '"') {
        string(c);
      } else if (is_digit(c)) {
        number();
      } else if (is_name_char(decode_utf8(source_, at_).value)) {
        name();
      } else {
        op(open);
      }
    }
  }

  void name() {
    size_t end = at_;
    while (end < source_.size()) {
      const CodePoint c = decode_utf8(source_, end);
      if (!is_name_char(c.value)) break;
      end += c.length;
    }
    add(TokenKind::Name, source_.substr(at_, end - at_));
    advance(end - at_);
  }

  void number() {
    const auto digits = [&](size_t i) {
      while (i < source_.size() && (is_digit(source_[i]) || source_[i] == '_')) ++i;
      return i;
    };
    const auto digit_at = [&](size_t i) { return i < source_.size() && is_digit(source_[i]); };
    size_t end = at_;
    TokenKind kind = TokenKind::Integer;
    const char base = at_ + 1 < source_.size() ? static_cast<char>(source_[at_ + 1] | 0x20) : '\0';
    if (source_[at_] == '0' && (base == 'x' || base == 'o' || base == 'b')) {
      end = at_ + 2;
      while (
          end < source_.size() &&
          (std::isxdigit(static_cast<unsigned char>(source_[end])) != 0 || source_[end] == '_')) {
        ++end;
      }
    } else {
      end = digits(at_);
      if (end < source_.size() && source_[end] == '.' && digit_at(end + 1)) {
        kind = TokenKind::Float;
        end = digits(end + 1);
      }
      if (end < source_.size() && (source_[end] | 0x20) == 'e') {
        size_t exponent = end + 1;
        if (exponent < source_.size() && (source_[exponent] == '+' || source_[exponent] == '-')) {
          ++exponent;
        }
        if (digit_at(exponent)) {
          kind = TokenKind::Float;
          end = digits(exponent);
        }
      }
    }
    std::string text = source_.substr(at_, end - at_);
    text.erase(std::remove(text.begin(), text.end(), '_'), text.end());
    add(kind, std::move(text));
    advance(end - at_);
  }

  void string(char quote) {
    size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) error("string without an end");
    const std::string_view inside = std::string_view(source_).substr(at_ + 1, end - at_ - 1);
    add(TokenKind::String, unescape(inside));
    advance(end + 1 - at_);
  }

  // Python's escapes. Others keep their backslash.
  std::string unescape(std::string_view s) const {
    std::string out;
    for (size_t i = 0; i < s.size(); ++i) {
      if (s[i] != '\\' || i + 1 == s.size()) {
        out += s[i];
        continue;
      }
      const char c = s[++i];
      static constexpr std::string_view kFrom = "nrtabfv\\'\"", kTo = "\n\r\t\a\b\f\v\\'\"";
      if (const size_t simple = kFrom.find(c); simple != std::string_view::npos) {
        out += kTo[simple];
      } else if (c == '\n') {
        continue;
      } else if (c >= '0' && c <= '7') {
        char32_t value = 0;
        size_t n = 0;
        for (; n < 3 && i + n < s.size() && s[i + n] >= '0' && s[i + n] <= '7'; ++n) {
          value = value * 8 + static_cast<char32_t>(s[i + n] - '0');
        }
        append_utf8(out, value);
        i += n - 1;
      } else if (c == 'x' || c == 'u' || c == 'U') {
        const size_t want = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        append_utf8(out, hex(s.substr(i + 1, want), want));
        i += want;
      } else if (c == 'N') {
        template_error(ErrorKind::Unsupported, line_, "characters by name (\\N{...}) in strings");
      } else {
        out += '\\';
        out += c;
      }
    }
    return out;
  }

  char32_t hex(std::string_view digits, size_t want) const {
    char32_t value = 0;
    for (const char c : digits) {
      const char lower = static_cast<char>(c | 0x20);
      if (is_digit(c)) {
        value = value * 16 + static_cast<char32_t>(c - '0');
      } else if (lower >= 'a' && lower <= 'f') {
        value = value * 16 + static_cast<char32_t>(lower - 'a' + 10);
      } else {
        error("malformed \\x, \\u or \\U in a string");
      }
    }
    if (digits.size() != want || value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) {
      error("malformed \\x, \\u or \\U in a string");
    }
    return value;
  }

  void op(std::vector<char>& open) {
    static constexpr std::array<std::string_view, 6> kLong = {"==", "!=", "<=", ">=", "//", "**"};
    for (const std::string_view two : kLong) {
      if (next_is(two)) {
        add(TokenKind::Operator, std::string(two));
        advance(2);
        return;
      }
    }
    const char c = source_[at_];
    if (std::string_view("+-*/%~[](){}<>=.:|,;").find(c) == std::string_view::npos) {
      error("unexpected character '" + source_.substr(at_, decode_utf8(source_, at_).length) + "'");
    }
    if (c == '(' || c == '[' || c == '{') open.push_back(c);
    if (c == ')' || c == ']' || c == '}') {
      const char matching = c == ')' ? '(' : c == ']' ? '[' : '{';
      if (open.empty() || open.back() != matching) error(std::string("unexpected '") + c + "'");
      open.pop_back();
    }
    add(TokenKind::Operator, std::string(1, c));
    advance(1);
  }

  std::string source_;
  size_t at_ = 0;
  int line_ = 1;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) {
  return Lexer(normalise(source)).run();
}

}  // namespace penstock::text::jinja
