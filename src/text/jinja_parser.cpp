#include "text/jinja_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <initializer_list>
#include <unordered_map>

#include "text/jinja_lexer.h"

namespace penstock::text::jinja {
namespace {

// Statements and expressions nested deeper than this are refused: the interpreter recurses.
constexpr int kMaxDepth = 200;

class Parser {
 public:
  explicit Parser(std::string_view source) : tokens_(tokenize(source)) {}

  Ast run() {
    ast_.body = statements({});
    return std::move(ast_);
  }

 private:
  // --- tokens ---------------------------------------------------------------------------------
  const Token& current() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  int line() const { return current().line; }
  Token take() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  bool is(TokenKind kind) const { return current().kind == kind; }
  bool is_op(std::string_view op) const { return is(TokenKind::Operator) && current().text == op; }
  bool is_name(std::string_view name) const {
    return is(TokenKind::Name) && current().text == name;
  }

  bool accept_op(std::string_view op) {
    if (!is_op(op)) return false;
    ++at_;
    return true;
  }
  bool accept_name(std::string_view name) {
    if (!is_name(name)) return false;
    ++at_;
    return true;
  }

  std::string describe() const {
    switch (current().kind) {
      case TokenKind::End:
        return "the end of the template";
      case TokenKind::BlockEnd:
        return "the end of the statement";
      case TokenKind::OutputEnd:
        return "the end of the expression";
      case TokenKind::Data:
        return "text";
      case TokenKind::String:
        return "a string";
      default:
        return fmt::format("'{}'", current().text);
    }
  }

  [[noreturn]] void error(std::string_view message) const {
    template_error(ErrorKind::Format, line(), message);
  }
  [[noreturn]] void unexpected(std::string_view wanted) const {
    error(fmt::format("expected {} but found {}", wanted, describe()));
  }
  [[noreturn]] void unsupported(std::string_view what) const {
    template_error(ErrorKind::Unsupported, line(), fmt::format("{} is not supported", what));
  }

  void expect_op(std::string_view op) {
    if (!accept_op(op)) unexpected(fmt::format("'{}'", op));
  }
  void expect(TokenKind kind, std::string_view what) {
    if (!is(kind)) unexpected(what);
    ++at_;
  }
  std::string expect_name(std::string_view what) {
    if (!is(TokenKind::Name)) unexpected(what);
    return take().text;
  }

  NameId name_id(const std::string& name) {
    const auto [entry, fresh] = name_ids_.try_emplace(name, ast_.names.size());
    if (fresh) ast_.names.push_back(name);
    return static_cast<NameId>(entry->second);
  }

  // Counts the nesting of the parser's own recursion.
  class Depth {
   public:
    explicit Depth(Parser& parser) : parser_(parser) {
      if (++parser_.depth_ > kMaxDepth) parser_.error("nested too deeply");
    }
    ~Depth() { --parser_.depth_; }
    Depth(const Depth&) = delete;
    Depth& operator=(const Depth&) = delete;

   private:
    Parser& parser_;
  };

  // --- nodes ----------------------------------------------------------------------------------
  Expr& make(Expr::Kind kind, std::initializer_list<const Expr*> children = {}) {
    Expr& node = ast_.exprs.emplace_back();
    node.kind = kind;
    node.line = line();
    for (const Expr* child : children) add_child(node, child);
    return node;
  }

  // A chain such as a + b + c … leans to the left without nesting the parser: bounded here.
  void add_child(Expr& node, const Expr* child) {
    node.children.push_back(child);
    if (child) deepen(node, *child);
  }
  void deepen(Expr& node, const Expr& child) {
    node.depth = std::max(node.depth, child.depth + 1);
    if (node.depth > kMaxDepth) error("expression nested too deeply");
  }

  Stmt& make_stmt(Stmt::Kind kind) {
    Stmt& node = ast_.stmts.emplace_back();
    node.kind = kind;
    node.line = line();
    return node;
  }

