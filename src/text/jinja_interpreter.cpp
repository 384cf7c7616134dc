#include "text/jinja_interpreter.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace penstock::text::jinja {

// --- services ---------------------------------------------------------------------------------

void Interpreter::error(std::string_view message) const {
  template_error(ErrorKind::Format, line_, message);
}

void Interpreter::unsupported(std::string_view what) const {
  template_error(ErrorKind::Unsupported, line_, fmt::format("{} is not supported", what));
}

void Interpreter::require_defined(const Value& value) const {
  if (const Undefined* u = value.get_if<Undefined>()) {
    error(u->why ? *u->why : std::string("a value is undefined"));
  }
}

void Interpreter::charge_steps(uint64_t steps) {
  steps_ += steps;
  if (steps_ > limits_.steps) error(fmt::format("more than {} steps", limits_.steps));
}

// Bytes made and bytes walked through draw on one allowance, so that neither memory nor time is
// unbounded.
void Interpreter::charge_bytes(uint64_t bytes) {
  if (bytes > limits_.bytes - bytes_) {
    error(fmt::format("more than {} bytes of values", limits_.bytes));
  }
  bytes_ += bytes;
}

Value Interpreter::make(Text text) {
  charge_bytes(text.size() + 64);
  return Value(std::move(text));
}

Value Interpreter::make(List list) {
  charge_bytes(list.items.size() * sizeof(Value) + 64);
  return Value(std::move(list));
}

Text Interpreter::text_of(const Value& value) {
  charge_walk(value);
  return to_text(value);
}

std::shared_ptr<const List> Interpreter::iterate(const Value& value) {
  if (auto list = value.shared_list()) return list;
  List items;
  if (const Dict* d = value.as_dict()) {
    charge_bytes(d->entries.size() * sizeof(Value));
    for (const auto& [k, v] : d->entries) items.items.push_back(k);
  } else if (const Text* t = value.as_text()) {
    charge_bytes(t->size() * 128);  // a small object for each character
    const std::vector<size_t> offsets = char_offsets(t->view());
    for (size_t i = 0; i + 1 < offsets.size(); ++i) {
      items.items.emplace_back(t->slice(offsets[i], offsets[i + 1]));
    }
  } else if (!value.is_undefined()) {
    error(fmt::format("'{}' object is not iterable", value.type_name()));
  }
  return std::make_shared<const List>(std::move(items));
}

bool Interpreter::contains(const Value& container, const Value& needle) {
  if (const Text* t = container.as_text()) {
    const Text* part = needle.as_text();
    if (!part) {
      error(fmt::format("'in <string>' requires a string, not '{}'", needle.type_name()));
    }
    charge_bytes(t->size() / 16);
    return t->view().find(part->view()) != std::string_view::npos;
  }
  if (const Dict* d = container.as_dict()) {
    charge_steps(d->entries.size());
    return d->find(needle) != nullptr;
  }
  const std::shared_ptr<const List> items = iterate(container);
  for (const Value& item : items->items) {
    charge_steps(1);
    charge_bytes(std::min(item.extent().weight, needle.extent().weight));
    if (equal(item, needle)) return true;
  }
  return false;
}

int Interpreter::compare(const Value& a, const Value& b) {
  charge_steps(1);
  charge_bytes(std::min(a.extent().weight, b.extent().weight));
  int result = 0;
  if (order(a, b, result)) return result;
  require_defined(a);
  require_defined(b);
  error(fmt::format("'{}' and '{}' have no order", a.type_name(), b.type_name()));
}

// --- scopes -------------------------------------------------------------------------------------

Scope& Interpreter::open_scope(Scope* parent) {
  Scope* scope = nullptr;
  if (!free_scopes_.empty()) {
    scope = free_scopes_.back();
    free_scopes_.pop_back();
  } else {
    charge_bytes(sizeof(Scope));
    scope = &scopes_.emplace_back();
  }
  scope->parent = parent;
  return *scope;
}

