#include "measure/quantities.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

namespace penstock::measure {
namespace {

struct Base {
  const char* name;
  Dimension dimension;
  double factor;
};

constexpr double kKi = 1024.0;

const std::vector<Base>& bases() {
  using D = Dimension;
  static const std::vector<Base> table = {
      {"ns", D::Time, 1e-9},
      {"us", D::Time, 1e-6},
      {"\u00b5s", D::Time, 1e-6},
      {"\u03bcs", D::Time, 1e-6},
      {"ms", D::Time, 1e-3},
      {"s", D::Time, 1},
      {"sec", D::Time, 1},
      {"second", D::Time, 1},
      {"seconds", D::Time, 1},
      {"nanoseconds", D::Time, 1e-9},
      {"microseconds", D::Time, 1e-6},
      {"milliseconds", D::Time, 1e-3},
      {"min", D::Time, 60},
      {"minute", D::Time, 60},
      {"minutes", D::Time, 60},
      {"h", D::Time, 3600},
      {"hour", D::Time, 3600},
      {"hours", D::Time, 3600},
      {"kB", D::Bytes, 1e3},
      {"KB", D::Bytes, 1e3},
      {"MB", D::Bytes, 1e6},
      {"GB", D::Bytes, 1e9},
      {"TB", D::Bytes, 1e12},
      {"KiB", D::Bytes, kKi},
      {"MiB", D::Bytes, kKi * kKi},
      {"GiB", D::Bytes, kKi * kKi * kKi},
      {"TiB", D::Bytes, kKi * kKi * kKi * kKi},
      {"tok/s", D::TokenRate, 1},
      {"toks/s", D::TokenRate, 1},
      {"t/s", D::TokenRate, 1},
      {"token/s", D::TokenRate, 1},
      {"tokens/s", D::TokenRate, 1},
      {"tokens/second", D::TokenRate, 1},
      {"tokens per second", D::TokenRate, 1},
      {"tokens a second", D::TokenRate, 1},
      {"B/s", D::ByteRate, 1},
      {"kB/s", D::ByteRate, 1e3},
      {"KB/s", D::ByteRate, 1e3},
      {"MB/s", D::ByteRate, 1e6},
      {"GB/s", D::ByteRate, 1e9},
      {"TB/s", D::ByteRate, 1e12},
      {"KiB/s", D::ByteRate, kKi},
      {"MiB/s", D::ByteRate, kKi * kKi},
      {"GiB/s", D::ByteRate, kKi * kKi * kKi},
      {"MB per second", D::ByteRate, 1e6},
      {"GB per second", D::ByteRate, 1e9},
      {"weights/s", D::OtherRate, 1},
      {"Mweights/s", D::OtherRate, 1e6},
      {"Gweights/s", D::OtherRate, 1e9},
      {"FLOP/s", D::OtherRate, 1},
      {"MFLOP/s", D::OtherRate, 1e6},
      {"GFLOP/s", D::OtherRate, 1e9},
      {"TFLOP/s", D::OtherRate, 1e12},
      {"GFLOPS", D::OtherRate, 1e9},
      {"TFLOPS", D::OtherRate, 1e12},
      {"GOP/s", D::OtherRate, 1e9},
      {"reads/s", D::OtherRate, 1},
      {"IOPS", D::OtherRate, 1},
      {"requests/s", D::OtherRate, 1},
      {"experts/s", D::OtherRate, 1},
      {"%", D::Percent, 1},
      {"percent", D::Percent, 1},
      {"per cent", D::Percent, 1},
      {"percentage points", D::Percent, 1},
      {"x", D::Ratio, 1},
      {"\u00d7", D::Ratio, 1},
      {"times", D::Ratio, 1},
      {"fold", D::Ratio, 1},
  };
  return table;
}

constexpr std::array kPerToken = {"/token",
                                  "/tok",
                                  " per token",
                                  " a token",
                                  " per decode token",
                                  " per decoded token",
                                  " per generated token",
                                  " per decode tok"};
// Counted things that are figures of performance once they are per token.
constexpr std::array kCounted = {"misses", "reads", "hits", "uses", "experts"};

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}
bool is_word(char c) {
  return is_digit(c) || is_letter(c) || c == '_';
}

// Bytes of white space that begin at `at`: a space, a line end, or one of the spaces of Unicode
// that stand between a number and its unit.
size_t space_at(std::string_view text, size_t at) {
  if (at >= text.size()) return 0;
  if (text[at] == ' ' || text[at] == '\t' || text[at] == '\n' || text[at] == '\r') return 1;
  for (const std::string_view space : {"\u00a0", "\u202f", "\u2009", "\u2007"}) {
    if (text.substr(at).starts_with(space)) return space.size();
  }
  return 0;
}

size_t skip_spaces(std::string_view text, size_t at, int* lines = nullptr) {
  while (const size_t n = space_at(text, at)) {
    if (lines != nullptr && text[at] == '\n') ++*lines;
    at += n;
  }
  return at;
}

// `name` at `at`, where a space in the name stands for any white space; the end, or npos.
size_t match(std::string_view text, size_t at, std::string_view name) {
  for (size_t i = 0; i < name.size(); ++i) {
    if (name[i] == ' ') {
      const size_t next = skip_spaces(text, at);
      if (next == at) return std::string_view::npos;
      at = next;
    } else if (at < text.size() && text[at] == name[i]) {
      ++at;
    } else {
      return std::string_view::npos;
    }
  }
  return at;
}

bool word_ends(std::string_view text, size_t at) {
  if (at >= text.size()) return true;
  const char c = text[at];
  if (is_word(c)) return false;
  // "MB/x" is some other unit; "ms-" and "ms." end.
  return !(c == '/' && at + 1 < text.size() && is_letter(text[at + 1]));
}

size_t per_token_at(std::string_view text, size_t at) {
  size_t best = std::string_view::npos;
  for (const char* suffix : kPerToken) {
    const size_t end = match(text, at, suffix);
    if (end == std::string_view::npos || !word_ends(text, end)) continue;
    best = best == std::string_view::npos ? end : std::max(best, end);
  }
  return best;
}

std::string trim(std::string_view text) {
  size_t begin = skip_spaces(text, 0), end = text.size();
  while (end > begin && (text[end - 1] == ' ' || text[end - 1] == '\n' || text[end - 1] == '\t' ||
                         text[end - 1] == '\r')) {
    --end;
  }
  return std::string(text.substr(begin, end - begin));
}

constexpr std::string_view kMinus = "\u2212";

}  // namespace

