#include "text/jinja_value.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/error.h"
#include "text/unicode.h"

namespace penstock::text::jinja {

const Value* Dict::find(const Value& key) const {
  for (const auto& [k, v] : entries) {
    if (equal(k, key)) return &v;
  }
  return nullptr;
}

const Value* Dict::find(std::string_view key) const {
  for (const auto& [k, v] : entries) {
    const Text* text = k.as_text();
    if (text && text->view() == key) return &v;
  }
  return nullptr;
}

void Dict::set(Value key, Value value) {
  for (auto& [k, v] : entries) {
    if (equal(k, key)) {
      v = std::move(value);
      return;
    }
  }
  entries.emplace_back(std::move(key), std::move(value));
}

bool Value::to_int(int64_t& out) const noexcept {
  if (const int64_t* i = as_int()) {
    out = *i;
    return true;
  }
  if (const bool* b = as_bool()) {
    out = *b ? 1 : 0;
    return true;
  }
  return false;
}

bool Value::to_float(double& out) const noexcept {
  int64_t i = 0;
  if (to_int(i)) {
    out = static_cast<double>(i);
    return true;
  }
  if (const double* d = as_float()) {
    out = *d;
    return true;
  }
  return false;
}

bool Value::truthy() const noexcept {
  if (is_undefined() || is_none()) return false;
  double number = 0;
  if (to_float(number)) return number != 0;
  if (const Text* t = as_text()) return !t->empty();
  if (const List* l = as_list()) return l->generator || !l->items.empty();
  if (const Dict* d = as_dict()) return !d->entries.empty();
  return true;
}

const char* Value::type_name() const noexcept {
  if (is_undefined()) return "Undefined";
  if (is_none()) return "NoneType";
  if (as_bool()) return "bool";
  if (as_int()) return "int";
  if (as_float()) return "float";
  if (as_text()) return "str";
  if (const List* l = as_list()) return l->generator ? "generator" : l->tuple ? "tuple" : "list";
  if (as_dict()) return "dict";
  if (as_namespace()) return "Namespace";
  if (as_loop()) return "LoopContext";
  return "function";
}

Extent Value::extent() const noexcept {
  if (const List* l = as_list()) return l->extent;
  if (const Dict* d = as_dict()) return d->extent;
  if (const Text* t = as_text()) return {0, t->size() + 1};
  return {};
}

namespace {

void include(Extent& total, const Value& part) {
  const Extent extent = part.extent();
  total.depth = std::max(total.depth, extent.depth);
  total.weight =
      extent.weight > UINT64_MAX - total.weight ? UINT64_MAX : total.weight + extent.weight;
}

void enclose(Extent& total) {
  if (++total.depth > kMaxValueDepth) {
    fail(ErrorKind::Format, "values nested more than {} deep", kMaxValueDepth);
  }
}

}  // namespace

Value::Value(List v) {
  v.extent = {};
  for (const Value& item : v.items) include(v.extent, item);
  enclose(v.extent);
  v_ = std::make_shared<const List>(std::move(v));
}

Value::Value(Dict v) {
  v.extent = {};
  for (const auto& [key, item] : v.entries) {
    include(v.extent, key);
    include(v.extent, item);
  }
  enclose(v.extent);
  v_ = std::make_shared<const Dict>(std::move(v));
}

bool equal(const Value& a, const Value& b) {
  int64_t i = 0, j = 0;
  if (a.to_int(i) && b.to_int(j)) return i == j;
  double x = 0, y = 0;
  if (a.to_float(x) && b.to_float(y)) return x == y;
  if (a.as_text() && b.as_text()) return a.as_text()->view() == b.as_text()->view();
  if (a.is_undefined() && b.is_undefined()) return true;
  if (a.is_none() && b.is_none()) return true;
  if (const List* p = a.as_list(), *q = b.as_list(); p && q) {
    if (p->generator || q->generator) return p == q;
    return p->tuple == q->tuple &&
           std::equal(p->items.begin(), p->items.end(), q->items.begin(), q->items.end(), equal);
  }
  if (const Dict* p = a.as_dict(), *q = b.as_dict(); p && q) {
    if (p->entries.size() != q->entries.size()) return false;
    return std::all_of(p->entries.begin(), p->entries.end(), [&](const auto& entry) {
      const Value* other = q->find(entry.first);
      return other && equal(entry.second, *other);
    });
  }
  if (a.as_namespace() && b.as_namespace()) return a.as_namespace() == b.as_namespace();
  if (a.as_function() && b.as_function()) return a.as_function() == b.as_function();
  if (a.as_loop() && b.as_loop()) return a.as_loop() == b.as_loop();
  return false;
}

bool order(const Value& a, const Value& b, int& result) {
  const auto sign = [&](auto x, auto y) {
    result = x < y ? -1 : x == y ? 0 : 1;
    return true;
  };
  int64_t i = 0, j = 0;
  if (a.to_int(i) && b.to_int(j)) return sign(i, j);
  double x = 0, y = 0;
  if (a.to_float(x) && b.to_float(y)) return sign(x, y);
  // Code point order is byte order in UTF-8.
  if (a.as_text() && b.as_text()) return sign(a.as_text()->view(), b.as_text()->view());
  if (const List* p = a.as_list(), *q = b.as_list();
      p && q && p->tuple == q->tuple && !p->generator && !q->generator) {
    const size_t common = std::min(p->items.size(), q->items.size());
    for (size_t k = 0; k < common; ++k) {
      if (!equal(p->items[k], q->items[k])) return order(p->items[k], q->items[k], result);
    }
    return sign(p->items.size(), q->items.size());
  }
  return false;
}

// The shortest digits that read back, laid out as Python does: an exponent from 1e16 and below
// 1e-4, and always a sign of being a float.
std::string float_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[32];
  const auto done =
      std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
  const std::string_view shortest(buffer, static_cast<size_t>(done.ptr - buffer));
  const size_t e = shortest.find('e');
  int exponent = 0;
  const char* digits_of_exponent = buffer + e + 1 + (buffer[e + 1] == '+' ? 1 : 0);
  std::from_chars(digits_of_exponent, done.ptr, exponent);
  if (exponent < -4 || exponent >= 16) {
    return fmt::format("{}e{}{:02}", shortest.substr(0, e), exponent < 0 ? '-' : '+',
                       std::abs(exponent));
  }
  char fixed[64];
  const auto end = std::to_chars(fixed, fixed + sizeof fixed, value, std::chars_format::fixed);
  std::string out(fixed, end.ptr);
  if (out.find('.') == std::string::npos) out += ".0";
  return out;
}

