// Arithmetic and the string operations shared by filters and methods.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "text/jinja_interpreter.h"
#include "text/unicode.h"

namespace penstock::text::jinja {
namespace {

[[noreturn]] void bad_operands(Interpreter& in, std::string_view op, const Value& a,
                               const Value& b) {
  in.require_defined(a);
  in.require_defined(b);
  in.error(fmt::format("unsupported operand types for {}: '{}' and '{}'", op, a.type_name(),
                       b.type_name()));
}

// Python's // and % round towards minus infinity.
int64_t floor_divide(int64_t a, int64_t b) {
  const int64_t q = a / b;
  return (a % b != 0 && (a < 0) != (b < 0)) ? q - 1 : q;
}

Value integer_arithmetic(Interpreter& in, std::string_view op, int64_t a, int64_t b) {
  int64_t out = 0;
  bool overflow = false;
  if (op == "+") {
    overflow = __builtin_add_overflow(a, b, &out);
  } else if (op == "-") {
    overflow = __builtin_sub_overflow(a, b, &out);
  } else if (op == "*") {
    overflow = __builtin_mul_overflow(a, b, &out);
  } else if (op == "**") {
    if (b < 0) return Value(std::pow(static_cast<double>(a), static_cast<double>(b)));
    out = 1;
    if (a == 0 || a == 1) return Value(b == 0 ? int64_t{1} : a);
    if (a == -1) return Value(b % 2 == 0 ? int64_t{1} : int64_t{-1});
    overflow = b > 63;
    for (int64_t i = 0; i < b && !overflow; ++i) overflow = __builtin_mul_overflow(out, a, &out);
  } else {
    if (b == 0) in.error("division by zero");
    if (op == "/") return Value(static_cast<double>(a) / static_cast<double>(b));
    if (b == -1) return op == "%" ? Value(int64_t{0}) : integer_arithmetic(in, "-", 0, a);
    out = op == "//" ? floor_divide(a, b) : a - b * floor_divide(a, b);
  }
  if (overflow) in.error("integer out of range");
  return Value(out);
}

Value float_arithmetic(Interpreter& in, std::string_view op, double a, double b) {
  if (op == "+") return Value(a + b);
  if (op == "-") return Value(a - b);
  if (op == "*") return Value(a * b);
  if (op == "**") return Value(std::pow(a, b));
  if (b == 0) in.error("division by zero");
  if (op == "/") return Value(a / b);
  if (op == "//") return Value(std::floor(a / b));
  const double rest = std::fmod(a, b);
  return Value(rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest);
}

Value repeat(Interpreter& in, const Value& value, int64_t times) {
  const Text* text = value.as_text();
  const List* list = value.as_list();
  const size_t size = text ? text->size() : list->items.size() * sizeof(Value);
  const auto count = static_cast<uint64_t>(std::max<int64_t>(times, 0));
  if (size != 0 && count > in.limits().bytes / size) in.charge_bytes(in.limits().bytes + 1);
  in.charge_bytes(size * count);
  if (text) {
    Text out;
    for (uint64_t i = 0; i < count && size != 0; ++i) out.append(*text);
    return Value(std::move(out));
  }
  List out;
  out.tuple = list->tuple;
  for (uint64_t i = 0; i < count && size != 0; ++i) {
    out.items.insert(out.items.end(), list->items.begin(), list->items.end());
  }
  return Value(std::move(out));
}

// printf-style formatting, the conversions that templates use.
Value format_percent(Interpreter& in, const Text& format, const Value& values) {
  Text out;
  const std::string_view view = format.view();
  const List* list = values.as_list();
  size_t next = 0, at = 0, plain = 0;
  const auto argument = [&]() -> Value {
    if (!list || !list->tuple) {
      if (next++ != 0) in.error("not enough arguments for format string");
      return values;
    }
    if (next >= list->items.size()) in.error("not enough arguments for format string");
    return list->items[next++];
  };
  while ((at = view.find('%', at)) != std::string_view::npos) {
    out.append(format, plain, at);
    size_t end = at + 1;
    while (end < view.size() &&
           std::string_view("-+ 0123456789.").find(view[end]) != std::string_view::npos) {
      ++end;
    }
    const char conversion = end < view.size() ? view[end] : '\0';
    const std::string spec(view.substr(at + 1, end - at - 1));
    if (spec.size() > 6) in.error("format width too large");
    plain = at = end + 1;
    if (conversion == '%') {
      out.append("%", Origin::Template);
    } else if (conversion == 's' && spec.empty()) {
      out.append(in.text_of(argument()));
    } else if (conversion == 'd' || conversion == 'i') {
      int64_t value = 0;
      const Value given = argument();
      double number = 0;
      if (!given.to_int(value)) {
        if (!given.to_float(number) || std::fabs(number) >= 9e18) in.error("%d needs a number");
        value = static_cast<int64_t>(number);
      }
      char buffer[1100];
      const std::string c_format = "%" + spec + "lld";
      const int n =
          std::snprintf(buffer, sizeof buffer, c_format.c_str(), static_cast<long long>(value));
      if (n < 0 || static_cast<size_t>(n) >= sizeof buffer) in.error("format width too large");
      out.append(std::string_view(buffer, static_cast<size_t>(n)), Origin::Template);
    } else if (conversion == 'f' || conversion == 'e' || conversion == 'g') {
      double value = 0;
      if (!argument().to_float(value)) in.error("the format needs a number");
      char buffer[1600];
      const std::string c_format = "%" + spec + conversion;
      const int n = std::snprintf(buffer, sizeof buffer, c_format.c_str(), value);
      if (n < 0 || static_cast<size_t>(n) >= sizeof buffer) in.error("format width too large");
      out.append(std::string_view(buffer, static_cast<size_t>(n)), Origin::Template);
    } else {
      in.unsupported(fmt::format("the format '%{}{}'", spec, conversion));
    }
  }
  out.append(format, std::min(plain, view.size()), view.size());
  if (list && list->tuple ? next < list->items.size() : next == 0 && !values.as_dict()) {
    in.error("not all arguments converted during string formatting");
  }
  return in.make(std::move(out));
}

bool in_chars(const Text* chars, char32_t c, std::string_view bytes) {
  if (!chars) return is_python_space(c);
  for (size_t at = 0; at < chars->size();) {
    const CodePoint d = decode_utf8(chars->view(), at);
    if (chars->view().substr(at, d.length) == bytes) return true;
    at += d.length;
  }
  return false;
}

}  // namespace

Value arithmetic(Interpreter& in, std::string_view op, const Value& a, const Value& b) {
  int64_t i = 0, j = 0;
  if (a.to_int(i) && b.to_int(j)) return integer_arithmetic(in, op, i, j);
  double x = 0, y = 0;
  if (a.to_float(x) && b.to_float(y)) return float_arithmetic(in, op, x, y);
  if (op == "+") {
    if (a.as_text() && b.as_text()) {
      in.charge_bytes(a.as_text()->size() + b.as_text()->size());
      Text out = *a.as_text();
      out.append(*b.as_text());
      return Value(std::move(out));
    }
    const List *p = a.as_list(), *q = b.as_list();
    if (p && q && p->tuple == q->tuple && !p->generator && !q->generator) {
      List out;
      out.tuple = p->tuple;
      in.charge_bytes((p->items.size() + q->items.size()) * sizeof(Value));
      out.items = p->items;
      out.items.insert(out.items.end(), q->items.begin(), q->items.end());
      return Value(std::move(out));
    }
  }
  if (op == "*") {
    const auto repeatable = [](const Value& v) {
      return v.as_text() || (v.as_list() && !v.as_list()->generator);
    };
    if (repeatable(a) && b.to_int(j)) return repeat(in, a, j);
    if (repeatable(b) && a.to_int(i)) return repeat(in, b, i);
  }
  if (op == "%" && a.as_text()) return format_percent(in, *a.as_text(), b);
  bad_operands(in, op, a, b);
}

// str.strip(): white space, or any of the given characters.
Text strip(const Text& text, const Text* chars, bool left, bool right) {
  const std::string_view view = text.view();
  size_t begin = 0;
  while (left && begin < view.size()) {
    const CodePoint c = decode_utf8(view, begin);
    if (!in_chars(chars, c.value, view.substr(begin, c.length))) break;
    begin += c.length;
  }
  size_t end = view.size();
  while (right && end > begin) {
    size_t start = end - 1;
    while (start > begin && end - start < 4 &&
           (static_cast<unsigned char>(view[start]) & 0xC0) == 0x80) {
      --start;
    }
    CodePoint c = decode_utf8(view, start);
    if (start + c.length != end) {  // a stray continuation byte is a character of its own
      start = end - 1;
      c = {kInvalid, 1};
    }
    if (!in_chars(chars, c.value, view.substr(start, c.length))) break;
    end = start;
  }
  return text.slice(begin, end);
}

// str.replace(); an empty `from` matches before every character and at the end.
Text replace_all(Interpreter& in, const Text& text, const Text& from, const Text& to,
                 int64_t count) {
  Text out;
  const std::string_view view = text.view();
  const uint64_t most =
      count < 0 ? std::numeric_limits<uint64_t>::max() : static_cast<uint64_t>(count);
  uint64_t done = 0;
  size_t at = 0;
  in.charge_bytes(text.size());
  if (from.empty()) {
    const std::vector<size_t> offsets = char_offsets(view);
    for (size_t i = 0; i < offsets.size(); ++i) {
      if (done < most) {
        in.charge_bytes(to.size());
        out.append(to);
        ++done;
      }
      if (i + 1 < offsets.size()) out.append(text, offsets[i], offsets[i + 1]);
    }
    return out;
  }
  while (done < most) {
    const size_t found = view.find(from.view(), at);
    if (found == std::string_view::npos) break;
    in.charge_bytes(to.size());
    out.append(text, at, found);
    out.append(to);
    at = found + from.size();
    ++done;
  }
  out.append(text, at, text.size());
  return out;
}

std::vector<Text> split_lines(const Text& text) {
  std::vector<Text> lines;
  const std::string_view view = text.view();
  size_t start = 0, at = 0;
  while (at < view.size()) {
    const CodePoint c = decode_utf8(view, at);
    const size_t next = at + c.length;
    if (is_python_line_break(c.value)) {
      lines.push_back(text.slice(start, at));
      start = c.value == '\r' && next < view.size() && view[next] == '\n' ? next + 1 : next;
      at = start;
    } else {
      at = next;
    }
  }
  if (start < view.size()) lines.push_back(text.slice(start, view.size()));
  return lines;
}

Text capitalized(const Text& text) {
  if (text.empty()) return text;
  const size_t first = decode_utf8(text.view(), 0).length;
  Text out = title_case(text.slice(0, first));
  out.append(lower_case(text.slice(first, text.size())));
  return out;
}

// str.title(): a letter after anything that is not a letter becomes a capital.
Text titled(const Text& text) {
  Text out;
  const std::string_view view = text.view();
  bool in_word = false;
  for (size_t at = 0; at < view.size();) {
    const CodePoint c = decode_utf8(view, at);
    const Text one = text.slice(at, at + c.length);
    const bool letter = c.value != kInvalid && (char_bits(c.value) & (kUpper | kLower)) != 0;
    out.append(in_word ? lower_case(one) : title_case(one));
    in_word = letter;
    at += c.length;
  }
  return out;
}

}  // namespace penstock::text::jinja