std::optional<Unit> unit_at(std::string_view text, size_t at, size_t* length) {
  std::optional<Unit> best;
  size_t best_end = at;
  const auto offer = [&](size_t end, Unit unit) {
    if (end <= best_end) return;
    unit.name = std::string(text.substr(at, end - at));
    best = std::move(unit);
    best_end = end;
  };
  for (const Base& base : bases()) {
    const size_t end = match(text, at, base.name);
    if (end == std::string_view::npos) continue;
    if (const size_t longer = per_token_at(text, end); longer != std::string_view::npos) {
      offer(longer, {{}, base.dimension, base.factor, true});
    }
    // The per cent sign may be followed by anything: "5 %ile" is nothing people write.
    if (base.dimension != Dimension::Percent && !word_ends(text, end)) continue;
    if (std::string_view(base.name) == "x" || std::string_view(base.name) == "\u00d7") {
      const size_t next = skip_spaces(text, end);
      if (next < text.size() && is_digit(text[next])) continue;  // 4 x 4
    }
    offer(end, {{}, base.dimension, base.factor, false});
  }
  for (const char* counted : kCounted) {
    const size_t end = match(text, at, counted);
    if (end == std::string_view::npos) continue;
    if (const size_t longer = per_token_at(text, end); longer != std::string_view::npos) {
      offer(longer, {{}, Dimension::Count, 1, true});
    }
  }
  if (const size_t bare = per_token_at(text, at); bare != std::string_view::npos) {
    offer(bare, {{}, Dimension::Count, 1, true});
  }
  if (best) *length = best_end - at;
  return best;
}

Unit parse_unit(const std::string& text) {
  size_t length = 0;
  if (auto unit = unit_at(text, 0, &length); unit && length == text.size()) return *unit;
  return {text, Dimension::Count, 1, false};
}

std::optional<Unit> unit_of_heading(std::string_view cell) {
  size_t length = 0;
  for (size_t at = 0; at < cell.size(); ++at) {
    const bool begins = at == 0 || !(is_word(cell[at - 1]) || cell[at - 1] == '/');
    if (!begins) continue;
    if (const auto unit = unit_at(cell, at, &length)) {
      // "second", "times" and "s" are words: units where they are all of it, or stand behind a
      // comma or in parentheses.
      const size_t before = cell.substr(0, at).find_last_not_of(" \t");
      const bool apart =
          before != std::string_view::npos && (cell[before] == ',' || cell[before] == '(');
      const bool word =
          unit->dimension == Dimension::Ratio ||
          (unit->dimension == Dimension::Time && !unit->per_token && unit->name != "ms");
      if (word && !apart && trim(cell) != unit->name) continue;
      return unit;
    }
  }
  return std::nullopt;
}

