// Tests: what may follow `is`.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "text/jinja_interpreter.h"

namespace penstock::text::jinja {
namespace {

const Value& argument(Interpreter& in, const Args& args, std::string_view test) {
  if (args.positional.size() != 1 || !args.named.empty()) {
    in.error(fmt::format("the test '{}' takes one argument", test));
  }
  return args.positional[0];
}

using Simple = bool (*)(const Value&);
template <Simple kTest>
bool simple(Interpreter& in, const Value& value, const Args& args) {
  if (!args.positional.empty() || !args.named.empty()) in.error("this test takes no argument");
  return kTest(value);
}

bool is_defined(const Value& v) {
  return !v.is_undefined();
}
bool is_undefined(const Value& v) {
  return v.is_undefined();
}
bool is_none(const Value& v) {
  return v.is_none();
}
bool is_boolean(const Value& v) {
  return v.as_bool() != nullptr;
}
bool is_true(const Value& v) {
  return v.as_bool() && *v.as_bool();
}
bool is_false(const Value& v) {
  return v.as_bool() && !*v.as_bool();
}
bool is_integer(const Value& v) {
  return v.as_int() != nullptr;
}
bool is_float(const Value& v) {
  return v.as_float() != nullptr;
}
bool is_number(const Value& v) {
  return v.as_int() || v.as_float() || v.as_bool();
}
bool is_string(const Value& v) {
  return v.as_text() != nullptr;
}
bool is_mapping(const Value& v) {
  return v.as_dict() != nullptr;
}
bool is_callable(const Value& v) {
  return v.as_function() || v.as_loop() || v.is_undefined();
}

// An undefined value has a length and can be iterated over in Jinja, but has no items.
bool is_iterable(const Value& v) {
  return v.as_text() || v.as_list() || v.as_dict() || v.as_loop() || v.is_undefined();
}
bool is_sequence(const Value& v) {
  if (const List* l = v.as_list()) return !l->generator;
  return v.as_text() || v.as_dict() || v.is_undefined();
}

template <bool kUpperCase>
bool t_case(Interpreter& in, const Value& value, const Args& args) {
  if (!args.positional.empty()) in.error("this test takes no argument");
  const Value text = in.make(in.text_of(value));
  return call_method_of(in, text, kUpperCase ? "isupper" : "islower", {}).truthy();
}

// value % by == remainder, in Python's arithmetic.
bool leaves(Interpreter& in, const Value& value, const Value& by, int64_t remainder) {
  if (value.as_text()) in.error("the test needs a number, not a string");
  return equal(arithmetic(in, "%", value, by), Value(remainder));
}

bool t_even(Interpreter& in, const Value& value, const Args&) {
  return leaves(in, value, Value(int64_t{2}), 0);
}
bool t_odd(Interpreter& in, const Value& value, const Args&) {
  return leaves(in, value, Value(int64_t{2}), 1);
}
bool t_divisible(Interpreter& in, const Value& value, const Args& args) {
  return leaves(in, value, argument(in, args, "divisibleby"), 0);
}

bool equals(Interpreter& in, const Value& a, const Value& b) {
  in.charge_bytes(std::min(a.extent().weight, b.extent().weight));
  return equal(a, b);
}
bool t_eq(Interpreter& in, const Value& value, const Args& args) {
  return equals(in, value, argument(in, args, "eq"));
}
bool t_ne(Interpreter& in, const Value& value, const Args& args) {
  return !equals(in, value, argument(in, args, "ne"));
}
bool t_lt(Interpreter& in, const Value& value, const Args& args) {
  return in.compare(value, argument(in, args, "lt")) < 0;
}
bool t_le(Interpreter& in, const Value& value, const Args& args) {
  return in.compare(value, argument(in, args, "le")) <= 0;
}
bool t_gt(Interpreter& in, const Value& value, const Args& args) {
  return in.compare(value, argument(in, args, "gt")) > 0;
}
bool t_ge(Interpreter& in, const Value& value, const Args& args) {
  return in.compare(value, argument(in, args, "ge")) >= 0;
}
bool t_in(Interpreter& in, const Value& value, const Args& args) {
  return in.contains(argument(in, args, "in"), value);
}

// Identity: of the same kind and equal is as near as values without addresses come.
bool t_sameas(Interpreter& in, const Value& value, const Args& args) {
  const Value& other = argument(in, args, "sameas");
  return std::string_view(value.type_name()) == other.type_name() && equals(in, value, other);
}

bool t_filter(Interpreter& in, const Value& value, const Args&) {
  return value.as_text() && find_filter(in.text_of(value).view()) != nullptr;
}
bool t_test(Interpreter& in, const Value& value, const Args&) {
  return value.as_text() && find_test(in.text_of(value).view()) != nullptr;
}

struct NamedTest {
  std::string_view name;
  TestFunction function;
};

constexpr std::array kTests = {
    NamedTest{"defined", simple<is_defined>},
    NamedTest{"undefined", simple<is_undefined>},
    NamedTest{"none", simple<is_none>},
    NamedTest{"boolean", simple<is_boolean>},
    NamedTest{"true", simple<is_true>},
    NamedTest{"false", simple<is_false>},
    NamedTest{"integer", simple<is_integer>},
    NamedTest{"float", simple<is_float>},
    NamedTest{"number", simple<is_number>},
    NamedTest{"string", simple<is_string>},
    NamedTest{"mapping", simple<is_mapping>},
    NamedTest{"iterable", simple<is_iterable>},
    NamedTest{"sequence", simple<is_sequence>},
    NamedTest{"callable", simple<is_callable>},
    NamedTest{"lower", t_case<false>},
    NamedTest{"upper", t_case<true>},
    NamedTest{"even", t_even},
    NamedTest{"odd", t_odd},
    NamedTest{"divisibleby", t_divisible},
    NamedTest{"eq", t_eq},
    NamedTest{"equalto", t_eq},
    NamedTest{"==", t_eq},
    NamedTest{"ne", t_ne},
    NamedTest{"!=", t_ne},
    NamedTest{"lt", t_lt},
    NamedTest{"lessthan", t_lt},
    NamedTest{"<", t_lt},
    NamedTest{"le", t_le},
    NamedTest{"<=", t_le},
    NamedTest{"gt", t_gt},
    NamedTest{"greaterthan", t_gt},
    NamedTest{">", t_gt},
    NamedTest{"ge", t_ge},
    NamedTest{">=", t_ge},
    NamedTest{"in", t_in},
    NamedTest{"sameas", t_sameas},
    NamedTest{"filter", t_filter},
    NamedTest{"test", t_test},
};

}  // namespace

TestFunction find_test(std::string_view name) {
  for (const NamedTest& test : kTests) {
    if (test.name == name) return test.function;
  }
  return nullptr;
}

}  // namespace penstock::text::jinja
