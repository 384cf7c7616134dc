// Arithmetic over a JSON record: numbers, + - * / ( ), unary minus, and JSON pointers (RFC 6901) in
// braces, as in "{/timings/decode/tokens} / {/timings/decode/seconds}". In a pointer an index of -1
// is an array's last element, -2 the one before it. Functions of one pointer to an array: sum, min, max, count; of two
// values: least, most.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace penstock::measure {

class Formula {
 public:
  // Throws Error(Format) that names the column for what is no formula, or is nested too deeply.
  explicit Formula(const std::string& text);

  const std::string& text() const noexcept { return text_; }
  const std::vector<std::string>& pointers() const noexcept { return pointers_; }

  // Throws Error(Format) naming the pointer that leads nowhere or to something that is no number,
  // a division by zero, and a result that is not finite.
  double evaluate(const nlohmann::json& record) const;

 private:
  struct Node {
    char op;             // n number, p pointer, ~ minus, + - * /, f function
    double number = 0;   // of n
    size_t pointer = 0;  // of p and f: index into pointers_
    std::string name = {};
    int left = -1, right = -1;
  };
  friend class FormulaParser;
  double value(const nlohmann::json& record, int node) const;

  std::string text_;
  std::vector<Node> nodes_;
  std::vector<std::string> pointers_;
  int root_ = -1;
};

// What a pointer leads to, or null. "" is the whole record.
const nlohmann::json* resolve_pointer(const nlohmann::json& record, const std::string& pointer);

}  // namespace penstock::measure