void Interpreter::close_scope(Scope& scope) {
  if (scope.kept) return;
  scope.variables.clear();
  free_scopes_.push_back(&scope);
}

void Interpreter::keep(Scope* scope) {
  for (; scope && !scope->kept; scope = scope->parent) scope->kept = true;
}

void Interpreter::set(Scope& scope, NameId name, Value value) {
  for (auto& [id, old] : scope.variables) {
    if (id == name) {
      old = std::move(value);
      return;
    }
  }
  charge_bytes(sizeof(Value));
  scope.variables.emplace_back(name, std::move(value));
}

std::optional<NameId> Interpreter::find_name(std::string_view name) const {
  const auto found = std::find(ast_.names.begin(), ast_.names.end(), name);
  if (found == ast_.names.end()) return std::nullopt;
  return static_cast<NameId>(found - ast_.names.begin());
}

void Interpreter::assign(const Target& target, Value value, Scope& scope) {
  switch (target.kind) {
    case Target::Kind::Name:
      set(scope, target.name, std::move(value));
      return;
    case Target::Kind::NamespaceAttribute: {
      Expr name;
      name.name = target.name;
      const Value object = eval_name(name, scope);
      Namespace* ns = object.as_namespace();
      if (!ns) error("attributes can be set only on a namespace");
      if (target.attribute.front() == '_')
        error("a namespace takes no names with an underscore first");
      for (auto& [key, old] : ns->attributes) {
        if (key == target.attribute) {
          old = std::move(value);
          return;
        }
      }
      charge_bytes(sizeof(Value) + target.attribute.size());
      ns->attributes.emplace_back(target.attribute, std::move(value));
      return;
    }
    case Target::Kind::Tuple: {
      require_defined(value);
      const std::shared_ptr<const List> items = iterate(value);
      if (items->items.size() != target.items.size()) {
        error(fmt::format("cannot unpack {} values into {} names", items->items.size(),
                          target.items.size()));
      }
      for (size_t i = 0; i < target.items.size(); ++i) {
        assign(target.items[i], items->items[i], scope);
      }
      return;
    }
  }
}

// --- statements ---------------------------------------------------------------------------------

Text Interpreter::render(const Dict& context) {
  Scope& globals = open_scope(nullptr);
  for (const char* name : {"range", "namespace", "dict", "raise_exception", "strftime_now"}) {
    if (const auto id = find_name(name)) {
      set(globals, *id,
          Value(std::make_shared<const Function>(
              Function{Function::Kind::Builtin, name, Value(), nullptr, nullptr})));
    }
  }
  Scope& root = open_scope(&globals);
  for (const auto& [key, value] : context.entries) {
    const Text* name = key.as_text();
    if (!name) continue;
    if (const auto id = find_name(name->view())) set(root, *id, value);
  }
  Text out;
  exec(ast_.body, root, out);
  return out;
}

void Interpreter::write(Text& out, const Text& text) {
  if (text.size() > limits_.output || out.size() > limits_.output - text.size()) {
    error(fmt::format("more than {} bytes of output", limits_.output));
  }
  charge_bytes(text.size());
  out.append(text);
}

Interpreter::Flow Interpreter::exec(const Body& body, Scope& scope, Text& out) {
  const DepthGuard guard(*this);
  for (const Stmt* stmt : body) {
    charge_steps(1);
    line_ = stmt->line;
    const Flow flow = exec_one(*stmt, scope, out);
    if (flow != Flow::Normal) return flow;
  }
  return Flow::Normal;
}

