// Methods of Python's str, list and dict.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "text/jinja_interpreter.h"
#include "text/unicode.h"

namespace penstock::text::jinja {
namespace {

using StringMethod = Value (*)(Interpreter&, const Text&, const Args&);

int64_t char_index(std::string_view text, size_t byte) {
  return static_cast<int64_t>(char_count(text.substr(0, byte)));
}

Value list_of(Interpreter& in, std::vector<Text> parts) {
  List list;
  for (Text& part : parts) list.items.push_back(in.make(std::move(part)));
  return in.make(std::move(list));
}

// Without a separator str.split() cuts at runs of white space and drops empty ends.
std::vector<Text> split_space(const Text& text, int64_t most) {
  std::vector<Text> parts;
  const std::string_view view = text.view();
  size_t at = 0;
  const auto skip = [&](bool spaces) {
    while (at < view.size()) {
      const CodePoint c = decode_utf8(view, at);
      if (is_python_space(c.value) != spaces) break;
      at += c.length;
    }
  };
  while (true) {
    skip(true);
    if (at >= view.size()) return parts;
    if (most >= 0 && static_cast<int64_t>(parts.size()) == most) {
      parts.push_back(text.slice(at, view.size()));
      return parts;
    }
    const size_t start = at;
    skip(false);
    parts.push_back(text.slice(start, at));
  }
}

std::vector<Text> split_at(const Text& text, std::string_view separator, int64_t most) {
  std::vector<Text> parts;
  size_t start = 0;
  while (most < 0 || static_cast<int64_t>(parts.size()) < most) {
    const size_t found = text.view().find(separator, start);
    if (found == std::string_view::npos) break;
    parts.push_back(text.slice(start, found));
    start = found + separator.size();
  }
  parts.push_back(text.slice(start, text.size()));
  return parts;
}

std::vector<Text> right_split_at(const Text& text, std::string_view separator, int64_t most) {
  std::vector<Text> parts;
  size_t end = text.size();
  while ((most < 0 || static_cast<int64_t>(parts.size()) < most) && end >= separator.size()) {
    const size_t found = text.view().rfind(separator, end - separator.size());
    if (found == std::string_view::npos) break;
    parts.push_back(text.slice(found + separator.size(), end));
    end = found;
  }
  parts.push_back(text.slice(0, end));
  std::reverse(parts.begin(), parts.end());
  return parts;
}

Value split(Interpreter& in, const Text& self, const Args& args) {
  const Bound bound(in, "split()", args, {"sep", "maxsplit"});
  const int64_t most = bound.integer(1, -1);
  in.charge_bytes(self.size() + 64);
  const Text* separator = bound.text(0);
  if (!separator) return list_of(in, split_space(self, most));
  if (separator->empty()) in.error("split() with an empty separator");
  in.charge_bytes(self.size() / separator->size() * 64);
  return list_of(in, split_at(self, separator->view(), most));
}

Value rsplit(Interpreter& in, const Text& self, const Args& args) {
  const Bound bound(in, "rsplit()", args, {"sep", "maxsplit"});
  const int64_t most = bound.integer(1, -1);
  const Text* separator = bound.text(0);
  if (!separator) {
    if (most >= 0) in.unsupported("rsplit() by white space with a maximum");
    return split(in, self, args);
  }
  if (separator->empty()) in.error("rsplit() with an empty separator");
  in.charge_bytes(self.size() / separator->size() * 64 + self.size());
  return list_of(in, right_split_at(self, separator->view(), most));
}

Value splitlines(Interpreter& in, const Text& self, const Args& args) {
  const Bound bound(in, "splitlines()", args, {"keepends"});
  if (bound.flag(0, false)) in.unsupported("splitlines(keepends=True)");
  in.charge_bytes(self.size() * 64);
  return list_of(in, split_lines(self));
}

template <bool kLeft, bool kRight>
Value strip_method(Interpreter& in, const Text& self, const Args& args) {
  const Bound bound(in, "strip()", args, {"chars"});
  const Text* chars = bound.text(0);
  in.charge_bytes(self.size() + (chars ? self.size() / 16 * chars->size() : 0));
  return in.make(strip(self, chars, kLeft, kRight));
}

template <bool kStart>
Value affix(Interpreter& in, const Text& self, const Args& args) {
  const Bound bound(in, kStart ? "startswith()" : "endswith()", args, {"prefix"});
  const Value& wanted = bound.required(0);
  const auto matches = [&](const Value& value) {
    const Text* part = value.as_text();
    if (!part) in.error("startswith() and endswith() need strings");
    return kStart ? self.view().starts_with(part->view()) : self.view().ends_with(part->view());
  };
  if (const List* any = wanted.as_list(); any && any->tuple) {
    in.charge_steps(any->items.size());
    return Value(std::any_of(any->items.begin(), any->items.end(), matches));
  }
  return Value(matches(wanted));
}

template <bool kStart>
Value remove_affix(Interpreter& in, const Text& self, const Args& args) {
  const Bound bound(in, kStart ? "removeprefix()" : "removesuffix()", args, {"affix"});
  bound.required(0);
  const Text* part = bound.text(0);
  if (!part) in.error("removeprefix() and removesuffix() need a string");
  const size_t n = part->size();
  if (kStart && self.view().starts_with(part->view())) return in.make(self.slice(n, self.size()));
  if (!kStart && self.view().ends_with(part->view())) {
    return in.make(self.slice(0, self.size() - n));
  }
  return in.make(self);
}

Value replace(Interpreter& in, const Text& self, const Args& args) {
  const Bound bound(in, "replace()", args, {"old", "new", "count"});
  bound.required(0);
  bound.required(1);
  const Text *from = bound.text(0), *to = bound.text(1);
  if (!from || !to) in.error("replace() needs strings");
  return in.make(replace_all(in, self, *from, *to, bound.integer(2, -1)));
}

Value join(Interpreter& in, const Text& self, const Args& args) {
  const Bound bound(in, "join()", args, {"iterable"});
  const std::shared_ptr<const List> items = in.iterate(bound.required(0));
  Text out;
  bool first = true;
  for (const Value& item : items->items) {
    const Text* part = item.as_text();
    if (!part) in.error(fmt::format("join() of a '{}'", item.type_name()));
    in.charge_bytes(part->size() + self.size());
    if (!first) out.append(self);
    first = false;
    out.append(*part);
  }
  return in.make(std::move(out));
}

// find, rfind, index, rindex over a range of characters.
template <bool kLast, bool kMust>
Value find(Interpreter& in, const Text& self, const Args& args) {
  const Bound bound(in, "find()", args, {"sub", "start", "end"});
  bound.required(0);
  const Text* part = bound.text(0);
  if (!part) in.error("find() needs a string");
  in.charge_bytes(self.size() + 64);
  std::string_view view = self.view();
  size_t base = 0;
  if (bound.has(1) || bound.has(2)) {
    const std::vector<size_t> offsets = char_offsets(view);
    const auto n = static_cast<int64_t>(offsets.size()) - 1;
    const auto place = [&](int64_t i) {
      if (i < 0) i = i < -n ? 0 : i + n;
      return std::min(i, n);
    };
    if (bound.integer(1, 0) > n) return Value(int64_t{-1});
    const auto begin = static_cast<size_t>(place(bound.integer(1, 0)));
    const auto end = static_cast<size_t>(place(bound.integer(2, n)));
    base = offsets[begin];
    view = end < begin ? std::string_view() : view.substr(base, offsets[end] - base);
    if (end < begin) return Value(int64_t{-1});
  }
  const size_t found = kLast ? view.rfind(part->view()) : view.find(part->view());
  if (found == std::string_view::npos) {
    if (kMust) in.error("substring not found");
    return Value(int64_t{-1});
  }
  return Value(char_index(self.view(), base + found));
}

Value count(Interpreter& in, const Text& self, const Args& args) {
  const Bound bound(in, "count()", args, {"sub"});
  bound.required(0);
  const Text* part = bound.text(0);
  if (!part) in.error("count() needs a string");
  in.charge_bytes(self.size());
  if (part->empty()) return Value(static_cast<int64_t>(char_count(self.view())) + 1);
  int64_t n = 0;
  for (size_t at = 0; (at = self.view().find(part->view(), at)) != std::string_view::npos;
       at += part->size()) {
    ++n;
  }
  return Value(n);
}

template <bool kLast>
Value partition(Interpreter& in, const Text& self, const Args& args) {
  const Bound bound(in, "partition()", args, {"sep"});
  bound.required(0);
  const Text* separator = bound.text(0);
  if (!separator || separator->empty()) in.error("partition() needs a separator");
  const std::string_view view = self.view();
  const size_t found = kLast ? view.rfind(separator->view()) : view.find(separator->view());
  List parts;
  parts.tuple = true;
  if (found == std::string_view::npos) {
    parts.items.resize(3, in.make(Text()));
    parts.items[kLast ? 2 : 0] = in.make(self);
  } else {
    const size_t after = found + separator->size();
    parts.items = {in.make(self.slice(0, found)), in.make(self.slice(found, after)),
                   in.make(self.slice(after, self.size()))};
  }
  return in.make(std::move(parts));
}

// is…(): not empty, and every character passes.
template <uint8_t kBits>
Value all_chars(Interpreter& in, const Text& self, const Args& args) {
  const Bound bound(in, "is...()", args, {});
  in.charge_bytes(self.size());
  const std::string_view view = self.view();
  for (size_t at = 0; at < view.size();) {
    const CodePoint c = decode_utf8(view, at);
    const bool space = kBits == kSpace && is_python_space(c.value);
    if (!space && (c.value == kInvalid || (char_bits(c.value) & kBits) == 0)) return Value(false);
    at += c.length;
  }
  return Value(!view.empty());
}

// isupper(), islower(): at least one cased character, and none of the other case.
template <uint8_t kWanted, uint8_t kOther>
Value cased(Interpreter& in, const Text& self, const Args& args) {
  const Bound bound(in, "is...()", args, {});
  in.charge_bytes(self.size());
  const std::string_view view = self.view();
  bool any = false;
  for (size_t at = 0; at < view.size();) {
    const CodePoint c = decode_utf8(view, at);
    at += c.length;
    if (c.value == kInvalid) continue;
    if ((char_bits(c.value) & kOther) != 0) return Value(false);
    any = any || (char_bits(c.value) & kWanted) != 0;
  }
  return Value(any);
}

template <Text (*kMap)(const Text&)>
Value mapped(Interpreter& in, const Text& self, const Args& args) {
  const Bound bound(in, "case method", args, {});
  return in.make(kMap(self));
}

// str.format(): {} and {0} and {name}, doubled braces; no format specifications.
Value format(Interpreter& in, const Text& self, const Args& args) {
  Text out;
  const std::string_view view = self.view();
  size_t next = 0, plain = 0, at = 0;
  while (at < view.size()) {
    if (view[at] != '{' && view[at] != '}') {
      ++at;
      continue;
    }
    out.append(self, plain, at);
    if (at + 1 < view.size() && view[at + 1] == view[at]) {
      out.append(self, at, at + 1);
      plain = at += 2;
      continue;
    }
    const size_t close = view.find('}', at);
    if (view[at] == '}' || close == std::string_view::npos) in.error("single brace in format()");
    const std::string_view field = view.substr(at + 1, close - at - 1);
    plain = at = close + 1;
    const Value* value = nullptr;
    if (field.find_first_not_of("0123456789") == std::string_view::npos && field.size() < 5) {
      const size_t i = field.empty() ? next++ : std::stoul(std::string(field));
      if (i < args.positional.size()) value = &args.positional[i];
    } else if (field.find_first_of("!:.[") != std::string_view::npos) {
      in.unsupported("format() with conversions or attributes");
    } else {
      for (const auto& [name, given] : args.named) {
        if (name == field) value = &given;
      }
    }
    if (!value) in.error(fmt::format("format() has no argument for '{{{}}}'", field));
    out.append(in.text_of(*value));
  }
  out.append(self, plain, view.size());
  return in.make(std::move(out));
}

struct NamedStringMethod {
  std::string_view name;
  StringMethod method;
};

constexpr std::array kStringMethods = {
    NamedStringMethod{"split", split},
    NamedStringMethod{"rsplit", rsplit},
    NamedStringMethod{"splitlines", splitlines},
    NamedStringMethod{"strip", strip_method<true, true>},
    NamedStringMethod{"lstrip", strip_method<true, false>},
    NamedStringMethod{"rstrip", strip_method<false, true>},
    NamedStringMethod{"startswith", affix<true>},
    NamedStringMethod{"endswith", affix<false>},
    NamedStringMethod{"removeprefix", remove_affix<true>},
    NamedStringMethod{"removesuffix", remove_affix<false>},
    NamedStringMethod{"replace", replace},
    NamedStringMethod{"join", join},
    NamedStringMethod{"find", find<false, false>},
    NamedStringMethod{"rfind", find<true, false>},
    NamedStringMethod{"index", find<false, true>},
    NamedStringMethod{"rindex", find<true, true>},
    NamedStringMethod{"count", count},
    NamedStringMethod{"partition", partition<false>},
    NamedStringMethod{"rpartition", partition<true>},
    NamedStringMethod{"upper", mapped<upper_case>},
    NamedStringMethod{"lower", mapped<lower_case>},
    NamedStringMethod{"capitalize", mapped<capitalized>},
    NamedStringMethod{"title", mapped<titled>},
    NamedStringMethod{"isdigit", all_chars<kNumber>},
    NamedStringMethod{"isalpha", all_chars<kLetter>},
    NamedStringMethod{"isalnum", all_chars<kLetter | kNumber>},
    NamedStringMethod{"isspace", all_chars<kSpace>},
    NamedStringMethod{"isupper", cased<kUpper, kLower>},
    NamedStringMethod{"islower", cased<kLower, kUpper>},
    NamedStringMethod{"format", format},
};

constexpr std::array<std::string_view, 5> kDictMethods = {"get", "items", "keys", "values", "copy"};
constexpr std::array<std::string_view, 3> kListMethods = {"index", "count", "copy"};
constexpr std::array<std::string_view, 6> kDictMutators = {"pop",        "popitem", "update",
                                                           "setdefault", "clear",   "fromkeys"};
constexpr std::array<std::string_view, 8> kListMutators = {"append", "extend",  "insert", "pop",
                                                           "remove", "reverse", "sort",   "clear"};

template <typename Names>
bool among(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

Value dict_method(Interpreter& in, const Value& self, std::string_view name, const Args& args) {
  const Dict& dict = *self.as_dict();
  if (name == "get") {
    const Bound bound(in, "get()", args, {"key", "default"});
    in.charge_steps(dict.entries.size() / 8);
    const Value* value = dict.find(bound[0]);
    if (value) return *value;
    return args.positional.size() + args.named.size() > 1 ? bound[1] : Value(None{});
  }
  const Bound none(in, name, args, {});
  if (name == "copy") return self;
  List list;
  in.charge_bytes(dict.entries.size() * sizeof(Value));
  for (const auto& [key, value] : dict.entries) {
    if (name == "items") {
      List pair;
      pair.tuple = true;
      pair.items = {key, value};
      list.items.push_back(in.make(std::move(pair)));
    } else {
      list.items.push_back(name == "keys" ? key : value);
    }
  }
  return in.make(std::move(list));
}

Value list_method(Interpreter& in, const Value& self, std::string_view name, const Args& args) {
  const List& list = *self.as_list();
  if (name == "copy") {
    const Bound none(in, name, args, {});
    return self;
  }
  const Bound bound(in, name, args, {"value"});
  const Value& wanted = bound.required(0);
  int64_t n = 0;
  for (size_t i = 0; i < list.items.size(); ++i) {
    in.charge_steps(1);
    in.charge_bytes(std::min(list.items[i].extent().weight, wanted.extent().weight));
    if (!equal(list.items[i], wanted)) continue;
    if (name == "index") return Value(static_cast<int64_t>(i));
    ++n;
  }
  if (name == "index") in.error("value is not in the list");
  return Value(n);
}

}  // namespace

bool has_method(const Value& object, std::string_view name) {
  if (object.as_text()) {
    return std::any_of(kStringMethods.begin(), kStringMethods.end(),
                       [&](const NamedStringMethod& m) { return m.name == name; });
  }
  if (object.as_dict()) return among(kDictMethods, name);
  if (const List* l = object.as_list(); l && !l->generator) {
    return among(kListMethods, name) && !(l->tuple && name == "copy");
  }
  return false;
}

bool is_mutator(const Value& object, std::string_view name) {
  if (object.as_dict()) return among(kDictMutators, name);
  if (const List* l = object.as_list())
    return !l->tuple && !l->generator && among(kListMutators, name);
  return false;
}

Value call_method_of(Interpreter& in, const Value& self, std::string_view name, const Args& args) {
  if (self.as_dict()) return dict_method(in, self, name, args);
  if (self.as_list()) return list_method(in, self, name, args);
  const Text* text = self.as_text();
  if (!text) in.error(fmt::format("'{}' object has no method '{}'", self.type_name(), name));
  in.charge_bytes(text->size() / 16);
  for (const NamedStringMethod& m : kStringMethods) {
    if (m.name == name) return m.method(in, *text, args);
  }
  in.error(fmt::format("'str' object has no method '{}'", name));
}

}  // namespace penstock::text::jinja
