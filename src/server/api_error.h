// An error as the API reports it: an HTTP status and {"error": {message, type, param, code}}.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace penstock::server {

class ApiError : public std::runtime_error {
 public:
  ApiError(int status, std::string code, const std::string& message)
      : std::runtime_error(message), status_(status), code_(std::move(code)) {}

  ApiError&& param(std::string name) && {
    param_ = std::move(name);
    return std::move(*this);
  }
  ApiError&& number(std::string name, int64_t value) && {  // a further member of the object
    numbers_.emplace_back(std::move(name), value);
    return std::move(*this);
  }

  int status() const noexcept { return status_; }
  const std::string& code() const noexcept { return code_; }
  std::string body() const;  // the JSON object

 private:
  int status_;
  std::string code_, param_;
  std::vector<std::pair<std::string, int64_t>> numbers_;
};

// 400 for the field `param` of a request.
template <typename... Args>
ApiError bad_field(std::string param, const char* code, fmt::format_string<Args...> format,
                   Args&&... args) {
  return ApiError(400, code, fmt::format(format, std::forward<Args>(args)...))
      .param(std::move(param));
}

// What went wrong while the model ran.
ApiError from_engine(const Error& error);

}  // namespace penstock::server