Interpreter::Flow Interpreter::exec_one(const Stmt& stmt, Scope& scope, Text& out) {
  switch (stmt.kind) {
    case Stmt::Kind::Data:
      write(out, *stmt.data.as_text());
      break;
    case Stmt::Kind::Output: {
      const Value value = eval(*stmt.expr, scope);
      if (const Text* text = value.as_text()) {
        write(out, *text);
      } else {
        write(out, text_of(value));
      }
      break;
    }
    case Stmt::Kind::If:
      for (const Stmt::Branch& branch : stmt.branches) {
        if (eval(*branch.condition, scope).truthy()) return exec(branch.body, scope, out);
      }
      return exec(stmt.otherwise, scope, out);
    case Stmt::Kind::For:
      return exec_for(stmt, eval(*stmt.expr, scope), scope, out, 1);
    case Stmt::Kind::Set:
      assign(stmt.target, eval(*stmt.expr, scope), scope);
      break;
    case Stmt::Kind::SetBlock:
    case Stmt::Kind::FilterBlock: {
      Scope& inner = open_scope(&scope);
      Text text;
      const Flow flow = exec(stmt.body, inner, text);
      close_scope(inner);
      if (flow != Flow::Normal) return flow;
      Value value = make(std::move(text));
      if (stmt.expr) value = filter_chain(*stmt.expr, std::move(value), scope);
      if (stmt.kind == Stmt::Kind::SetBlock) {
        assign(stmt.target, std::move(value), scope);
      } else {
        write(out, text_of(value));
      }
      break;
    }
    case Stmt::Kind::Macro:
      keep(&scope);
      set(scope, stmt.name,
          Value(std::make_shared<const Function>(
              Function{Function::Kind::Macro, stmt.text, Value(), &stmt, &scope})));
      break;
    case Stmt::Kind::CallBlock: {
      keep(&scope);
      const Value callee = eval(*stmt.expr->children[0], scope);
      Args args = eval_args(stmt.expr->args, scope);
      args.named.emplace_back(
          "caller", Value(std::make_shared<const Function>(
                        Function{Function::Kind::Macro, "caller", Value(), &stmt, &scope})));
      write(out, text_of(call(callee, std::move(args))));
      break;
    }
    case Stmt::Kind::With: {
      Scope& inner = open_scope(&scope);
      for (const auto& [target, expr] : stmt.assignments) {
        assign(target, eval(*expr, scope), inner);
      }
      const Flow flow = exec(stmt.body, inner, out);
      close_scope(inner);
      return flow;
    }
    case Stmt::Kind::Block: {
      Scope& inner = open_scope(&scope);
      const Flow flow = exec(stmt.body, inner, out);
      close_scope(inner);
      return flow;
    }
    case Stmt::Kind::Break:
      return Flow::Break;
    case Stmt::Kind::Continue:
      return Flow::Continue;
  }
  return Flow::Normal;
}

Interpreter::Flow Interpreter::exec_for(const Stmt& stmt, const Value& iterable, Scope& scope,
                                        Text& out, int depth) {
  std::shared_ptr<const List> items = iterate(iterable);
  if (stmt.filter) {
    List kept;
    for (const Value& item : items->items) {
      Scope& inner = open_scope(&scope);
      assign(stmt.target, item, inner);
      charge_steps(1);
      if (eval(*stmt.filter, inner).truthy()) kept.items.push_back(item);
      close_scope(inner);
    }
    charge_bytes(kept.items.size() * sizeof(Value));
    items = std::make_shared<const List>(std::move(kept));
  }
  if (items->items.empty()) {
    Scope& inner = open_scope(&scope);
    const Flow flow = exec(stmt.otherwise, inner, out);
    close_scope(inner);
    return flow;
  }
  const std::optional<NameId> loop_name = find_name("loop");
  if (stmt.recursive) keep(&scope);
  for (size_t i = 0; i < items->items.size(); ++i) {
    Scope& inner = open_scope(&scope);
    if (loop_name) {
      set(inner, *loop_name,
          Value(std::make_shared<const Loop>(
              Loop{items, i, depth, stmt.recursive ? &stmt : nullptr, &scope})));
    }
    assign(stmt.target, items->items[i], inner);
    const Flow flow = exec(stmt.body, inner, out);
    close_scope(inner);
    if (flow == Flow::Break) break;
  }
  return Flow::Normal;
}