  // --- statements -----------------------------------------------------------------------------
  // Until {% end %} with one of these names, which is left as the current token, or the end.
  Body statements(std::initializer_list<std::string_view> ends) {
    const Depth depth(*this);
    Body body;
    while (true) {
      switch (current().kind) {
        case TokenKind::Data: {
          Stmt& data = make_stmt(Stmt::Kind::Data);
          data.data = Value::text(take().text);
          body.push_back(&data);
          break;
        }
        case TokenKind::OutputBegin: {
          ++at_;
          Stmt& output = make_stmt(Stmt::Kind::Output);
          output.expr = tuple_or_expression();
          expect(TokenKind::OutputEnd, "'}}'");
          body.push_back(&output);
          break;
        }
        case TokenKind::BlockBegin: {
          ++at_;
          if (!is(TokenKind::Name)) unexpected("the name of a statement");
          if (std::find(ends.begin(), ends.end(), current().text) != ends.end()) return body;
          body.push_back(statement());
          break;
        }
        case TokenKind::End:
          if (ends.size() != 0) {
            unexpected(fmt::format("{{% {} %}}", *(ends.end() - 1)));
          }
          return body;
        default:
          unexpected("text or a tag");
      }
    }
  }

  void end_tag() { expect(TokenKind::BlockEnd, "'%}'"); }

  // Consumes the name of an end tag and its mark.
  void close() {
    ++at_;
    end_tag();
  }

  const Stmt* statement() {
    const std::string name = current().text;
    if (name == "if") return if_statement();
    if (name == "for") return for_statement();
    if (name == "set") return set_statement();
    if (name == "macro") return macro_statement();
    if (name == "call") return call_statement();
    if (name == "filter") return filter_statement();
    if (name == "with") return with_statement();
    if (name == "generation") {
      Stmt& block = make_stmt(Stmt::Kind::Block);
      ++at_;
      end_tag();
      block.body = statements({"endgeneration"});
      close();
      return &block;
    }
    if (name == "break" || name == "continue") {
      if (loops_ == 0) error(fmt::format("'{}' outside a loop", name));
      Stmt& jump = make_stmt(name == "break" ? Stmt::Kind::Break : Stmt::Kind::Continue);
      ++at_;
      end_tag();
      return &jump;
    }
    static constexpr std::array<std::string_view, 9> kLeftOut = {
        "block", "extends", "include", "import", "from", "autoescape", "do", "trans", "debug"};
    if (std::find(kLeftOut.begin(), kLeftOut.end(), name) != kLeftOut.end()) {
      unsupported(fmt::format("the statement '{}'", name));
    }
    error(fmt::format("unknown or misplaced statement '{}'", name));
  }

  const Stmt* if_statement() {
    Stmt& node = make_stmt(Stmt::Kind::If);
    while (true) {
      ++at_;  // if, elif
      const Expr* condition = tuple_or_expression(false);
      end_tag();
      Body body = statements({"elif", "else", "endif"});
      node.branches.push_back({condition, std::move(body)});
      if (is_name("elif")) continue;
      if (accept_name("else")) {
        end_tag();
        node.otherwise = statements({"endif"});
      }
      close();
      return &node;
    }
  }

  const Stmt* for_statement() {
    Stmt& node = make_stmt(Stmt::Kind::For);
    ++at_;
    node.target = target(false);
    if (!accept_name("in")) unexpected("'in'");
    node.expr = tuple_or_expression(false);
    if (accept_name("if")) node.filter = expression();
    node.recursive = accept_name("recursive");
    end_tag();
    ++loops_;
    node.body = statements({"else", "endfor"});
    --loops_;
    if (accept_name("else")) {
      end_tag();
      node.otherwise = statements({"endfor"});
    }
    close();
    return &node;
  }

  Target single_target(bool with_namespace) {
    const Depth depth(*this);
    Target result;
    if (accept_op("(")) {
      result = target(with_namespace);
      expect_op(")");
      return result;
    }
    const std::string name = expect_name("a name to assign to");
    if (name == "true" || name == "false" || name == "none" || name == "True" || name == "False" ||
        name == "None") {
      error(fmt::format("cannot assign to '{}'", name));
    }
    result.name = name_id(name);
    if (with_namespace && accept_op(".")) {
      result.kind = Target::Kind::NamespaceAttribute;
      result.attribute = expect_name("an attribute name");
    }
    return result;
  }

  Target target(bool with_namespace) {
    Target first = single_target(with_namespace);
    if (!is_op(",")) return first;
    Target tuple;
    tuple.kind = Target::Kind::Tuple;
    tuple.items.push_back(std::move(first));
    while (accept_op(",")) {
      if (!is(TokenKind::Name) && !is_op("(")) break;  // a trailing comma
      if (is_name("in")) break;
      tuple.items.push_back(single_target(with_namespace));
    }
    return tuple;
  }

