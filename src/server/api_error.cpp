#include "server/api_error.h"

#include <nlohmann/json.hpp>

namespace penstock::server {
namespace {

const char* type_of(int status) noexcept {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    default:
      return status >= 500 ? "server_error" : "invalid_request_error";
  }
}

}  // namespace

std::string ApiError::body() const {
  nlohmann::ordered_json error = {{"message", what()}, {"type", type_of(status_)}};
  error["param"] = param_.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(param_);
  error["code"] = code_;
  for (const auto& [name, value] : numbers_) error[name] = value;
  return nlohmann::ordered_json{{"error", std::move(error)}}.dump(
      -1, ' ', false, nlohmann::json::error_handler_t::replace);
}

ApiError from_engine(const Error& error) {
  switch (error.kind()) {
    case ErrorKind::Usage:
      return {400, "invalid_request", error.what()};
    case ErrorKind::Numeric:
      return {500, "non_finite_numbers", error.what()};
    case ErrorKind::Io:
      return {500, "model_read_failed", error.what()};
    case ErrorKind::Watchdog:
      return {500, "out_of_memory", error.what()};
    case ErrorKind::Format:
      return {500, "model_file_invalid", error.what()};
    case ErrorKind::Unsupported:
      return {400, "unsupported_by_model", error.what()};
    default:
      return {500, "internal_error", error.what()};
  }
}

}  // namespace penstock::server