// --- calls --------------------------------------------------------------------------------------

Args Interpreter::eval_args(const CallArgs& args, Scope& scope) {
  Args out;
  for (const Expr* expr : args.positional) out.positional.push_back(eval(*expr, scope));
  for (const auto& [name, expr] : args.named) out.named.emplace_back(name, eval(*expr, scope));
  if (args.star) {
    const std::shared_ptr<const List> extra = iterate(eval(*args.star, scope));
    charge_bytes(extra->items.size() * sizeof(Value));
    out.positional.insert(out.positional.end(), extra->items.begin(), extra->items.end());
  }
  if (args.star_star) {
    const Value extra = eval(*args.star_star, scope);
    if (!extra.as_dict()) error("** needs a mapping");
    charge_bytes(extra.as_dict()->entries.size() * sizeof(Value));
    for (const auto& [key, value] : extra.as_dict()->entries) {
      if (!key.as_text()) error("** needs a mapping with string keys");
      out.named.emplace_back(std::string(key.as_text()->view()), value);
    }
  }
  return out;
}

Value Interpreter::call(const Value& callee, Args args) {
  charge_steps(1);
  require_defined(callee);
  if (const Loop* loop = callee.as_loop()) {
    if (!loop->statement) error("only a loop marked recursive can be called");
    if (args.positional.size() != 1 || !args.named.empty()) error("loop() takes one argument");
    Text out;
    exec_for(*loop->statement, args.positional[0], *loop->scope, out, loop->depth + 1);
    return make(std::move(out));
  }
  const Function* function = callee.as_function();
  if (!function) error(fmt::format("'{}' object is not callable", callee.type_name()));
  switch (function->kind) {
    case Function::Kind::Macro:
      return call_macro(*function, std::move(args));
    case Function::Kind::Method:
      return call_method(*function, args);
    case Function::Kind::Builtin:
      break;
  }
  return call_builtin(*function, args);
}

Value Interpreter::call_macro(const Function& function, Args args) {
  const Stmt& macro = *function.macro;
  const int line = line_;
  Scope& scope = open_scope(function.scope);
  const size_t given = std::min(args.positional.size(), macro.parameters.size());
  for (size_t i = 0; i < given; ++i) {
    set(scope, macro.parameters[i].name, std::move(args.positional[i]));
  }
  List varargs;
  varargs.tuple = true;
  varargs.items.assign(
      std::make_move_iterator(args.positional.begin() + static_cast<std::ptrdiff_t>(given)),
      std::make_move_iterator(args.positional.end()));
  Dict kwargs;
  std::vector<bool> bound(macro.parameters.size());
  std::fill_n(bound.begin(), given, true);
  for (auto& [name, value] : args.named) {
    size_t i = 0;
    while (i < macro.parameters.size() && macro.parameters[i].text != name) ++i;
    if (i < macro.parameters.size()) {
      if (bound[i]) error(fmt::format("{}() got two values for '{}'", function.name, name));
      bound[i] = true;
      set(scope, macro.parameters[i].name, std::move(value));
    } else if (name == "caller") {
      if (const auto id = find_name("caller")) set(scope, *id, std::move(value));
    } else {
      kwargs.set(Value::text(name), std::move(value));
    }
  }
  const auto take_rest = [&](const char* name, bool any, Value rest) {
    const std::optional<NameId> id = find_name(name);
    if (!id && any) error(fmt::format("{}() got an unexpected argument", function.name));
    if (id) set(scope, *id, std::move(rest));
  };
  const bool more = !varargs.items.empty(), more_named = !kwargs.entries.empty();
  take_rest("varargs", more, make(std::move(varargs)));
  take_rest("kwargs", more_named, Value(std::move(kwargs)));
  for (size_t i = 0; i < macro.parameters.size(); ++i) {
    if (bound[i]) continue;
    const Stmt::Parameter& parameter = macro.parameters[i];
    Value value = parameter.fallback
                      ? eval(*parameter.fallback, scope)
                      : undefined(fmt::format("parameter '{}' was not provided", parameter.text));
    set(scope, parameter.name, std::move(value));
  }
  Text out;
  exec(macro.body, scope, out);
  close_scope(scope);
  line_ = line;
  return make(std::move(out));
}

