// Numbers as people write them in documents, with their units: "1,628 MB per token", "12.96 to
// 13.80 tok/s", "7.8x".
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::measure {

// What a unit measures; figures of different dimensions are never the same figure.
enum class Dimension {
  Count,  // anything that is counted: tokens, slots
  Time,
  Bytes,
  TokenRate,  // tokens per second
  ByteRate,
  OtherRate,  // FLOP/s, weights/s, reads/s: equal only by name
  Percent,
  Ratio,  // "x", "times"
};

struct Unit {
  std::string name;  // as written
  Dimension dimension = Dimension::Count;
  double factor = 1;       // to seconds, bytes, tokens/s, bytes/s
  bool per_token = false;  // "MB per token", "ms/token", "misses/token"
  bool is_speed() const noexcept {
    return dimension == Dimension::Time || dimension == Dimension::TokenRate ||
           dimension == Dimension::ByteRate || dimension == Dimension::OtherRate;
  }
};

// The whole text as a unit; what is not known counts things.
Unit parse_unit(const std::string& text);
// The longest performance or memory unit that begins at `at` and ends where a word ends; counts are
// none. `length` is the number of bytes that it takes.
std::optional<Unit> unit_at(std::string_view text, size_t at, size_t* length);
// The unit that a table's header or first cell gives to the numbers beside it: "decode, tok/s",
// "size (MiB)", "%".
std::optional<Unit> unit_of_heading(std::string_view cell);
// What a value in `from` is to be multiplied with to be in `to`; nothing if they measure different
// things.
std::optional<double> conversion(const Unit& from, const Unit& to);

// A number as it was written; `digits` after its point (below 0 where it was rounded further).
struct Written {
  std::string text;
  double value = 0;
  int digits = 0;
  // Whether `computed` gives it: within half a unit of its last digit (rule R1).
  bool matches(double computed) const noexcept;
};
// "13.80", "1,628", "-59", "1.5e3"; nothing for anything else.
std::optional<Written> parse_written(std::string_view text);

struct NumberInText {
  size_t begin = 0, end = 0;  // bytes of the number with its sign, and of what follows it
  size_t unit_end = 0;        // end of the unit, or `end`
  Written number;
  std::optional<Unit> unit;  // its own, or that of a number which it is joined to
  bool to_next = false;      // the lower end of a range whose upper end is the next number
};

// All numbers that stand alone (not in names, versions, dates, dimensions like 4 x 4), in order.
std::vector<NumberInText> numbers_in(std::string_view text);

}  // namespace penstock::measure
