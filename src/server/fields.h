// The members of a JSON object of a request, read by name and type. What nobody asked for is an
// error: a field that is silently ignored makes a client believe in something that does not happen.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>

namespace penstock::server {

using Json = nlohmann::json;  // a sorted map: many members cost n log n

// Parses a request's body: UTF-8, an object, not nested too deeply. Throws ApiError.
Json parse_body(std::string_view body);

class Fields {
 public:
  // `path` names the object in messages: empty for the body, else "messages[2]".
  Fields(const Json& object, std::string path);

  // The member's value; null and missing are the same. Those with a type throw ApiError for another
  // type or a value out of range.
  const Json* any(const char* name);
  std::optional<bool> boolean(const char* name);
  std::optional<int64_t> integer(const char* name, int64_t least, int64_t most);
  std::optional<double> number(const char* name, double least, double most);
  std::optional<std::string> string(const char* name);

  // Members that say nothing about the reply (who asks, where to store).
  void pass_over(std::initializer_list<const char*> names);
  // A member that is not supported unless it has one of these values, which change nothing.
  void refuse_unless(const char* name, std::initializer_list<Json> harmless, const char* why);
  // Throws for the first member that none of the above has named.
  void finish() const;

  std::string path(std::string_view name) const;

 private:
  const Json& object_;
  std::string path_;
  std::set<std::string, std::less<>> known_;
};

}  // namespace penstock::server