std::optional<double> conversion(const Unit& from, const Unit& to) {
  if (from.dimension != to.dimension) return std::nullopt;
  // "72 ms" of a figure per token is common usage; a whole run's figure called per token is not.
  if (to.per_token && !from.per_token) return std::nullopt;
  if (from.dimension == Dimension::OtherRate) {
    const auto thing = [](std::string name) {  // GFLOP/s and MFLOP/s count the same
      if (!name.empty() && std::string_view("MGTk").find(name[0]) != std::string_view::npos) {
        name.erase(0, 1);
      }
      return name;
    };
    if (thing(from.name) != thing(to.name)) return std::nullopt;
  }
  return from.factor / to.factor;
}

bool Written::matches(double computed) const noexcept {
  const double half = 0.5 * std::pow(10.0, -digits);
  return std::fabs(computed - value) <= half + 1e-9 * std::max(1.0, std::fabs(value));
}

std::optional<Written> parse_written(std::string_view text) {
  Written out;
  out.text = trim(text);
  std::string digits;
  size_t at = 0;
  const std::string_view t = out.text;
  if (t.starts_with(kMinus)) {
    digits = "-";
    at = kMinus.size();
  } else if (t.starts_with('-') || t.starts_with('+')) {
    if (t[0] == '-') digits = "-";
    at = 1;
  }
  size_t group = 0;  // digits since the last comma
  bool comma = false, any = false;
  for (; at < t.size() && (is_digit(t[at]) || t[at] == ','); ++at) {
    if (t[at] == ',') {
      if (!any || group > 3 || (comma && group != 3)) return std::nullopt;
      comma = true;
      group = 0;
      continue;
    }
    any = true;
    ++group;
    digits += t[at];
  }
  if (!any || (comma && group != 3)) return std::nullopt;
  if (at < t.size() && t[at] == '.') {
    digits += t[at++];
    while (at < t.size() && is_digit(t[at])) {
      digits += t[at++];
      ++out.digits;
    }
    if (out.digits == 0) return std::nullopt;
  }
  if (at < t.size() && (t[at] == 'e' || t[at] == 'E')) {
    int exponent = 0;
    const char* const begin = t.data() + at + 1 + (at + 1 < t.size() && t[at + 1] == '+' ? 1 : 0);
    const auto [end, error] = std::from_chars(begin, t.data() + t.size(), exponent);
    if (error != std::errc() || end != t.data() + t.size() || std::abs(exponent) > 300) {
      return std::nullopt;
    }
    out.digits -= exponent;
    digits += "e" + std::to_string(exponent);
    at = t.size();
  }
  if (at != t.size() || digits.size() > 40) return std::nullopt;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), out.value);
  if (error != std::errc() || end != digits.data() + digits.size() || !std::isfinite(out.value)) {
    return std::nullopt;
  }
  return out;
}

