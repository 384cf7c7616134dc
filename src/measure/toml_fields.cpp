#include "measure/toml_fields.h"

#include <fmt/format.h>

#include <cmath>

#include "base/error.h"

namespace penstock::measure {

std::string TomlFields::text(const char* key, std::optional<std::string> fallback) {
  const toml::node* node = take(key, fallback.has_value());
  if (node == nullptr) return *fallback;
  const auto value = node->value_exact<std::string>();
  if (!value) wrong(*node, key, "a text");
  return *value;
}

std::string TomlFields::argument(const char* key) {
  const toml::node* node = take(key, true);
  if (node == nullptr) return {};
  if (const auto text = node->value_exact<std::string>()) return *text;
  if (const auto whole = node->value_exact<int64_t>()) return fmt::format("{}", *whole);
  if (const auto number = node->value_exact<double>()) {
    const std::string text = fmt::format("{}", *number);
    // 1.0 stays a share and does not become a count.
    return text.find_first_of(".en") == std::string::npos ? text + ".0" : text;
  }
  wrong(*node, key, "a number or a text");
}

std::vector<std::string> TomlFields::texts(const char* key, bool required) {
  const toml::node* node = take(key, !required);
  std::vector<std::string> values;
  if (node == nullptr) return values;
  if (const auto one = node->value_exact<std::string>()) return {*one};
  const toml::array* array = node->as_array();
  if (array == nullptr) wrong(*node, key, "a text or a list of texts");
  for (const toml::node& element : *array) {
    const auto value = element.value_exact<std::string>();
    if (!value) wrong(element, key, "a list of texts");
    values.push_back(*value);
  }
  return values;
}

std::vector<double> TomlFields::numbers(const char* key) {
  const toml::node* node = take(key, true);
  std::vector<double> values;
  if (node == nullptr) return values;
  if (const auto one = node->value<double>()) return {*one};
  const toml::array* array = node->as_array();
  if (array == nullptr) wrong(*node, key, "a number or a list of numbers");
  for (const toml::node& element : *array) {
    const auto value = element.value<double>();
    if (!value || !std::isfinite(*value)) wrong(element, key, "a list of numbers");
    values.push_back(*value);
  }
  return values;
}

double TomlFields::number(const char* key, double fallback, double low, double high) {
  const toml::node* node = take(key, true);
  if (node == nullptr) return fallback;
  const auto value = node->value<double>();
  if (!value || !(*value >= low && *value <= high)) {
    wrong(*node, key, fmt::format("a number from {} to {}", low, high));
  }
  return *value;
}

bool TomlFields::flag(const char* key, bool fallback) {
  const toml::node* node = take(key, true);
  if (node == nullptr) return fallback;
  const auto value = node->value_exact<bool>();
  if (!value) wrong(*node, key, "true or false");
  return *value;
}

void TomlFields::finish() const {
  for (const auto& [key, node] : table_) {
    if (taken_.contains(std::string(key.str()))) continue;
    fail(ErrorKind::Format, "{}: line {}: {} has no field '{}'", path_, node.source().begin.line,
         where_, key.str());
  }
}

const toml::node* TomlFields::take(const char* key, bool optional) {
  taken_.insert(key);
  const toml::node* node = table_.get(key);
  if (node == nullptr && !optional) {
    fail(ErrorKind::Format, "{}: {} needs the field '{}'", path_, where_, key);
  }
  return node;
}

void TomlFields::wrong(const toml::node& node, const char* key, const std::string& what) const {
  fail(ErrorKind::Format, "{}: line {}: {}.{} must be {}", path_, node.source().begin.line, where_,
       key, what);
}

toml::table parse_toml(const std::string& text, const std::string& path) {
  try {
    return toml::parse(text, path);
  } catch (const toml::parse_error& error) {
    fail(ErrorKind::Format, "{}: line {}, column {}: {}", path, error.source().begin.line,
         error.source().begin.column, error.description());
  }
}

std::vector<const toml::table*> toml_tables(const toml::table& root, const char* key,
                                            const std::string& path) {
  std::vector<const toml::table*> out;
  const toml::node* node = root.get(key);
  if (node == nullptr) return out;
  const toml::array* array = node->as_array();
  if (array == nullptr) {
    fail(ErrorKind::Format, "{}: line {}: {} must be [[{}]]", path, node->source().begin.line, key,
         key);
  }
  for (const toml::node& element : *array) {
    if (!element.is_table()) {
      fail(ErrorKind::Format, "{}: line {}: {} must be [[{}]]", path, element.source().begin.line,
           key, key);
    }
    out.push_back(element.as_table());
  }
  return out;
}

}  // namespace penstock::measure
