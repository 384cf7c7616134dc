// Filters: Jinja's, as far as they make sense for text, and the reference library's tojson.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <limits>

#include "text/jinja_interpreter.h"
#include "text/unicode.h"

namespace penstock::text::jinja {
namespace {

// A dotted path with numbers for indices, as the `attribute` argument of several filters takes it.
Value path(Interpreter& in, Value item, const Value& attribute) {
  if (!attribute.as_text()) return in.item(item, attribute);
  std::string_view rest = attribute.as_text()->view();
  while (true) {
    const size_t dot = rest.find('.');
    const std::string_view part = rest.substr(0, dot);
    int64_t index = 0;
    const auto number = std::from_chars(part.data(), part.data() + part.size(), index);
    const bool is_index =
        !part.empty() && number.ec == std::errc() && number.ptr == part.data() + part.size();
    item = in.item(item, is_index ? Value(index) : Value::text(part));
    if (dot == std::string_view::npos) return item;
    rest.remove_prefix(dot + 1);
  }
}

// The arguments after the first `skip`, for map('filter', …) and select('test', …).
Args remaining(const Args& args, size_t skip) {
  Args out;
  out.positional.assign(args.positional.begin() + static_cast<std::ptrdiff_t>(skip),
                        args.positional.end());
  out.named = args.named;
  return out;
}

std::string_view name_argument(Interpreter& in, const Args& args, size_t i) {
  const Text* name = args.positional[i].as_text();
  if (!name) in.error("the name of a filter or test must be a string");
  return name->view();
}

Value f_default(Interpreter& in, const Value& input, const Args& args) {
  const Bound bound(in, "default", args, {"default_value", "boolean"});
  if (!input.is_undefined() && (!bound.flag(1, false) || input.truthy())) return input;
  return args.positional.empty() && !bound.has(0) ? Value::text("") : bound[0];
}

Value f_length(Interpreter& in, const Value& input, const Args& args) {
  const Bound bound(in, "length", args, {});
  if (const Text* t = input.as_text()) {
    in.charge_bytes(t->size() / 16);
    return Value(static_cast<int64_t>(char_count(t->view())));
  }
  if (const List* l = input.as_list(); l && !l->generator) {
    return Value(static_cast<int64_t>(l->items.size()));
  }
  if (const Dict* d = input.as_dict()) return Value(static_cast<int64_t>(d->entries.size()));
  if (input.is_undefined()) return Value(int64_t{0});
  in.error(fmt::format("object of type '{}' has no length", input.type_name()));
}

Value f_string(Interpreter& in, const Value& input, const Args& args) {
  const Bound bound(in, "string", args, {});
  return input.as_text() ? input : in.make(in.text_of(input));
}

Value f_trim(Interpreter& in, const Value& input, const Args& args) {
  const Bound bound(in, "trim", args, {"chars"});
  const Text text = in.text_of(input);
  const Text* chars = bound.text(0);
  in.charge_bytes(chars ? text.size() / 16 * chars->size() : 0);
  return in.make(strip(text, chars, true, true));
}

template <Text (*kMap)(const Text&)>
Value f_mapped(Interpreter& in, const Value& input, const Args& args) {
  const Bound bound(in, "case filter", args, {});
  return in.make(kMap(in.text_of(input)));
}

// A word starts after white space, a hyphen or an opening bracket: not as str.title() has it.
Value f_title(Interpreter& in, const Value& input, const Args& args) {
  const Bound bound(in, "title", args, {});
  const Text text = in.text_of(input);
  Text out;
  bool start = true;
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = decode_utf8(text.view(), at);
    const Text one = text.slice(at, at + c.length);
    out.append(start ? upper_case(one) : lower_case(one));
    start = is_python_space(c.value) || c.value == '-' || c.value == '(' || c.value == '{' ||
            c.value == '[' || c.value == '<';
    at += c.length;
  }
  return in.make(std::move(out));
}

Value f_replace(Interpreter& in, const Value& input, const Args& args) {
  const Bound bound(in, "replace", args, {"old", "new", "count"});
  return in.make(replace_all(in, in.text_of(input), in.text_of(bound.required(0)),
                             in.text_of(bound.required(1)), bound.integer(2, -1)));
}

Value f_join(Interpreter& in, const Value& input, const Args& args) {
  const Bound bound(in, "join", args, {"d", "attribute"});
  const Text separator = bound.has(0) ? in.text_of(bound[0]) : Text();
  const std::shared_ptr<const List> items = in.iterate(input);
  Text out;
  bool first = true;
  for (const Value& item : items->items) {
    const bool by_attribute = bound.has(1) && !bound[1].is_none();
    const Text part = in.text_of(by_attribute ? path(in, item, bound[1]) : item);
    in.charge_bytes(part.size() + separator.size());
    if (!first) out.append(separator);
    first = false;
    out.append(part);
  }
  return in.make(std::move(out));
}

Value f_list(Interpreter& in, const Value& input, const Args& args) {
  const Bound bound(in, "list", args, {});
  const std::shared_ptr<const List> items = in.iterate(input);
  if (!items->tuple && !items->generator) return Value(items);
  List list;
  list.items = items->items;
  return in.make(std::move(list));
}

Value f_items(Interpreter& in, const Value& input, const Args& args) {
  const Bound bound(in, "items", args, {});
  List out;
  out.generator = true;
  if (input.is_undefined()) return in.make(std::move(out));
  if (!input.as_dict()) {
    in.error(fmt::format("items of a '{}': only a mapping has them", input.type_name()));
  }
  out.items = call_method_of(in, input, "items", args).as_list()->items;
  return in.make(std::move(out));
}

Value f_first(Interpreter& in, const Value& input, const Args& args) {
  const Bound bound(in, "first", args, {});
  const std::shared_ptr<const List> items = in.iterate(input);
  return items->items.empty() ? Value() : items->items.front();
}

Value f_last(Interpreter& in, const Value& input, const Args& args) {
  const Bound bound(in, "last", args, {});
  if (input.as_list() && input.as_list()->generator) in.error("last of a generator");
  const std::shared_ptr<const List> items = in.iterate(input);
  return items->items.empty() ? Value() : items->items.back();
}

Value f_reverse(Interpreter& in, const Value& input, const Args& args) {
  const Bound bound(in, "reverse", args, {});
  const std::shared_ptr<const List> items = in.iterate(input);
  if (const Text* text = input.as_text()) {
    Text out;
    in.charge_bytes(text->size());
    for (auto item = items->items.rbegin(); item != items->items.rend(); ++item) {
      out.append(*item->as_text());
    }
    return in.make(std::move(out));
  }
  List list;
  list.generator = true;
  list.items.assign(items->items.rbegin(), items->items.rend());
  return in.make(std::move(list));
}

Value f_int(Interpreter& in, const Value& input, const Args& args) {
  const Bound bound(in, "int", args, {"default", "base"});
  const Value fallback = bound.has(0) ? bound[0] : Value(int64_t{0});
  const int64_t base = bound.integer(1, 10);
  int64_t value = 0;
  if (input.to_int(value)) return Value(value);
  double number = 0;
  if (const Text* text = input.as_text()) {
    if (base < 2 || base > 36) in.unsupported("int with this base");
    const Text stripped = strip(*text, nullptr, true, true);
    std::string digits(stripped.view());
    const bool negative = !digits.empty() && digits[0] == '-';
    if (!digits.empty() && (digits[0] == '-' || digits[0] == '+')) digits.erase(0, 1);
    const char letter =
        digits.size() > 2 && digits[0] == '0' ? static_cast<char>(digits[1] | 0x20) : '\0';
    if ((base == 16 && letter == 'x') || (base == 8 && letter == 'o') ||
        (base == 2 && letter == 'b')) {
      digits.erase(0, 2);
    }
    const char* end = digits.data() + digits.size();
    const auto done = std::from_chars(digits.data(), end, value, static_cast<int>(base));
    if (done.ec == std::errc() && done.ptr == end && !digits.empty() && digits[0] != '-') {
      return Value(negative ? -value : value);
    }
    // int(float(text)), the second try of the filter.
    const auto as_float = std::from_chars(digits.data(), end, number);
    if (as_float.ec != std::errc() || as_float.ptr != end || digits.empty() || digits[0] == '-') {
      return fallback;
    }
    if (negative) number = -number;
  } else if (!input.to_float(number)) {
    return fallback;
  }
  if (!(std::fabs(number) < 9.2e18)) return fallback;
  return Value(static_cast<int64_t>(number));
}

Value f_float(Interpreter& in, const Value& input, const Args& args) {
  const Bound bound(in, "float", args, {"default"});
  const Value fallback = bound.has(0) ? bound[0] : Value(0.0);
  double value = 0;
  if (input.to_float(value)) return Value(value);
  const Text* text = input.as_text();
  if (!text) return fallback;
  const Text stripped = strip(*text, nullptr, true, true);
  std::string_view digits = stripped.view();
  if (!digits.empty() && digits[0] == '+') digits.remove_prefix(1);
  const auto done = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (done.ec != std::errc() || done.ptr != digits.data() + digits.size()) return fallback;
  return Value(value);
}

Value f_abs(Interpreter& in, const Value& input, const Args& args) {
  const Bound bound(in, "abs", args, {});
  double value = 0;
  if (!input.to_float(value)) in.error(fmt::format("abs of a '{}'", input.type_name()));
  return value < 0 ? arithmetic(in, "-", Value(int64_t{0}), input) : input;
}

Value f_round(Interpreter& in, const Value& input, const Args& args) {
  const Bound bound(in, "round", args, {"precision", "method"});
  const int64_t precision = bound.integer(0, 0);
  const Text* method = bound.text(1);
  const std::string_view how = method ? method->view() : "common";
  double value = 0;
  if (!input.to_float(value)) in.error(fmt::format("round of a '{}'", input.type_name()));
  if (precision < 0 || precision > 30) in.unsupported("round with this precision");
  if (how == "common") {
    if (int64_t i = 0; input.to_int(i)) return Value(i);
    // The C library rounds the exact binary value, as Python does.
    char buffer[400];
    std::snprintf(buffer, sizeof buffer, "%.*f", static_cast<int>(precision), value);
    return Value(std::strtod(buffer, nullptr));
  }
  const double scale = std::pow(10.0, static_cast<double>(precision));
  if (how == "ceil") return Value(std::ceil(value * scale) / scale);
  if (how == "floor") return Value(std::floor(value * scale) / scale);
  in.error("round: the method is one of common, ceil, floor");
}

bool json_argument(Interpreter& in, const Value& value, JsonStyle& style) {
  int64_t width = 0;
  if (value.to_int(width)) {
    if (width > 64) in.error("tojson: indent of more than 64");
    style.indent.append(std::string(static_cast<size_t>(std::max<int64_t>(width, 0)), ' '),
                        Origin::Template);
    return true;
  }
  if (const Text* text = value.as_text()) {
    style.indent = *text;
    return true;
  }
  return false;
}

Value f_tojson(Interpreter& in, const Value& input, const Args& args) {
  const Bound bound(in, "tojson", args, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = bound.flag(0, false);
  style.sort_keys = bound.flag(3, false);
  style.indented = bound.has(1) && json_argument(in, bound[1], style);
  if (style.indented) style.item_separator = Text(",", Origin::Template);
  if (bound.has(2) && !bound[2].is_none()) {
    const List* pair = bound[2].as_list();
    if (!pair || pair->items.size() != 2 || !pair->items[0].as_text() ||
        !pair->items[1].as_text()) {
      in.error("tojson: separators must be two strings");
    }
    style.item_separator = *pair->items[0].as_text();
    style.key_separator = *pair->items[1].as_text();
  }
  // Escapes, indents and separators can make the text longer than what it is made from.
  const uint64_t weight = std::min(input.extent().weight, in.limits().bytes);
  const uint64_t per_value = style.item_separator.size() + style.key_separator.size() + 8 +
                             (style.indented ? style.indent.size() * kMaxValueDepth / 8 : 0);
  in.charge_bytes(per_value > 16 ? weight * (per_value / 8) : weight * 2);
  Text out;
  std::string bad_type;
  if (!to_json(input, style, out, bad_type)) {
    in.require_defined(input);
    in.error(fmt::format("object of type {} is not JSON serializable", bad_type));
  }
  return in.make(std::move(out));
}

Value f_safe(Interpreter& in, const Value& input, const Args& args) {
  // Nothing is escaped automatically in chat templates, so marking as safe changes nothing.
  return f_string(in, input, args);
}

Value f_escape(Interpreter& in, const Value& input, const Args& args) {
  const Bound bound(in, "escape", args, {});
  const Text text = in.text_of(input);
  Text out;
  size_t plain = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    std::string_view entity;
    switch (text.view()[at]) {
      case '&':
        entity = "&amp;";
        break;
      case '<':
        entity = "&lt;";
        break;
      case '>':
        entity = "&gt;";
        break;
      case '"':
        entity = "&#34;";
        break;
      case '\'':
        entity = "&#39;";
        break;
      default:
        continue;
    }
    out.append(text, plain, at);
    out.append(entity, text.origin_at(at));
    plain = at + 1;
  }
  out.append(text, plain, text.size());
  return in.make(std::move(out));
}

Value f_indent(Interpreter& in, const Value& input, const Args& args) {
  const Bound bound(in, "indent", args, {"width", "first", "blank"});
  Text indent;
  if (const Text* given = bound.has(0) ? bound[0].as_text() : nullptr) {
    indent = *given;
  } else {
    const int64_t width = std::clamp<int64_t>(bound.integer(0, 4), 0, 4096);
    indent.append(std::string(static_cast<size_t>(width), ' '), Origin::Template);
  }
  in.require_defined(input);
  if (!input.as_text()) in.error(fmt::format("indent of a '{}'", input.type_name()));
  Text text = *input.as_text();
  text.append("\n", Origin::Template);  // keeps a last line end; the filter itself does this
  in.charge_bytes(text.size() * 64);
  const std::vector<Text> lines = split_lines(text);
  const bool blank = bound.flag(2, false);
  Text out;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i != 0) out.append("\n", Origin::Template);
    const bool indented = i == 0 ? bound.flag(1, false) : blank || !lines[i].empty();
    in.charge_bytes(indented ? indent.size() + lines[i].size() : lines[i].size());
    if (indented) out.append(indent);
    out.append(lines[i]);
  }
  return in.make(std::move(out));
}

