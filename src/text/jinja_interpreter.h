// Runs a parsed template. Semantics are those of Jinja's immutable sandbox as the reference library
// sets it up for chat templates: undefined values print as nothing but may not be used further,
// values cannot be modified (a namespace's attributes can be set), names with a leading
// underscore are not attributes.
#pragma once

#include <cstdint>
#include <ctime>
#include <deque>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja_ast.h"
#include "text/jinja_lexer.h"

namespace penstock::text::jinja {

// A template is a program from a stranger: what it may use is bounded.
struct Limits {
  uint64_t steps = 20'000'000;    // expressions and statements evaluated
  uint64_t bytes = 256ULL << 20;  // made in total, temporary values included
  size_t output = 64ULL << 20;    // rendered text
  int depth = 800;                // nested evaluations
};

struct Args {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

struct Scope {
  Scope* parent = nullptr;
  // A macro or a recursive loop still refers to it after its block has ended.
  bool kept = false;
  std::vector<std::pair<NameId, Value>> variables;
};

class Interpreter {
 public:
  Interpreter(const Ast& ast, const Limits& limits, std::optional<std::time_t> now)
      : ast_(ast), limits_(limits), now_(now) {}

  Text render(const Dict& context);

  // --- for filters, tests and methods ---------------------------------------------------------
  [[noreturn]] void error(std::string_view message) const;
  [[noreturn]] void unsupported(std::string_view what) const;
  // Fails if the value is undefined, with its own reason.
  void require_defined(const Value& value) const;
  void charge_steps(uint64_t steps);
  void charge_bytes(uint64_t bytes);
  void charge_walk(const Value& value) { charge_bytes(value.extent().weight); }

  Value make(Text text);
  Value make(List list);
  Text text_of(const Value& value);  // str()
  std::shared_ptr<const List> iterate(const Value& value);
  Value attribute(const Value& object, std::string_view name);
  Value item(const Value& object, const Value& key);
  Value call(const Value& callee, Args args);
  Value filter(std::string_view name, const Value& input, const Args& args);
  bool test(std::string_view name, const Value& input, const Args& args);
  bool contains(const Value& container, const Value& needle);
  int compare(const Value& a, const Value& b);  // fails if there is no order

  const Limits& limits() const noexcept { return limits_; }

 private:
  enum class Flow { Normal, Break, Continue };
  class DepthGuard {
   public:
    explicit DepthGuard(Interpreter& interpreter) : interpreter_(interpreter) {
      if (++interpreter_.depth_ > interpreter_.limits_.depth) {
        --interpreter_
              .depth_;  // no destructor runs for what the constructor leaves by an exception
        interpreter_.error("evaluation nested too deeply (a macro without an end?)");
      }
    }
    ~DepthGuard() { --interpreter_.depth_; }
    DepthGuard(const DepthGuard&) = delete;
    DepthGuard& operator=(const DepthGuard&) = delete;

   private:
    Interpreter& interpreter_;
  };

  Value eval(const Expr& expr, Scope& scope);
  Value eval_inner(const Expr& expr, Scope& scope);
  Value eval_name(const Expr& expr, const Scope& scope);
  Value eval_sequence(const Expr& expr, Scope& scope);
  Value eval_slice(const Expr& expr, Scope& scope);
  Value eval_compare(const Expr& expr, Scope& scope);
  Value eval_concat(const Expr& expr, Scope& scope);
  Value slice_of(const Value& object, const Value& start, const Value& stop, const Value& step);
  Args eval_args(const CallArgs& args, Scope& scope);
  Value apply_filter(const Expr& expr, Value input, Scope& scope);
  Value filter_chain(const Expr& expr, Value input, Scope& scope);
  bool compare_one(const std::string& op, const Value& a, const Value& b);

  Flow exec(const Body& body, Scope& scope, Text& out);
  Flow exec_one(const Stmt& stmt, Scope& scope, Text& out);
  Flow exec_for(const Stmt& stmt, const Value& iterable, Scope& scope, Text& out, int depth);
  void assign(const Target& target, Value value, Scope& scope);
  void write(Text& out, const Text& text);
  Value call_macro(const Function& function, Args args);
  Value call_builtin(const Function& function, const Args& args);
  Value call_method(const Function& function, const Args& args);

  Scope& open_scope(Scope* parent);
  void close_scope(Scope& scope);
  static void keep(Scope* scope);
  void set(Scope& scope, NameId name, Value value);
  std::optional<NameId> find_name(std::string_view name) const;

  const Ast& ast_;
  Limits limits_;
  std::optional<std::time_t> now_;
  int line_ = 0;
  int depth_ = 0;
  uint64_t steps_ = 0;
  uint64_t bytes_ = 0;
  std::deque<Scope> scopes_;
  std::vector<Scope*> free_scopes_;
  std::deque<Namespace> namespaces_;
};

// The undefined value that gives this reason when it is used.
Value undefined(std::string why);

// Binds arguments to parameter names, as a Python call does, for filters, tests and methods.
class Bound {
 public:
  Bound(const Interpreter& interpreter, std::string_view callee, const Args& args,
        std::initializer_list<std::string_view> names);

  bool has(size_t i) const noexcept { return !values_[i].is_undefined(); }
  const Value& operator[](size_t i) const noexcept { return values_[i]; }
  // Fails if it was not given.
  const Value& required(size_t i) const;
  int64_t integer(size_t i, int64_t fallback) const;
  bool flag(size_t i, bool fallback) const;
  // nullptr if not given or none; fails if it is not a string.
  const Text* text(size_t i) const;

 private:
  const Interpreter& interpreter_;
  std::string callee_;
  std::vector<std::string> names_;
  std::vector<Value> values_;
};

using FilterFunction = Value (*)(Interpreter&, const Value& input, const Args& args);
using TestFunction = bool (*)(Interpreter&, const Value& input, const Args& args);
FilterFunction find_filter(std::string_view name);
TestFunction find_test(std::string_view name);

// Whether a value of this type has a method of this name, and its call.
bool has_method(const Value& object, std::string_view name);
// Methods that would change a list or dictionary: refused, as in the immutable sandbox.
bool is_mutator(const Value& object, std::string_view name);
Value call_method_of(Interpreter& interpreter, const Value& self, std::string_view name,
                     const Args& args);

// Arithmetic of Python's operators on values.
Value arithmetic(Interpreter& interpreter, std::string_view op, const Value& a, const Value& b);

// Shared by filters and methods.
Text strip(const Text& text, const Text* chars, bool left, bool right);
Text replace_all(Interpreter& interpreter, const Text& text, const Text& from, const Text& to,
                 int64_t count);
std::vector<Text> split_lines(const Text& text);
Text capitalized(const Text& text);
Text titled(const Text& text);

}  // namespace penstock::text::jinja
