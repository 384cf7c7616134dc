// Values of the template engine: Python's, as far as chat templates use them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "text/jinja_text.h"

namespace penstock::text::jinja {

class Value;
struct Stmt;
struct Scope;

struct Undefined {
  std::shared_ptr<const std::string> why;  // the error to give when it is used; may be null
};
struct None {};

// The extent of a container with all that is in it, known from when it is made: templates can nest
// values into each other step by step, even so that the written-out size doubles with every step.
struct Extent {
  int depth = 0;
  uint64_t weight = 1;  // values and bytes of text in it, counted once for every way to reach them
};

struct List {
  std::vector<Value> items;
  bool tuple = false;
  // What map, select and the like return. It is made at once here, but as in Jinja it counts as
  // true even when empty, and has neither a length nor items by number.
  bool generator = false;
  Extent extent;
};

// Insertion order, as in Python. Keys are found by scanning: the dictionaries of chats are small.
struct Dict {
  std::vector<std::pair<Value, Value>> entries;
  Extent extent;
  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
  void set(Value key, Value value);
};

// The only mutable value. Owned by the interpreter, because it may contain itself.
struct Namespace {
  std::vector<std::pair<std::string, Value>> attributes;
};

// The `loop` variable at one iteration.
struct Loop {
  std::shared_ptr<const List> items;
  size_t index = 0;
  int depth = 1;
  const Stmt* statement = nullptr;  // of a recursive loop
  Scope* scope = nullptr;
};

struct Function;

class Value {
 public:
  using String = std::shared_ptr<const Text>;

  Value() = default;  // undefined, without a reason
  Value(Undefined v) : v_(std::move(v)) {}
  Value(None v) : v_(v) {}
  explicit Value(bool v) : v_(v) {}
  explicit Value(int64_t v) : v_(v) {}
  explicit Value(double v) : v_(v) {}
  explicit Value(Text v) : v_(std::make_shared<const Text>(std::move(v))) {}
  // These two throw penstock::Error beyond kMaxValueDepth.
  explicit Value(List v);
  explicit Value(Dict v);
  explicit Value(Namespace* v) : v_(v) {}
  explicit Value(std::shared_ptr<const Loop> v) : v_(std::move(v)) {}
  explicit Value(std::shared_ptr<const List> v) : v_(std::move(v)) {}
  explicit Value(std::shared_ptr<const Function> v) : v_(std::move(v)) {}
  static Value text(std::string_view bytes, Origin origin = Origin::Template) {
    return Value(Text(bytes, origin));
  }

  template <typename T>
  const T* get_if() const noexcept {
    return std::get_if<T>(&v_);
  }

  bool is_undefined() const noexcept { return get_if<Undefined>() != nullptr; }
  bool is_none() const noexcept { return get_if<None>() != nullptr; }
  const bool* as_bool() const noexcept { return get_if<bool>(); }
  const int64_t* as_int() const noexcept { return get_if<int64_t>(); }
  const double* as_float() const noexcept { return get_if<double>(); }
  const Text* as_text() const noexcept { return pointee<Text>(); }
  const List* as_list() const noexcept { return pointee<List>(); }
  std::shared_ptr<const List> shared_list() const {
    const auto* p = get_if<std::shared_ptr<const List>>();
    return p ? *p : nullptr;
  }
  const Dict* as_dict() const noexcept { return pointee<Dict>(); }
  const Loop* as_loop() const noexcept { return pointee<Loop>(); }
  const Function* as_function() const noexcept { return pointee<Function>(); }
  Namespace* as_namespace() const noexcept {
    const auto* p = get_if<Namespace*>();
    return p ? *p : nullptr;
  }
  // An int, or a bool as 0 or 1, as Python's arithmetic takes it.
  bool to_int(int64_t& out) const noexcept;
  // Any number as a double.
  bool to_float(double& out) const noexcept;

  bool truthy() const noexcept;
  const char* type_name() const noexcept;  // Python's
  Extent extent() const noexcept;

 private:
  template <typename T>
  const T* pointee() const noexcept {
    const auto* p = get_if<std::shared_ptr<const T>>();
    return p ? p->get() : nullptr;
  }

  std::variant<Undefined, None, bool, int64_t, double, String, std::shared_ptr<const List>,
               std::shared_ptr<const Dict>, Namespace*, std::shared_ptr<const Loop>,
               std::shared_ptr<const Function>>
      v_;
};

struct Function {
  enum class Kind { Builtin, Method, Macro };
  Kind kind = Kind::Builtin;
  std::string name;
  Value self;                   // of a method
  const Stmt* macro = nullptr;  // its definition, and the scope it was defined in
  Scope* scope = nullptr;
};

// Deepest nesting of lists and dictionaries, so that the recursive walks over values need no guard
// of their own.
inline constexpr int kMaxValueDepth = 100;

// Parses JSON; every string in it is of the given origin. Throws penstock::Error naming `what`.
Value parse_json(std::string_view json, Origin origin, std::string_view what);

bool equal(const Value& a, const Value& b);
// <0, 0, >0; false if Python would not order the two.
bool order(const Value& a, const Value& b, int& result);

// str(), and repr() for what is inside containers.
Text to_text(const Value& value);
Text to_repr(const Value& value);
std::string float_repr(double value);

struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  bool indented = false;
  Text indent;
  Text item_separator{", ", Origin::Template};
  Text key_separator{": ", Origin::Template};
};
// json.dumps(). On a value without a JSON form, returns false and names its type.
bool to_json(const Value& value, const JsonStyle& style, Text& out, std::string& bad_type);

}  // namespace penstock::text::jinja