Value f_attr(Interpreter& in, const Value& input, const Args& args) {
  const Bound bound(in, "attr", args, {"name"});
  bound.required(0);
  const Text* name = bound.text(0);
  if (!name) in.error("attr needs a name");
  // Attributes only: a dictionary's keys are not.
  if (input.as_dict() && !has_method(input, name->view())) return Value();
  return in.attribute(input, name->view());
}

Value f_map(Interpreter& in, const Value& input, const Args& args) {
  const std::shared_ptr<const List> items = in.iterate(input);
  List out;
  out.generator = true;
  if (args.positional.empty()) {
    const Bound bound(in, "map", args, {"attribute", "default"});
    bound.required(0);
    for (const Value& item : items->items) {
      in.charge_steps(1);
      Value value = path(in, item, bound[0]);
      out.items.push_back(value.is_undefined() && bound.has(1) ? bound[1] : std::move(value));
    }
  } else {
    const std::string_view name = name_argument(in, args, 0);
    const Args rest = remaining(args, 1);
    for (const Value& item : items->items) out.items.push_back(in.filter(name, item, rest));
  }
  return in.make(std::move(out));
}

template <bool kKeep, bool kByAttribute>
Value f_select(Interpreter& in, const Value& input, const Args& args) {
  const size_t skip = kByAttribute ? 1 : 0;
  if (args.positional.size() < skip) in.error("selectattr and rejectattr need an attribute");
  const std::shared_ptr<const List> items = in.iterate(input);
  const bool by_test = args.positional.size() > skip;
  const std::string_view name = by_test ? name_argument(in, args, skip) : std::string_view();
  const Args rest = by_test ? remaining(args, skip + 1) : Args();
  List out;
  out.generator = true;
  for (const Value& item : items->items) {
    in.charge_steps(1);
    const Value subject = kByAttribute ? path(in, item, args.positional[0]) : item;
    const bool passes = by_test ? in.test(name, subject, rest) : subject.truthy();
    if (passes == kKeep) out.items.push_back(item);
  }
  return in.make(std::move(out));
}