Value Interpreter::call_builtin(const Function& function, const Args& args) {
  if (function.name == "raise_exception") {
    const Bound bound(*this, function.name, args, {"message"});
    template_error(
        ErrorKind::Usage, line_,
        fmt::format("the model's template refuses this: {}", text_of(bound.required(0)).view()));
  }
  if (function.name == "range") {
    const Bound bound(*this, function.name, args, {"start", "stop", "step"});
    int64_t start = bound.integer(0, 0), stop = bound.integer(1, 0);
    const int64_t step = bound.integer(2, 1);
    if (!bound.has(1)) stop = std::exchange(start, 0);
    if (step == 0) error("range() step must not be zero");
    constexpr int64_t kMaxRange = 100'000;  // the sandbox's own limit
    int64_t span = 0;
    const bool overflow = __builtin_sub_overflow(stop, start, &span);
    int64_t count = 0;
    if (step > 0 && span > 0) count = (span - 1) / step + 1;
    if (step < 0 && span < 0) count = (span + 1) / step + 1;
    if (overflow || count > kMaxRange) {
      error(fmt::format("range() of more than {} numbers", kMaxRange));
    }
    List list;
    for (int64_t i = 0; i < count; ++i) {
      list.items.emplace_back(start + i * step);
    }
    return make(std::move(list));
  }
  if (function.name == "strftime_now") {
    const Bound bound(*this, function.name, args, {"format"});
    const std::string format(text_of(bound.required(0)).view());
    if (format.empty()) return make(Text());
    const std::time_t now = now_.value_or(std::time(nullptr));
    std::tm parts{};
    // In UTC: the prompt must not depend on the environment's time zone.
    gmtime_r(&now, &parts);
    std::array<char, 1024> buffer{};
    const size_t length = std::strftime(buffer.data(), buffer.size(), format.c_str(), &parts);
    if (length == 0) error("strftime_now() result too long");
    return make(Text(std::string_view(buffer.data(), length), Origin::Template));
  }
  // namespace(...) and dict(...): a mapping or pairs, then names.
  if (args.positional.size() > 1) error(function.name + "() takes one positional argument");
  Dict dict;
  if (!args.positional.empty()) {
    if (const Dict* from = args.positional[0].as_dict()) {
      charge_bytes(from->entries.size() * sizeof(Value));
      dict.entries = from->entries;
    } else {
      const std::shared_ptr<const List> pairs = iterate(args.positional[0]);
      for (const Value& pair : pairs->items) {
        const List* both = pair.as_list();
        if (!both || both->items.size() != 2) error(function.name + "() needs pairs");
        charge_steps(dict.entries.size());
        dict.set(both->items[0], both->items[1]);
      }
    }
  }
  for (const auto& [name, value] : args.named) {
    charge_steps(dict.entries.size());
    dict.set(Value::text(name), value);
  }
  if (function.name == "dict") return Value(std::move(dict));
  charge_bytes(sizeof(Namespace) + dict.entries.size() * sizeof(Value));
  Namespace& ns = namespaces_.emplace_back();
  for (const auto& [key, value] : dict.entries) {
    const std::string name(text_of(key).view());
    if (name.empty() || name.front() == '_')
      error("a namespace takes no names with an underscore first");
    ns.attributes.emplace_back(name, value);
  }
  return Value(&ns);
}

Value Interpreter::call_method(const Function& function, const Args& args) {
  if (const Loop* loop = function.self.as_loop()) {  // cycle
    if (args.positional.empty()) error("loop.cycle() needs values");
    return args.positional[loop->index % args.positional.size()];
  }
  return call_method_of(*this, function.self, function.name, args);
}

}  // namespace penstock::text::jinja