namespace {

// Where the number that begins with a digit at `at` ends; `at` if it is none that stands alone.
size_t number_end(std::string_view text, size_t at) {
  size_t end = at;
  while (end < text.size() && is_digit(text[end])) ++end;
  if (end - at <= 3) {  // thousands
    while (end + 3 < text.size() && text[end] == ',' && is_digit(text[end + 1]) &&
           is_digit(text[end + 2]) && is_digit(text[end + 3]) &&
           (end + 4 >= text.size() || !is_digit(text[end + 4]))) {
      end += 4;
    }
  }
  if (end + 1 < text.size() && text[end] == '.' && is_digit(text[end + 1])) {
    ++end;
    while (end < text.size() && is_digit(text[end])) ++end;
    if (end + 1 < text.size() && text[end] == '.' && is_digit(text[end + 1])) return at;  // 1.2.3
  }
  if (end + 1 < text.size() && (text[end] == 'e' || text[end] == 'E')) {
    size_t e = end + 1;
    if (text[e] == '-' || text[e] == '+') ++e;
    size_t last = e;
    while (last < text.size() && is_digit(text[last])) ++last;
    if (last > e && (last >= text.size() || !is_word(text[last]))) end = last;
  }
  return end;
}

size_t past_word(std::string_view text, size_t at) {
  while (at < text.size() && (is_word(text[at]) || (text[at] == '.' && at + 1 < text.size() &&
                                                    is_digit(text[at + 1])))) {
    ++at;
  }
  return at;
}

// Whether the digit at `at` may begin a number: not in a word, a version, a name like x86-64.
bool begins_number(std::string_view text, size_t at) {
  if (at == 0) return true;
  const char before = text[at - 1];
  if (is_word(before)) return false;
  if (before == '.' && at > 1 && is_word(text[at - 2])) return false;
  if (before == '-' && at > 1 && is_letter(text[at - 2])) return false;
  if (before == '^' || before == '#') return false;
  return !(before == '/' && at > 1 && is_letter(text[at - 2]));
}

size_t sign_before(std::string_view text, size_t at) {
  const auto alone = [&](size_t sign) {
    return sign == 0 || space_at(text, sign - 1) == 1 || text[sign - 1] == '(' ||
           text[sign - 1] == '|' || text[sign - 1] == '"' || text[sign - 1] == '*';
  };
  if (at >= 1 && (text[at - 1] == '-' || text[at - 1] == '+') && alone(at - 1)) return at - 1;
  if (at >= kMinus.size() && text.substr(at - kMinus.size(), kMinus.size()) == kMinus &&
      alone(at - kMinus.size())) {
    return at - kMinus.size();
  }
  return at;
}

void find_unit(std::string_view text, NumberInText* number) {
  int lines = 0;
  size_t at = skip_spaces(text, number->end, &lines);
  if (lines > 1) return;  // another paragraph
  if (at == number->end && at + 1 < text.size() && text[at] == '-' && is_letter(text[at + 1])) ++at;
  // "13.8 (12.9 to 13.9) tok/s": the unit behind the parenthesis.
  if (at < text.size() && text[at] == ')') at = skip_spaces(text, at + 1, &lines);
  if (lines > 1) return;
  // "**56** %": emphasis between the two.
  while (at < text.size() && text[at] == '*') ++at;
  at = skip_spaces(text, at, &lines);
  size_t length = 0;
  if (auto unit = unit_at(text, at, &length)) {
    number->unit = std::move(unit);
    number->unit_end = at + length;
  }
}

bool is_range_joiner(const std::string& between) {
  return between == "to" || between == "-" || between == "\u2013" || between == ".." ||
         between == "..." || between == "\u2026";
}

bool shares_unit(const std::string& between, const NumberInText& a, const NumberInText& b) {
  if (is_range_joiner(between) || between == "->" || between == "\u2192" || between == "/" ||
      between == "\u00b1" || between == "+-" || between == "+/-" || between == "(" ||
      between == "and" || between == "or" || between == "against" || between == ", and") {
    return true;
  }
  return between == "," && a.number.digits == b.number.digits;
}

void join(std::string_view text, std::vector<NumberInText>* numbers) {
  std::vector<NumberInText>& all = *numbers;
  const auto between = [&](size_t i) {
    return trim(text.substr(all[i].unit_end, all[i + 1].begin - all[i].unit_end));
  };
  for (size_t i = all.size(); i-- > 1;) {  // units stand behind the last of a list
    NumberInText& a = all[i - 1];
    const std::string joiner = between(i - 1);
    if (!a.unit && all[i].unit && shares_unit(joiner, a, all[i])) a.unit = all[i].unit;
    a.to_next = is_range_joiner(joiner) && a.unit && all[i].unit;
  }
  for (size_t i = 1; i < all.size(); ++i) {  // "13.8 tok/s (12.9 to 13.9)"
    if (all[i].unit || !all[i - 1].unit) continue;
    const std::string joiner = between(i - 1);
    const bool range = is_range_joiner(joiner);
    if (joiner != "(" && !range) continue;
    all[i].unit = all[i - 1].unit;
    all[i - 1].to_next = all[i - 1].to_next || range;
  }
  // A range without any unit is one as well: a table's heading may give it.
  for (size_t i = 1; i < all.size(); ++i) {
    if (!all[i].unit && !all[i - 1].unit && is_range_joiner(between(i - 1))) {
      all[i - 1].to_next = true;
    }
  }
}

}  // namespace

std::vector<NumberInText> numbers_in(std::string_view text) {
  std::vector<NumberInText> out;
  size_t at = 0;
  while (at < text.size()) {
    if (!is_digit(text[at])) {
      ++at;
      continue;
    }
    const size_t end = begins_number(text, at) ? number_end(text, at) : at;
    if (end == at) {
      at = std::max(past_word(text, at), at + 1);
      continue;
    }
    NumberInText number;
    number.begin = sign_before(text, at);
    number.end = number.unit_end = end;
    if (const auto written = parse_written(text.substr(number.begin, end - number.begin))) {
      number.number = *written;
      find_unit(text, &number);
      // "30B", "4-bit", "2K": a name, unless what is attached is a unit.
      const bool attached = end < text.size() && is_word(text[end]);
      if (!attached || number.unit) out.push_back(std::move(number));
      at = attached ? past_word(text, end) : end;
    } else {
      at = end;
    }
  }
  join(text, &out);
  return out;
}

}  // namespace penstock::measure