namespace {

void append_repr(const Text& text, Text& out) {
  const std::string_view view = text.view();
  const bool has_single = view.find('\'') != std::string_view::npos;
  const bool has_double = view.find('"') != std::string_view::npos;
  const char quote = has_single && !has_double ? '"' : '\'';
  const std::string_view quotes(&quote, 1);
  out.append(quotes, Origin::Template);
  size_t at = 0;
  for (const Text::Run& run : text.runs()) {
    std::string part;
    while (at < run.end) {
      const CodePoint c = decode_utf8(view, at);
      const std::string_view bytes = view.substr(at, c.length);
      at += c.length;
      if (c.value == kInvalid) {
        part += bytes;
      } else if (c.value == static_cast<unsigned char>(quote) || c.value == '\\') {
        part += '\\';
        part += bytes;
      } else if (c.value == '\n') {
        part += "\\n";
      } else if (c.value == '\r') {
        part += "\\r";
      } else if (c.value == '\t') {
        part += "\\t";
      } else if (is_python_printable(c.value)) {
        part += bytes;
      } else if (c.value < 0x100) {
        part += fmt::format("\\x{:02x}", static_cast<uint32_t>(c.value));
      } else if (c.value < 0x10000) {
        part += fmt::format("\\u{:04x}", static_cast<uint32_t>(c.value));
      } else {
        part += fmt::format("\\U{:08x}", static_cast<uint32_t>(c.value));
      }
    }
    out.append(part, run.origin);
  }
  out.append(quotes, Origin::Template);
}

void append_value(const Value& value, bool repr, Text& out) {
  const auto put = [&](std::string_view s) { out.append(s, Origin::Template); };
  if (value.is_undefined()) return put(repr ? "Undefined" : "");
  if (value.is_none()) return put("None");
  if (const bool* b = value.as_bool()) return put(*b ? "True" : "False");
  if (const int64_t* i = value.as_int()) return put(fmt::format("{}", *i));
  if (const double* d = value.as_float()) return put(float_repr(*d));
  if (const Text* t = value.as_text()) {
    if (repr) return append_repr(*t, out);
    return out.append(*t);
  }
  if (const List* l = value.as_list(); l && !l->generator) {
    put(l->tuple ? "(" : "[");
    for (size_t i = 0; i < l->items.size(); ++i) {
      if (i != 0) put(", ");
      append_value(l->items[i], true, out);
    }
    if (l->tuple && l->items.size() == 1) put(",");
    return put(l->tuple ? ")" : "]");
  }
  if (const Dict* d = value.as_dict()) {
    put("{");
    bool first = true;
    for (const auto& [k, v] : d->entries) {
      if (!first) put(", ");
      first = false;
      append_value(k, true, out);
      put(": ");
      append_value(v, true, out);
    }
    return put("}");
  }
  put("<");
  put(value.type_name());
  put(">");
}

}  // namespace

Text to_text(const Value& value) {
  Text out;
  append_value(value, false, out);
  return out;
}

Text to_repr(const Value& value) {
  Text out;
  append_value(value, true, out);
  return out;
}

}  // namespace penstock::text::jinja