Value folded(Interpreter& in, const Value& value, bool case_sensitive) {
  const Text* text = value.as_text();
  return text && !case_sensitive ? in.make(lower_case(*text)) : value;
}

// Stable. Comparing fails for values without an order, by an exception through the sort.
template <typename Item, typename Key>
std::vector<Item> sorted(Interpreter& in, std::vector<Item> items, bool reverse, Key key) {
  std::vector<std::pair<Value, size_t>> keys;
  for (size_t i = 0; i < items.size(); ++i) keys.emplace_back(key(items[i]), i);
  std::stable_sort(keys.begin(), keys.end(), [&](const auto& a, const auto& b) {
    const int result = in.compare(a.first, b.first);
    return reverse ? result > 0 : result < 0;
  });
  std::vector<Item> out;
  for (const auto& k : keys) out.push_back(std::move(items[k.second]));
  return out;
}

Value f_sort(Interpreter& in, const Value& input, const Args& args) {
  const Bound bound(in, "sort", args, {"reverse", "case_sensitive", "attribute"});
  const std::shared_ptr<const List> items = in.iterate(input);
  in.charge_bytes(items->items.size() * sizeof(Value) * 3);
  List out;
  // The key is a list, of one entry or of one for each attribute named: equal entries need no
  // order.
  std::vector<Value> attributes;
  if (const Text* names = bound.has(2) ? bound[2].as_text() : nullptr) {
    std::string_view rest = names->view();
    for (size_t comma = 0; comma != std::string_view::npos;) {
      comma = rest.find(',');
      attributes.push_back(Value::text(rest.substr(0, comma)));
      if (comma != std::string_view::npos) rest.remove_prefix(comma + 1);
    }
  } else if (bound.has(2) && !bound[2].is_none()) {
    attributes.push_back(bound[2]);
  }
  const bool case_sensitive = bound.flag(1, false);
  out.items = sorted(in, items->items, bound.flag(0, false), [&](const Value& item) {
    List key;
    if (attributes.empty()) key.items.push_back(folded(in, item, case_sensitive));
    for (const Value& attribute : attributes) {
      key.items.push_back(folded(in, path(in, item, attribute), case_sensitive));
    }
    return in.make(std::move(key));
  });
  return in.make(std::move(out));
}

