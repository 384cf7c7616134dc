// JSON in and out of the template engine's values.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json_nesting.h"
#include "text/jinja_value.h"
#include "text/unicode.h"

namespace penstock::text::jinja {
namespace {

using Json = nlohmann::ordered_json;

Value from_json(const Json& json, Origin origin, int depth, std::string_view what) {
  if (depth > kMaxValueDepth) {
    fail(ErrorKind::Usage, "{}: JSON nested more than {} deep", what, kMaxValueDepth);
  }
  switch (json.type()) {
    case Json::value_t::boolean:
      return Value(json.get<bool>());
    case Json::value_t::number_integer:
      return Value(json.get<int64_t>());
    case Json::value_t::number_unsigned: {
      const auto u = json.get<uint64_t>();
      if (u <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        return Value(static_cast<int64_t>(u));
      }
      return Value(static_cast<double>(u));
    }
    case Json::value_t::number_float:
      return Value(json.get<double>());
    case Json::value_t::string:
      return Value::text(json.get_ref<const std::string&>(), origin);
    case Json::value_t::array: {
      List list;
      list.items.reserve(json.size());
      for (const Json& item : json) list.items.push_back(from_json(item, origin, depth + 1, what));
      return Value(std::move(list));
    }
    case Json::value_t::object: {
      Dict dict;
      dict.entries.reserve(json.size());
      for (const auto& item : json.items()) {  // the parser has already dropped duplicate keys
        dict.entries.emplace_back(Value::text(item.key(), origin),
                                  from_json(item.value(), origin, depth + 1, what));
      }
      return Value(std::move(dict));
    }
    default:
      return None{};
  }
}

class JsonWriter {
 public:
  JsonWriter(const JsonStyle& style, Text& out, std::string& bad_type)
      : style_(style), out_(out), bad_type_(bad_type) {}

  bool write(const Value& value, int depth) {
    if (value.is_none()) return put("null");
    if (const bool* b = value.as_bool()) return put(*b ? "true" : "false");
    if (const int64_t* i = value.as_int()) return put(fmt::format("{}", *i));
    if (const double* d = value.as_float()) return number(*d);
    if (const Text* t = value.as_text()) return string(*t);
    if (const List* l = value.as_list(); l && !l->generator) return array(*l, depth);
    if (const Dict* d = value.as_dict()) return object(*d, depth);
    bad_type_ = value.type_name();
    return false;
  }

 private:
  bool put(std::string_view s) {
    out_.append(s, Origin::Template);
    return true;
  }

  bool number(double d) {
    if (std::isnan(d)) return put("NaN");
    if (std::isinf(d)) return put(d < 0 ? "-Infinity" : "Infinity");
    return put(float_repr(d));
  }

  void line(int depth) {
    if (!style_.indented) return;
    put("\n");
    for (int i = 0; i < depth; ++i) out_.append(style_.indent);
  }

  bool string(const Text& text) {
    put("\"");
    size_t at = 0;
    const std::string_view view = text.view();
    std::string part;
    for (const Text::Run& run : text.runs()) {
      part.clear();
      while (at < run.end) {
        const CodePoint c = decode_utf8(view, at);
        escape(c.value, view.substr(at, c.length), part);
        at += c.length;
      }
      out_.append(part, run.origin);
    }
    return put("\"");
  }

  void escape(char32_t c, std::string_view bytes, std::string& part) const {
    const auto unicode = [&](uint32_t unit) { part += fmt::format("\\u{:04x}", unit); };
    switch (c) {
      case '"':
        part += "\\\"";
        return;
      case '\\':
        part += "\\\\";
        return;
      case '\n':
        part += "\\n";
        return;
      case '\r':
        part += "\\r";
        return;
      case '\t':
        part += "\\t";
        return;
      case '\f':
        part += "\\f";
        return;
      case '\b':
        part += "\\b";
        return;
      default:
        break;
    }
    if (c < 0x20) return unicode(c);
    if (!style_.ensure_ascii || c < 0x80) {
      part += bytes;
    } else if (c == kInvalid) {
      unicode(0xFFFD);
    } else if (c < 0x10000) {
      unicode(c);
    } else {
      unicode(0xD800 + ((c - 0x10000) >> 10));
      unicode(0xDC00 + ((c - 0x10000) & 0x3FF));
    }
  }

  bool array(const List& list, int depth) {
    if (list.items.empty()) return put("[]");
    put("[");
    for (size_t i = 0; i < list.items.size(); ++i) {
      if (i != 0) out_.append(style_.item_separator);
      line(depth + 1);
      if (!write(list.items[i], depth + 1)) return false;
    }
    line(depth);
    return put("]");
  }

  bool key(const Value& k) {
    if (k.as_text()) return string(*k.as_text());
    if (k.as_list() || k.as_dict()) {
      bad_type_ = k.type_name();
      return false;
    }
    put("\"");
    return write(k, 0) && put("\"");
  }

  bool object(const Dict& dict, int depth) {
    if (dict.entries.empty()) return put("{}");
    std::vector<const std::pair<Value, Value>*> entries;
    for (const auto& entry : dict.entries) entries.push_back(&entry);
    if (style_.sort_keys) {
      std::stable_sort(entries.begin(), entries.end(), [](const auto* a, const auto* b) {
        int result = 0;
        return order(a->first, b->first, result) && result < 0;
      });
    }
    put("{");
    bool first = true;
    for (const auto* entry : entries) {
      if (!first) out_.append(style_.item_separator);
      first = false;
      line(depth + 1);
      if (!key(entry->first)) return false;
      out_.append(style_.key_separator);
      if (!write(entry->second, depth + 1)) return false;
    }
    line(depth);
    return put("}");
  }

  const JsonStyle& style_;
  Text& out_;
  std::string& bad_type_;
};

}  // namespace

Value parse_json(std::string_view json, Origin origin, std::string_view what) {
  Json parsed;
  // Bounded before parsing too, so that the parser's own structures stay small.
  if (json_nesting(json) > static_cast<size_t>(kMaxValueDepth) + 1) {
    fail(ErrorKind::Usage, "{}: JSON nested more than {} deep", what, kMaxValueDepth);
  }
  try {
    parsed = Json::parse(json);
  } catch (const nlohmann::json::exception& e) {
    fail(ErrorKind::Usage, "{}: {}", what, e.what());
  }
  return from_json(parsed, origin, 0, what);
}

bool to_json(const Value& value, const JsonStyle& style, Text& out, std::string& bad_type) {
  return JsonWriter(style, out, bad_type).write(value, 0);
}

}  // namespace penstock::text::jinja
