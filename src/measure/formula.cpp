#include "measure/formula.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace penstock::measure {
namespace {

using Json = nlohmann::json;

constexpr int kDeepest = 64;
constexpr size_t kLongest = 4096;

bool known_function(const std::string& name) {
  static const std::vector<std::string> names = {"sum", "min", "max", "count", "least", "most"};
  return std::find(names.begin(), names.end(), name) != names.end();
}

double number_at(const Json& record, const std::string& pointer) {
  const Json* found = resolve_pointer(record, pointer);
  if (found == nullptr) fail(ErrorKind::Format, "there is nothing at {}", pointer);
  if (!found->is_number()) {
    fail(ErrorKind::Format, "{} is {}, not a number", pointer, found->type_name());
  }
  const double value = found->get<double>();
  if (!std::isfinite(value)) fail(ErrorKind::Format, "{} is not finite", pointer);
  return value;
}

}  // namespace

const Json* resolve_pointer(const Json& record, const std::string& pointer) {
  const Json* now = &record;
  size_t at = 0;
  while (at < pointer.size()) {
    if (pointer[at] != '/') return nullptr;
    const size_t end = std::min(pointer.find('/', at + 1), pointer.size());
    std::string token;
    for (size_t i = at + 1; i < end; ++i) {
      if (pointer[i] == '~' && i + 1 < end && (pointer[i + 1] == '0' || pointer[i + 1] == '1')) {
        token += pointer[++i] == '0' ? '~' : '/';
      } else {
        token += pointer[i];
      }
    }
    if (now->is_object()) {
      const auto found = now->find(token);
      if (found == now->end()) return nullptr;
      now = &*found;
    } else if (now->is_array()) {
      int64_t index = 0;
      const auto [rest, error] = std::from_chars(token.data(), token.data() + token.size(), index);
      if (error != std::errc() || rest != token.data() + token.size()) return nullptr;
      if (index < 0) index += static_cast<int64_t>(now->size());
      if (index < 0 || static_cast<size_t>(index) >= now->size()) return nullptr;
      now = &(*now)[static_cast<size_t>(index)];
    } else {
      return nullptr;
    }
    at = end;
  }
  return now;
}

class FormulaParser {
 public:
  explicit FormulaParser(Formula& out) : out_(out), text_(out.text_) {}

  int whole() {
    const int root = sum();
    if (peek() != '\0') wrong("an operator");
    return root;
  }

 private:
  [[noreturn]] void wrong(const char* wanted) const {
    fail(ErrorKind::Format, "formula '{}': column {}: {} was expected", text_, at_ + 1, wanted);
  }
  char peek() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  int add(Formula::Node node) {
    out_.nodes_.push_back(std::move(node));
    return static_cast<int>(out_.nodes_.size()) - 1;
  }
  int sum() {
    int left = product();
    for (char op = peek(); op == '+' || op == '-'; op = peek()) {
      ++at_;
      const int right = product();
      left = add({.op = op, .left = left, .right = right});
    }
    return left;
  }
  int product() {
    int left = factor();
    for (char op = peek(); op == '*' || op == '/'; op = peek()) {
      ++at_;
      const int right = factor();
      left = add({.op = op, .left = left, .right = right});
    }
    return left;
  }
  int factor() {
    if (++depth_ > kDeepest) wrong("less nesting");
    const int node = unnested();
    --depth_;
    return node;
  }
  int unnested() {
    const char c = peek();
    if (c == '-') {
      ++at_;
      return add({.op = '~', .left = factor()});
    }
    if (c == '(') {
      ++at_;
      const int inner = sum();
      expect(')', "a closing parenthesis");
      return inner;
    }
    if (c == '{') return add({.op = 'p', .pointer = pointer()});
    if (c >= 'a' && c <= 'z') return function();
    double number = 0;
    const char* const begin = text_.data() + at_;
    const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), number);
    if (error != std::errc() || !std::isfinite(number)) wrong("a number, a {/pointer} or (");
    at_ += static_cast<size_t>(end - begin);
    return add({.op = 'n', .number = number});
  }
  int function() {
    const size_t begin = at_;
    while (at_ < text_.size() && text_[at_] >= 'a' && text_[at_] <= 'z') ++at_;
    const std::string name = text_.substr(begin, at_ - begin);
    if (!known_function(name)) {
      at_ = begin;
      wrong("sum, min, max, count, least or most");
    }
    expect('(', "an opening parenthesis");
    Formula::Node node{.op = 'f', .name = name};
    if (name == "least" || name == "most") {
      node.left = sum();
      expect(',', "a comma");
      node.right = sum();
    } else {
      if (peek() != '{') wrong("a {/pointer}");
      node.pointer = pointer();
    }
    expect(')', "a closing parenthesis");
    return add(std::move(node));
  }
  void expect(char c, const char* wanted) {
    if (peek() != c) wrong(wanted);
    ++at_;
  }
  size_t pointer() {
    const size_t end = text_.find('}', at_);
    if (end == std::string::npos) wrong("a closing brace");
    std::string found = text_.substr(at_ + 1, end - at_ - 1);
    if (!found.empty() && found[0] != '/') wrong("a pointer that begins with /");
    at_ = end + 1;
    out_.pointers_.push_back(std::move(found));
    return out_.pointers_.size() - 1;
  }

  Formula& out_;
  const std::string& text_;
  size_t at_ = 0;
  int depth_ = 0;
};

Formula::Formula(const std::string& text) : text_(text) {
  if (text.size() > kLongest) fail(ErrorKind::Format, "a formula of {} characters", text.size());
  root_ = FormulaParser(*this).whole();
}

double Formula::value(const Json& record, int index) const {
  const Node& node = nodes_[static_cast<size_t>(index)];
  switch (node.op) {
    case 'n':
      return node.number;
    case 'p':
      return number_at(record, pointers_[node.pointer]);
    case '~':
      return -value(record, node.left);
    case '+':
      return value(record, node.left) + value(record, node.right);
    case '-':
      return value(record, node.left) - value(record, node.right);
    case '*':
      return value(record, node.left) * value(record, node.right);
    case '/': {
      const double below = value(record, node.right);
      if (below == 0) fail(ErrorKind::Format, "formula '{}': a division by zero", text_);
      return value(record, node.left) / below;
    }
    default:
      break;
  }
  if (node.name == "least" || node.name == "most") {
    const double a = value(record, node.left), b = value(record, node.right);
    return node.name == "least" ? std::min(a, b) : std::max(a, b);
  }
  const std::string& pointer = pointers_[node.pointer];
  const Json* list = resolve_pointer(record, pointer);
  if (list == nullptr) fail(ErrorKind::Format, "there is nothing at {}", pointer);
  if (!list->is_array()) fail(ErrorKind::Format, "{} is no array", pointer);
  if (node.name == "count") return static_cast<double>(list->size());
  if (list->empty()) fail(ErrorKind::Format, "{} is empty", pointer);
  double out = node.name == "sum" ? 0 : number_at((*list)[0], "");
  for (const Json& element : *list) {
    const double x = number_at(element, "");
    out = node.name == "sum" ? out + x : node.name == "min" ? std::min(out, x) : std::max(out, x);
  }
  return out;
}

double Formula::evaluate(const Json& record) const {
  const double result = value(record, root_);
  if (!std::isfinite(result)) fail(ErrorKind::Format, "formula '{}' is not finite", text_);
  return result;
}

}  // namespace penstock::measure