  const Stmt* set_statement() {
    ++at_;
    Target where = target(true);
    if (accept_op("=")) {
      Stmt& node = make_stmt(Stmt::Kind::Set);
      node.target = std::move(where);
      node.expr = tuple_or_expression();
      end_tag();
      return &node;
    }
    if (where.kind == Target::Kind::Tuple) unexpected("'='");
    Stmt& node = make_stmt(Stmt::Kind::SetBlock);
    node.target = std::move(where);
    if (accept_op("|")) node.expr = filter_chain();
    end_tag();
    node.body = statements({"endset"});
    close();
    return &node;
  }

  void signature(Stmt& node) {
    while (!is_op(")")) {
      const std::string name = expect_name("a parameter name");
      const Expr* fallback = nullptr;
      if (accept_op("=")) {
        fallback = expression();
      } else if (!node.parameters.empty() && node.parameters.back().fallback) {
        error("a parameter without a default follows one with a default");
      }
      node.parameters.push_back({name_id(name), name, fallback});
      if (!is_op(")")) expect_op(",");
    }
    expect_op(")");
  }

  // A macro's body is no part of the loop around it.
  Body separate_body(std::string_view end) {
    const int loops = std::exchange(loops_, 0);
    Body body = statements({end});
    loops_ = loops;
    close();
    return body;
  }

  const Stmt* macro_statement() {
    Stmt& node = make_stmt(Stmt::Kind::Macro);
    ++at_;
    node.text = expect_name("the name of the macro");
    node.name = name_id(node.text);
    expect_op("(");
    signature(node);
    end_tag();
    node.body = separate_body("endmacro");
    return &node;
  }

  const Stmt* call_statement() {
    Stmt& node = make_stmt(Stmt::Kind::CallBlock);
    ++at_;
    node.text = "caller";
    node.name = name_id(node.text);
    if (accept_op("(")) signature(node);
    node.expr = expression();
    if (node.expr->kind != Expr::Kind::Call) error("{% call %} needs a call");
    end_tag();
    node.body = separate_body("endcall");
    return &node;
  }

  const Stmt* filter_statement() {
    Stmt& node = make_stmt(Stmt::Kind::FilterBlock);
    ++at_;
    node.expr = filter_chain();
    end_tag();
    node.body = statements({"endfilter"});
    close();
    return &node;
  }

  const Stmt* with_statement() {
    Stmt& node = make_stmt(Stmt::Kind::With);
    ++at_;
    while (!is(TokenKind::BlockEnd)) {
      if (!node.assignments.empty()) expect_op(",");
      Target where = single_target(false);
      expect_op("=");
      node.assignments.emplace_back(std::move(where), expression());
    }
    end_tag();
    node.body = statements({"endwith"});
    close();
    return &node;
  }

  // --- expressions: the levels of Jinja's own grammar -------------------------------------------
  const Expr* expression(bool with_conditional = true) {
    const Depth depth(*this);
    return with_conditional ? conditional() : or_expression();
  }

  bool ends_tuple() const {
    return is(TokenKind::OutputEnd) || is(TokenKind::BlockEnd) || is_op(")") ||
           is_name("recursive") || is_name("if");
  }

  // a, b, c without parentheses is a tuple.
  const Expr* tuple_or_expression(bool with_conditional = true) {
    const Expr* first = expression(with_conditional);
    if (!is_op(",")) return first;
    Expr& tuple = make(Expr::Kind::Tuple, {first});
    while (accept_op(",")) {
      if (ends_tuple()) break;
      add_child(tuple, expression(with_conditional));
    }
    return &tuple;
  }

  const Expr* conditional() {
    const Expr* value = or_expression();
    while (accept_name("if")) {
      const Expr* condition = or_expression();
      const Expr* other = accept_name("else") ? expression() : nullptr;
      value = &make(Expr::Kind::Conditional, {value, condition, other});
    }
    return value;
  }

  const Expr* or_expression() {
    const Expr* left = and_expression();
    while (accept_name("or")) left = &make(Expr::Kind::Or, {left, and_expression()});
    return left;
  }

  const Expr* and_expression() {
    const Expr* left = not_expression();
    while (accept_name("and")) left = &make(Expr::Kind::And, {left, not_expression()});
    return left;
  }

  const Expr* not_expression() {
    if (is_name("not")) {
      const Depth depth(*this);
      ++at_;
      return &make(Expr::Kind::Not, {not_expression()});
    }
    return comparison();
  }

