#include "server/fields.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/json_nesting.h"
#include "server/api_error.h"

namespace penstock::server {
namespace {

constexpr size_t kMaxDepth = 32;

}  // namespace

Json parse_body(std::string_view body) {
  if (json_nesting(body) > kMaxDepth) {
    throw ApiError(400, "invalid_json",
                   fmt::format("the body is nested more than {} deep", kMaxDepth));
  }
  Json json;
  try {
    json = Json::parse(body);
  } catch (const nlohmann::json::exception& error) {
    throw ApiError(400, "invalid_json", fmt::format("the body is not JSON: {}", error.what()));
  }
  if (!json.is_object()) {
    throw ApiError(400, "invalid_json",
                   fmt::format("the body is a JSON {}, not an object", json.type_name()));
  }
  return json;
}

Fields::Fields(const Json& object, std::string path) : object_(object), path_(std::move(path)) {
  if (!object.is_object()) {
    throw bad_field(path_, "invalid_type", "{} is a JSON {}, not an object", path_,
                    object.type_name());
  }
}

std::string Fields::path(std::string_view name) const {
  return path_.empty() ? std::string(name) : fmt::format("{}.{}", path_, name);
}

const Json* Fields::any(const char* name) {
  known_.insert(name);
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

std::optional<bool> Fields::boolean(const char* name) {
  const Json* value = any(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) {
    throw bad_field(path(name), "invalid_type", "{} is a JSON {}, not true or false", path(name),
                    value->type_name());
  }
  return value->get<bool>();
}

std::optional<int64_t> Fields::integer(const char* name, int64_t least, int64_t most) {
  const Json* value = any(name);
  if (value == nullptr) return std::nullopt;
  int64_t number = 0;
  if (value->is_number_unsigned()) {
    number = static_cast<int64_t>(std::min(
        value->get<uint64_t>(), static_cast<uint64_t>(std::numeric_limits<int64_t>::max())));
  } else if (value->is_number_integer()) {
    number = value->get<int64_t>();
  } else if (value->is_number_float() && std::trunc(value->get<double>()) == value->get<double>() &&
             std::abs(value->get<double>()) < 0x1p53) {
    number = static_cast<int64_t>(value->get<double>());  // 16.0, as some clients write it
  } else {
    throw bad_field(path(name), "invalid_type", "{} is not an integer", path(name));
  }
  if (number < least || number > most) {
    throw bad_field(path(name), "invalid_value", "{} = {} is out of range: {} to {}", path(name),
                    number, least, most);
  }
  return number;
}

std::optional<double> Fields::number(const char* name, double least, double most) {
  const Json* value = any(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) {
    throw bad_field(path(name), "invalid_type", "{} is a JSON {}, not a number", path(name),
                    value->type_name());
  }
  const auto number = value->get<double>();
  if (!(number >= least && number <= most)) {
    throw bad_field(path(name), "invalid_value", "{} = {} is out of range: {} to {}", path(name),
                    number, least, most);
  }
  return number;
}

std::optional<std::string> Fields::string(const char* name) {
  const Json* value = any(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) {
    throw bad_field(path(name), "invalid_type", "{} is a JSON {}, not a string", path(name),
                    value->type_name());
  }
  return value->get<std::string>();
}

void Fields::pass_over(std::initializer_list<const char*> names) {
  for (const char* name : names) known_.insert(name);
}

void Fields::refuse_unless(const char* name, std::initializer_list<Json> harmless,
                           const char* why) {
  const Json* value = any(name);
  if (value == nullptr || std::find(harmless.begin(), harmless.end(), *value) != harmless.end()) {
    return;
  }
  throw bad_field(path(name), "unsupported_parameter", "{} is not supported: {}", path(name), why);
}

void Fields::finish() const {
  for (const auto& member : object_.items()) {
    if (known_.contains(member.key()) || member.value().is_null()) continue;
    throw bad_field(path(member.key()), "unknown_parameter",
                    "{} is not a parameter of this server; it is refused because ignoring it could "
                    "change what you expect: leave it away",
                    path(member.key()));
  }
}

}  // namespace penstock::server
