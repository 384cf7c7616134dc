// The interpreter's expressions: attributes, items, operators and the binding of arguments.
#include <fmt/format.h>

#include <algorithm>

#include "text/jinja_interpreter.h"
#include "text/unicode.h"

namespace penstock::text::jinja {

// --- attributes and items -----------------------------------------------------------------------

Value undefined(std::string why) {
  return Undefined{std::make_shared<const std::string>(std::move(why))};
}

namespace {

Value loop_attribute(const Loop& loop, std::string_view name) {
  const std::vector<Value>& items = loop.items->items;
  const auto i = static_cast<int64_t>(loop.index), n = static_cast<int64_t>(items.size());
  if (name == "index") return Value(i + 1);
  if (name == "index0") return Value(i);
  if (name == "revindex") return Value(n - i);
  if (name == "revindex0") return Value(n - i - 1);
  if (name == "first") return Value(i == 0);
  if (name == "last") return Value(i == n - 1);
  if (name == "length") return Value(n);
  if (name == "depth") return Value(static_cast<int64_t>(loop.depth));
  if (name == "depth0") return Value(static_cast<int64_t>(loop.depth - 1));
  if (name == "previtem") {
    return i > 0 ? items[loop.index - 1] : undefined("there is no previous item");
  }
  if (name == "nextitem") {
    return i + 1 < n ? items[loop.index + 1] : undefined("there is no next item");
  }
  return undefined(fmt::format("loop has no attribute '{}'", name));
}

}  // namespace

// Jinja looks for a Python attribute first: {{ d.items }} is the method whatever the keys are.
Value Interpreter::attribute(const Value& object, std::string_view name) {
  require_defined(object);
  if (const Namespace* ns = object.as_namespace()) {
    for (const auto& [key, value] : ns->attributes) {
      if (key == name) return value;
    }
    return undefined(fmt::format("the namespace has no attribute '{}'", name));
  }
  if (object.as_loop()) {
    if (name == "cycle" || name == "changed") {
      if (name == "changed") unsupported("loop.changed");
      return Value(std::make_shared<const Function>(
          Function{Function::Kind::Method, std::string(name), object, nullptr, nullptr}));
    }
    return loop_attribute(*object.as_loop(), name);
  }
  if (is_mutator(object, name)) {
    return undefined(
        fmt::format("'{}' would change a {}: templates cannot", name, object.type_name()));
  }
  if (has_method(object, name)) {
    return Value(std::make_shared<const Function>(
        Function{Function::Kind::Method, std::string(name), object, nullptr, nullptr}));
  }
  if (const Dict* d = object.as_dict()) {
    charge_steps(d->entries.size() / 8);
    if (const Value* value = d->find(name)) return *value;
  }
  if (const Function* f = object.as_function(); f && f->macro && name == "name") {
    return Value::text(f->macro->text);
  }
  return undefined(fmt::format("'{} object' has no attribute '{}'", object.type_name(), name));
}

Value Interpreter::item(const Value& object, const Value& key) {
  require_defined(object);
  int64_t index = 0;
  if (const List* l = object.as_list(); l && !l->generator && key.to_int(index)) {
    const auto n = static_cast<int64_t>(l->items.size());
    if (index < 0) index += n;
    if (index >= 0 && index < n) return l->items[static_cast<size_t>(index)];
    return undefined("list index out of range");
  }
  if (const Text* t = object.as_text(); t && key.to_int(index)) {
    charge_bytes(t->size() / 16);
    const std::vector<size_t> offsets = char_offsets(t->view());
    const auto n = static_cast<int64_t>(offsets.size()) - 1;
    if (index < 0) index += n;
    if (index < 0 || index >= n) return undefined("string index out of range");
    const auto i = static_cast<size_t>(index);
    return make(t->slice(offsets[i], offsets[i + 1]));
  }
  if (const Dict* d = object.as_dict()) {
    charge_steps(d->entries.size() / 8);
    if (const Value* value = d->find(key)) return *value;
  }
  if (const Text* name = key.as_text()) return attribute(object, name->view());
  return undefined(
      fmt::format("'{} object' has no element {}", object.type_name(), text_of(key).view()));
}

// --- expressions --------------------------------------------------------------------------------

Value Interpreter::eval(const Expr& expr, Scope& scope) {
  // Leaves are most of what is evaluated and need no guard.
  if (expr.kind == Expr::Kind::Constant) return expr.value;
  charge_steps(1);
  line_ = expr.line;
  if (expr.kind == Expr::Kind::Name) return eval_name(expr, scope);
  const DepthGuard guard(*this);
  return eval_inner(expr, scope);
}

Value Interpreter::eval_inner(const Expr& expr, Scope& scope) {
  const auto child = [&](size_t i) { return eval(*expr.children[i], scope); };
  switch (expr.kind) {
    case Expr::Kind::Constant:
      return expr.value;
    case Expr::Kind::Name:
      return eval_name(expr, scope);
    case Expr::Kind::List:
    case Expr::Kind::Tuple:
    case Expr::Kind::Dict:
      return eval_sequence(expr, scope);
    case Expr::Kind::Attribute:
      return attribute(child(0), expr.text);
    case Expr::Kind::Subscript: {
      const Value object = child(0);
      return item(object, child(1));
    }
    case Expr::Kind::Slice:
      return eval_slice(expr, scope);
    case Expr::Kind::Call: {
      const Value callee = child(0);
      Args args = eval_args(expr.args, scope);
      line_ = expr.line;
      return call(callee, std::move(args));
    }
    case Expr::Kind::Filter:
      return apply_filter(expr, child(0), scope);
    case Expr::Kind::Test: {
      const Value subject = child(0);
      const Args args = eval_args(expr.args, scope);
      line_ = expr.line;
      return Value(test(expr.text, subject, args) != expr.negated);
    }
    case Expr::Kind::Not:
      return Value(!child(0).truthy());
    case Expr::Kind::Negative:
      return arithmetic(*this, "-", Value(int64_t{0}), child(0));
    case Expr::Kind::Positive:
      return arithmetic(*this, "+", Value(int64_t{0}), child(0));
    case Expr::Kind::Binary: {
      const Value left = child(0);
      const Value right = child(1);
      line_ = expr.line;
      return arithmetic(*this, expr.text, left, right);
    }
    case Expr::Kind::Compare:
      return eval_compare(expr, scope);
    case Expr::Kind::And: {
      Value left = child(0);
      return left.truthy() ? child(1) : left;
    }
    case Expr::Kind::Or: {
      Value left = child(0);
      return left.truthy() ? left : child(1);
    }
    case Expr::Kind::Concat:
      return eval_concat(expr, scope);
    case Expr::Kind::Conditional:
      if (child(1).truthy()) return child(0);
      return expr.children[2] ? child(2) : undefined("an inline if without an else was false");
  }
  return {};
}

Value Interpreter::eval_name(const Expr& expr, const Scope& scope) {
  for (const Scope* s = &scope; s; s = s->parent) {
    for (const auto& [id, value] : s->variables) {
      if (id == expr.name) return value;
    }
  }
  return undefined(fmt::format("'{}' is undefined", ast_.names[expr.name]));
}

Value Interpreter::eval_sequence(const Expr& expr, Scope& scope) {
  if (expr.kind == Expr::Kind::Dict) {
    Dict dict;
    for (size_t i = 0; i < expr.children.size(); i += 2) {
      Value key = eval(*expr.children[i], scope);
      if (key.as_dict() || (key.as_list() && !key.as_list()->tuple)) {
        error(fmt::format("unhashable type: '{}'", key.type_name()));
      }
      charge_steps(dict.entries.size());
      dict.set(std::move(key), eval(*expr.children[i + 1], scope));
    }
    charge_bytes(dict.entries.size() * 2 * sizeof(Value) + 64);
    return Value(std::move(dict));
  }
  List list;
  list.tuple = expr.kind == Expr::Kind::Tuple;
  list.items.reserve(expr.children.size());
  for (const Expr* child : expr.children) list.items.push_back(eval(*child, scope));
  return make(std::move(list));
}

Value Interpreter::eval_slice(const Expr& expr, Scope& scope) {
  const Value object = eval(*expr.children[0], scope);
  Value bounds[3];
  for (size_t i = 0; i < 3; ++i) {
    const Expr* bound = expr.children[i + 1];
    bounds[i] = bound ? eval(*bound, scope) : Value(None{});
  }
  line_ = expr.line;
  return slice_of(object, bounds[0], bounds[1], bounds[2]);
}

Value Interpreter::slice_of(const Value& object, const Value& start, const Value& stop,
                            const Value& step) {
  require_defined(object);
  const List* list = object.as_list();
  const Text* text = object.as_text();
  if ((!list || list->generator) && !text) {
    error(fmt::format("'{}' object cannot be sliced", object.type_name()));
  }
  charge_bytes(text ? text->size() : list->items.size() * sizeof(Value));
  const std::vector<size_t> offsets = text ? char_offsets(text->view()) : std::vector<size_t>();
  const auto n = static_cast<int64_t>(text ? offsets.size() - 1 : list->items.size());
  const auto bound = [&](const Value& value, int64_t fallback, int64_t low, int64_t high) {
    if (value.is_none()) return fallback;
    int64_t i = 0;
    if (!value.to_int(i)) error("slice bounds must be integers");
    if (i < 0) i = i < -n ? -1 - n : i + n;
    return std::clamp(i, low, high);
  };
  int64_t by = 1;
  if (!step.is_none() && !step.to_int(by)) error("slice bounds must be integers");
  if (by == 0) error("slice step cannot be zero");
  const bool forward = by > 0;
  const int64_t low = forward ? 0 : -1, high = forward ? n : n - 1;
  const int64_t first = bound(start, forward ? low : high, low, high);
  const int64_t last = bound(stop, forward ? high : low, low, high);
  by = std::clamp(by, -n - 1, n + 1);
  if (text && by == 1) {
    if (first >= last) return make(Text());
    return make(
        text->slice(offsets[static_cast<size_t>(first)], offsets[static_cast<size_t>(last)]));
  }
  Text out_text;
  List out_list;
  out_list.tuple = list && list->tuple;
  for (int64_t i = first; forward ? i < last : i > last; i += by) {
    const auto k = static_cast<size_t>(i);
    if (text) {
      out_text.append(*text, offsets[k], offsets[k + 1]);
    } else {
      out_list.items.push_back(list->items[k]);
    }
  }
  return text ? make(std::move(out_text)) : make(std::move(out_list));
}

bool Interpreter::compare_one(const std::string& op, const Value& a, const Value& b) {
  if (op == "in") return contains(b, a);
  if (op == "not in") return !contains(b, a);
  if (op == "==" || op == "!=") {
    charge_bytes(std::min(a.extent().weight, b.extent().weight));
    return equal(a, b) == (op == "==");
  }
  const int result = compare(a, b);
  if (op == "<") return result < 0;
  if (op == "<=") return result <= 0;
  if (op == ">") return result > 0;
  return result >= 0;
}

Value Interpreter::eval_compare(const Expr& expr, Scope& scope) {
  Value left = eval(*expr.children[0], scope);
  for (size_t i = 0; i < expr.ops.size(); ++i) {
    Value right = eval(*expr.children[i + 1], scope);
    line_ = expr.line;
    if (!compare_one(expr.ops[i], left, right)) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

Value Interpreter::eval_concat(const Expr& expr, Scope& scope) {
  Text out;
  for (const Expr* child : expr.children) {
    const Value value = eval(*child, scope);
    if (const Text* text = value.as_text()) {
      charge_bytes(text->size());
      out.append(*text);
    } else {
      out.append(text_of(value));
    }
  }
  return make(std::move(out));
}

Value Interpreter::apply_filter(const Expr& expr, Value input, Scope& scope) {
  const Args args = eval_args(expr.args, scope);
  line_ = expr.line;
  return filter(expr.text, input, args);
}

Value Interpreter::filter_chain(const Expr& expr, Value input, Scope& scope) {
  if (expr.children[0]) input = filter_chain(*expr.children[0], std::move(input), scope);
  return apply_filter(expr, std::move(input), scope);
}

Value Interpreter::filter(std::string_view name, const Value& input, const Args& args) {
  const FilterFunction function = find_filter(name);
  if (!function) unsupported(fmt::format("the filter '{}'", name));
  charge_steps(1);
  return function(*this, input, args);
}

bool Interpreter::test(std::string_view name, const Value& input, const Args& args) {
  const TestFunction function = find_test(name);
  if (!function) unsupported(fmt::format("the test '{}'", name));
  charge_steps(1);
  return function(*this, input, args);
}

// --- argument binding ---------------------------------------------------------------------------

Bound::Bound(const Interpreter& interpreter, std::string_view callee, const Args& args,
             std::initializer_list<std::string_view> names)
    : interpreter_(interpreter),
      callee_(callee),
      names_(names.begin(), names.end()),
      values_(names.size()) {
  if (args.positional.size() > names_.size()) {
    interpreter.error(fmt::format("{} takes at most {} arguments", callee, names_.size()));
  }
  std::copy(args.positional.begin(), args.positional.end(), values_.begin());
  for (const auto& [name, value] : args.named) {
    const auto found = std::find(names_.begin(), names_.end(), name);
    if (found == names_.end()) {
      interpreter.error(fmt::format("{} got an unexpected argument '{}'", callee, name));
    }
    values_[static_cast<size_t>(found - names_.begin())] = value;
  }
}

const Value& Bound::required(size_t i) const {
  if (!has(i)) interpreter_.error(fmt::format("{} needs '{}'", callee_, names_[i]));
  return values_[i];
}

int64_t Bound::integer(size_t i, int64_t fallback) const {
  if (!has(i) || values_[i].is_none()) return fallback;
  int64_t value = 0;
  if (!values_[i].to_int(value)) {
    interpreter_.error(fmt::format("{}: '{}' must be an integer", callee_, names_[i]));
  }
  return value;
}

bool Bound::flag(size_t i, bool fallback) const {
  return has(i) ? values_[i].truthy() : fallback;
}

const Text* Bound::text(size_t i) const {
  if (!has(i) || values_[i].is_none()) return nullptr;
  const Text* text = values_[i].as_text();
  if (!text) interpreter_.error(fmt::format("{}: '{}' must be a string", callee_, names_[i]));
  return text;
}

}  // namespace penstock::text::jinja