Value f_dictsort(Interpreter& in, const Value& input, const Args& args) {
  const Bound bound(in, "dictsort", args, {"case_sensitive", "by", "reverse"});
  const Text* by = bound.text(1);
  const size_t part = by && by->view() == "value" ? 1 : 0;
  in.require_defined(input);
  const Value pairs = f_items(in, input, {});
  List out;
  out.items = sorted(in, pairs.as_list()->items, bound.flag(2, false), [&](const Value& pair) {
    return folded(in, pair.as_list()->items[part], bound.flag(0, false));
  });
  return in.make(std::move(out));
}

Value f_unique(Interpreter& in, const Value& input, const Args& args) {
  const Bound bound(in, "unique", args, {"case_sensitive", "attribute"});
  const std::shared_ptr<const List> items = in.iterate(input);
  std::vector<Value> seen;
  List out;
  out.generator = true;
  for (const Value& item : items->items) {
    const bool by_attribute = bound.has(1) && !bound[1].is_none();
    Value key = folded(in, by_attribute ? path(in, item, bound[1]) : item, bound.flag(0, false));
    in.charge_steps(seen.size());
    in.charge_bytes(key.extent().weight);
    if (std::any_of(seen.begin(), seen.end(), [&](const Value& s) { return equal(s, key); }))
      continue;
    seen.push_back(std::move(key));
    out.items.push_back(item);
  }
  return in.make(std::move(out));
}