  // The comparison operator at hand, consumed; empty if there is none.
  std::string comparison_operator() {
    static constexpr std::array<std::string_view, 6> kOps = {"==", "!=", "<", "<=", ">", ">="};
    if (is(TokenKind::Operator) &&
        std::find(kOps.begin(), kOps.end(), current().text) != kOps.end()) {
      return take().text;
    }
    if (accept_name("in")) return "in";
    if (is_name("not") && ahead().kind == TokenKind::Name && ahead().text == "in") {
      at_ += 2;
      return "not in";
    }
    return {};
  }

  const Expr* comparison() {
    const Expr* left = additive();
    std::string op = comparison_operator();
    if (op.empty()) return left;
    Expr& node = make(Expr::Kind::Compare, {left});
    while (!op.empty()) {
      node.ops.push_back(op);
      add_child(node, additive());
      op = comparison_operator();
    }
    return &node;
  }

  const Expr* binary(const Expr* left, std::string op, const Expr* right) {
    Expr& node = make(Expr::Kind::Binary, {left, right});
    node.text = std::move(op);
    return &node;
  }

  const Expr* additive() {
    const Expr* left = concatenation();
    while (is_op("+") || is_op("-")) {
      std::string op = take().text;
      left = binary(left, std::move(op), concatenation());
    }
    return left;
  }

  const Expr* concatenation() {
    const Expr* first = multiplicative();
    if (!is_op("~")) return first;
    Expr& node = make(Expr::Kind::Concat, {first});
    while (accept_op("~")) add_child(node, multiplicative());
    return &node;
  }

  const Expr* multiplicative() {
    const Expr* left = power();
    while (is_op("*") || is_op("/") || is_op("//") || is_op("%")) {
      std::string op = take().text;
      left = binary(left, std::move(op), power());
    }
    return left;
  }

  const Expr* power() {
    const Expr* left = unary(true);
    while (accept_op("**")) left = binary(left, "**", unary(true));
    return left;
  }

  const Expr* unary(bool with_filters) {
    const Depth depth(*this);
    const Expr* node = nullptr;
    if (accept_op("-")) {
      node = &make(Expr::Kind::Negative, {unary(false)});
    } else if (accept_op("+")) {
      node = &make(Expr::Kind::Positive, {unary(false)});
    } else {
      node = primary();
    }
    node = postfix(node);
    return with_filters ? filters(node) : node;
  }

  const Expr* constant(Value value) {
    Expr& node = make(Expr::Kind::Constant);
    node.value = std::move(value);
    return &node;
  }

  const Expr* primary() {
    const Depth depth(*this);
    switch (current().kind) {
      case TokenKind::Name: {
        const std::string name = take().text;
        if (name == "true" || name == "True") return constant(Value(true));
        if (name == "false" || name == "False") return constant(Value(false));
        if (name == "none" || name == "None") return constant(None{});
        Expr& node = make(Expr::Kind::Name);
        node.text = name;
        node.name = name_id(name);
        return &node;
      }
      case TokenKind::String: {
        std::string text = take().text;
        while (is(TokenKind::String)) text += take().text;
        return constant(Value::text(text));
      }
      case TokenKind::Integer:
        return constant(integer(take().text));
      case TokenKind::Float: {
        const std::string text = take().text;
        double value = 0;
        std::from_chars(text.data(), text.data() + text.size(), value);
        return constant(Value(value));
      }
      default:
        break;
    }
    if (accept_op("(")) return parenthesised();
    if (accept_op("[")) return list();
    if (accept_op("{")) return dict();
    unexpected("an expression");
  }

  Value integer(std::string_view text) {
    int base = 10;
    if (text.size() > 2 && text[0] == '0' && (text[1] | 0x20) >= 'b') {
      const int letter = text[1] | 0x20;
      base = letter == 'x' ? 16 : letter == 'o' ? 8 : 2;
      text.remove_prefix(2);
    }
    int64_t value = 0;
    const auto done = std::from_chars(text.data(), text.data() + text.size(), value, base);
    if (done.ec != std::errc() || done.ptr != text.data() + text.size()) {
      error("integer out of range or malformed");
    }
    return Value(value);
  }

  const Expr* parenthesised() {
    if (accept_op(")")) return &make(Expr::Kind::Tuple);
    const Expr* inner = tuple_or_expression();
    expect_op(")");
    return inner;
  }

  const Expr* list() {
    Expr& node = make(Expr::Kind::List);
    while (!is_op("]")) {
      add_child(node, expression());
      if (!is_op("]")) expect_op(",");
    }
    expect_op("]");
    return &node;
  }

  const Expr* dict() {
    Expr& node = make(Expr::Kind::Dict);
    while (!is_op("}")) {
      add_child(node, expression());
      expect_op(":");
      add_child(node, expression());
      if (!is_op("}")) expect_op(",");
    }
    expect_op("}");
    return &node;
  }

