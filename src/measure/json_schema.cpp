#include "measure/json_schema.h"

#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "base/error.h"
#include "base/json_nesting.h"

namespace penstock::measure {
namespace {

using Json = nlohmann::json;

bool is_type(const Json& value, const std::string& type) {
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "string") return value.is_string();
  if (type == "integer") return value.is_number_integer();
  if (type == "number") return value.is_number();
  if (type == "boolean") return value.is_boolean();
  if (type == "null") return value.is_null();
  fail(ErrorKind::Internal, "schema: unknown type '{}'", type);
}

class Checker {
 public:
  Checker(const Json& root, size_t most, std::vector<std::string>* problems)
      : root_(root), most_(most), problems_(problems) {}

  void check(const Json& schema, const Json& value, const std::string& at) {
    if (problems_->size() >= most_) return;
    for (const auto& [keyword, rule] : schema.items()) {
      if (!known(keyword)) fail(ErrorKind::Internal, "schema: unknown keyword '{}'", keyword);
    }
    if (schema.contains("$ref")) {
      const std::string ref = schema["$ref"];
      check(root_.at(Json::json_pointer(ref.substr(1))), value, at);
      return;
    }
    if (schema.contains("type") && !has_type(schema["type"], value)) {
      report(at, fmt::format("is not of type {}", schema["type"].dump()));
      return;
    }
    if (schema.contains("const") && value != schema["const"]) {
      report(at, fmt::format("is not {}", schema["const"].dump()));
    }
    if (schema.contains("enum")) {
      bool found = false;
      for (const Json& allowed : schema["enum"]) found = found || allowed == value;
      if (!found) report(at, fmt::format("is none of {}", schema["enum"].dump()));
    }
    if (schema.contains("minimum") && value.is_number() &&
        value.get<double>() < schema["minimum"].get<double>()) {
      report(at, fmt::format("is less than {}", schema["minimum"].dump()));
    }
    if (schema.contains("pattern") && value.is_string() &&
        !std::regex_search(value.get_ref<const std::string&>(),
                           std::regex(schema["pattern"].get<std::string>()))) {
      report(at, fmt::format("does not match {}", schema["pattern"].dump()));
    }
    if (value.is_object()) check_object(schema, value, at);
    if (value.is_array()) check_array(schema, value, at);
  }

 private:
  static bool known(const std::string& keyword) {
    static const std::set<std::string> keywords = {
        "$schema", "$id",         "$defs",    "$ref",     "title",      "description",
        "type",    "const",       "enum",     "required", "properties", "additionalProperties",
        "items",   "prefixItems", "minItems", "maxItems", "minimum",    "pattern"};
    return keywords.count(keyword) != 0;
  }

  static bool has_type(const Json& types, const Json& value) {
    if (types.is_string()) return is_type(value, types);
    for (const Json& type : types) {
      if (is_type(value, type)) return true;
    }
    return false;
  }

  void check_object(const Json& schema, const Json& value, const std::string& at) {
    if (schema.contains("required")) {
      for (const Json& name : schema["required"]) {
        if (!value.contains(name.get<std::string>())) {
          report(at, fmt::format("has no {}", name.dump()));
        }
      }
    }
    const Json none = Json::object();
    const Json& properties = schema.contains("properties") ? schema["properties"] : none;
    const bool closed = schema.contains("additionalProperties");
    for (const auto& [name, member] : value.items()) {
      if (properties.contains(name)) {
        check(properties[name], member, at + "/" + name);
      } else if (closed && schema["additionalProperties"].is_object()) {
        check(schema["additionalProperties"], member, at + "/" + name);
      } else if (closed) {
        report(at, fmt::format("has the unknown member '{}'", name));
      }
    }
  }

  void check_array(const Json& schema, const Json& value, const std::string& at) {
    if (schema.contains("minItems") && value.size() < schema["minItems"].get<size_t>()) {
      report(at,
             fmt::format("has {} items, {} are needed", value.size(), schema["minItems"].dump()));
    }
    if (schema.contains("maxItems") && value.size() > schema["maxItems"].get<size_t>()) {
      report(at,
             fmt::format("has {} items, {} are allowed", value.size(), schema["maxItems"].dump()));
    }
    if (schema.contains("prefixItems")) {
      const Json& rules = schema["prefixItems"];
      for (size_t i = 0; i < rules.size() && i < value.size(); ++i) {
        check(rules[i], value[i], at + "/" + std::to_string(i));
      }
    }
    if (!schema.contains("items")) return;
    for (size_t i = 0; i < value.size() && problems_->size() < most_; ++i) {
      check(schema["items"], value[i], at + "/" + std::to_string(i));
    }
  }

  void report(const std::string& at, const std::string& what) {
    if (problems_->size() < most_)
      problems_->push_back((at.empty() ? "the document" : at) + " " + what);
  }

  const Json& root_;
  size_t most_;
  std::vector<std::string>* problems_;
};

}  // namespace

std::vector<std::string> schema_problems(const Json& schema, const Json& value, size_t most) {
  std::vector<std::string> problems;
  Checker(schema, most, &problems).check(schema, value, "");
  return problems;
}

Json parse_json(const std::string& text, const std::string& path) {
  constexpr size_t kDeepest = 64;
  if (json_nesting(text) > kDeepest) {
    fail(ErrorKind::Format, "{}: nested more than {} deep", path, kDeepest);
  }
  try {
    return Json::parse(text);
  } catch (const Json::exception& error) {
    fail(ErrorKind::Format, "{} is no JSON: {}", path, error.what());
  }
}

}  // namespace penstock::measure