template <bool kMax>
Value f_extreme(Interpreter& in, const Value& input, const Args& args) {
  const Bound bound(in, "min/max", args, {"case_sensitive", "attribute"});
  const std::shared_ptr<const List> items = in.iterate(input);
  Value best, best_key;
  for (const Value& item : items->items) {
    const bool by_attribute = bound.has(1) && !bound[1].is_none();
    Value key = folded(in, by_attribute ? path(in, item, bound[1]) : item, bound.flag(0, false));
    const int order = best_key.is_undefined() ? 0 : in.compare(key, best_key);
    if (best_key.is_undefined() || (kMax ? order > 0 : order < 0)) {
      best = item;
      best_key = std::move(key);
    }
  }
  return best;
}

Value f_sum(Interpreter& in, const Value& input, const Args& args) {
  const Bound bound(in, "sum", args, {"attribute", "start"});
  const std::shared_ptr<const List> items = in.iterate(input);
  Value total = bound.has(1) ? bound[1] : Value(int64_t{0});
  for (const Value& item : items->items) {
    in.charge_steps(1);
    const bool by_attribute = bound.has(0) && !bound[0].is_none();
    total = arithmetic(in, "+", total, by_attribute ? path(in, item, bound[0]) : item);
  }
  return total;
}

Value f_format(Interpreter& in, const Value& input, const Args& args) {
  const Bound bound(in, "format", {{}, args.named}, {});
  List values;
  values.tuple = true;
  values.items = args.positional;
  const Value format = f_string(in, input, {});
  return arithmetic(in, "%", format, in.make(std::move(values)));
}