  const Expr* postfix(const Expr* node) {
    while (true) {
      if (accept_op(".")) {
        if (is(TokenKind::Integer)) {
          const Expr* index = constant(integer(take().text));
          node = &make(Expr::Kind::Subscript, {node, index});
          continue;
        }
        Expr& attribute = make(Expr::Kind::Attribute, {node});
        attribute.text = expect_name("an attribute name");
        node = &attribute;
      } else if (accept_op("[")) {
        node = subscript(node);
      } else if (is_op("(")) {
        node = call(node);
      } else {
        return node;
      }
    }
  }

  const Expr* call(const Expr* callee) {
    Expr& node = make(Expr::Kind::Call, {callee});
    arguments(node);
    return &node;
  }

  const Expr* subscript(const Expr* object) {
    const Expr* bounds[3] = {nullptr, nullptr, nullptr};
    int count = 0;
    bool slice = false;
    while (!is_op("]")) {
      if (accept_op(":")) {
        slice = true;
        if (++count > 2) error("malformed slice");
      } else if (is_op(",")) {
        unsupported("a subscript with a comma");
      } else {
        if (bounds[count]) unexpected("']'");
        bounds[count] = expression();
      }
    }
    expect_op("]");
    if (slice) return &make(Expr::Kind::Slice, {object, bounds[0], bounds[1], bounds[2]});
    if (!bounds[0]) error("empty subscript");
    return &make(Expr::Kind::Subscript, {object, bounds[0]});
  }

  void arguments(Expr& node) {
    expect_op("(");
    CallArgs& args = node.args;
    while (!is_op(")")) {
      if (accept_op("*")) {
        args.star = expression();
        deepen(node, *args.star);
      } else if (accept_op("**")) {
        args.star_star = expression();
        deepen(node, *args.star_star);
      } else if (is(TokenKind::Name) && ahead().kind == TokenKind::Operator &&
                 ahead().text == "=") {
        std::string name = take().text;
        ++at_;
        args.named.emplace_back(std::move(name), expression());
        deepen(node, *args.named.back().second);
      } else {
        if (!args.named.empty()) error("a positional argument follows a named one");
        args.positional.push_back(expression());
        deepen(node, *args.positional.back());
      }
      if (!is_op(")")) expect_op(",");
    }
    expect_op(")");
  }

  std::string dotted_name(std::string_view what) {
    std::string name = expect_name(what);
    while (accept_op(".")) name += "." + expect_name(what);
    return name;
  }

  const Expr* filter(const Expr* input) {
    Expr& node = make(Expr::Kind::Filter, {input});
    node.text = dotted_name("the name of a filter");
    if (is_op("(")) arguments(node);
    return &node;
  }

  // The filters of a block, which apply to its text: input null, '|' only between them.
  const Expr* filter_chain() {
    const Expr* node = filter(nullptr);
    while (accept_op("|")) node = filter(node);
    return node;
  }

  // Filters, tests and calls after an expression.
  const Expr* filters(const Expr* node) {
    while (true) {
      if (accept_op("|")) {
        node = filter(node);
      } else if (is_name("is")) {
        node = test(node);
      } else if (is_op("(")) {
        node = call(node);
      } else {
        return node;
      }
    }
  }

  // A test may take one argument without parentheses.
  bool starts_test_argument() const {
    switch (current().kind) {
      case TokenKind::String:
      case TokenKind::Integer:
      case TokenKind::Float:
        return true;
      case TokenKind::Name:
        for (const char* keyword : {"else", "or", "and", "is", "if", "in", "not", "recursive"}) {
          if (is_name(keyword)) return false;
        }
        return true;
      default:
        return is_op("[") || is_op("{");
    }
  }

  const Expr* test(const Expr* subject) {
    ++at_;  // is
    Expr& node = make(Expr::Kind::Test, {subject});
    node.negated = accept_name("not");
    node.text = dotted_name("the name of a test");
    if (is_op("(")) {
      arguments(node);
    } else if (starts_test_argument()) {
      node.args.positional.push_back(postfix(primary()));
      deepen(node, *node.args.positional.back());
    }
    return &node;
  }

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
  int loops_ = 0;
  Ast ast_;
  std::unordered_map<std::string, size_t> name_ids_;
};

}  // namespace

Ast parse_template(std::string_view source) {
  return Parser(source).run();
}

}  // namespace penstock::text::jinja