Value f_wordcount(Interpreter& in, const Value& input, const Args& args) {
  const Bound bound(in, "wordcount", args, {});
  const Text text = in.text_of(input);
  int64_t words = 0;
  bool inside = false;
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = decode_utf8(text.view(), at);
    const bool word =
        c.value == '_' || (c.value != kInvalid && (char_bits(c.value) & (kLetter | kNumber)) != 0);
    words += word && !inside ? 1 : 0;
    inside = word;
    at += c.length;
  }
  return Value(words);
}

struct NamedFilter {
  std::string_view name;
  FilterFunction function;
};

constexpr std::array kFilters = {
    NamedFilter{"abs", f_abs},
    NamedFilter{"attr", f_attr},
    NamedFilter{"capitalize", f_mapped<capitalized>},
    NamedFilter{"count", f_length},
    NamedFilter{"d", f_default},
    NamedFilter{"default", f_default},
    NamedFilter{"dictsort", f_dictsort},
    NamedFilter{"e", f_escape},
    NamedFilter{"escape", f_escape},
    NamedFilter{"first", f_first},
    NamedFilter{"float", f_float},
    NamedFilter{"format", f_format},
    NamedFilter{"indent", f_indent},
    NamedFilter{"int", f_int},
    NamedFilter{"items", f_items},
    NamedFilter{"join", f_join},
    NamedFilter{"last", f_last},
    NamedFilter{"length", f_length},
    NamedFilter{"list", f_list},
    NamedFilter{"lower", f_mapped<lower_case>},
    NamedFilter{"map", f_map},
    NamedFilter{"max", f_extreme<true>},
    NamedFilter{"min", f_extreme<false>},
    NamedFilter{"reject", f_select<false, false>},
    NamedFilter{"rejectattr", f_select<false, true>},
    NamedFilter{"replace", f_replace},
    NamedFilter{"reverse", f_reverse},
    NamedFilter{"round", f_round},
    NamedFilter{"safe", f_safe},
    NamedFilter{"select", f_select<true, false>},
    NamedFilter{"selectattr", f_select<true, true>},
    NamedFilter{"sort", f_sort},
    NamedFilter{"string", f_string},
    NamedFilter{"sum", f_sum},
    NamedFilter{"title", f_title},
    NamedFilter{"tojson", f_tojson},
    NamedFilter{"trim", f_trim},
    NamedFilter{"unique", f_unique},
    NamedFilter{"upper", f_mapped<upper_case>},
    NamedFilter{"wordcount", f_wordcount},
};

}  // namespace

FilterFunction find_filter(std::string_view name) {
  for (const NamedFilter& filter : kFilters) {
    if (filter.name == name) return filter.function;
  }
  return nullptr;
}

}  // namespace penstock::text::jinja
