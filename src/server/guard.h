// Who may ask: API keys, and the Host and Origin headers, which keep web pages out.
//
// A page from anywhere can make a browser send requests to this machine. Its Origin header names
// the page; and a page whose own name was made to resolve to this machine (DNS rebinding) is known
// by the Host header. So both must name this machine, or what the user allowed.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "server/api_error.h"
#include "server/options.h"

namespace penstock::server {

class Guard {
 public:
  // Throws Error(Usage) for an address beyond this machine without an API key.
  explicit Guard(const ServerOptions& options);

  // Each throws ApiError: 403 or 401.
  void check_host(std::string_view host) const;
  void check_origin(std::string_view origin) const;
  void check_key(std::string_view authorization) const;
  bool asks_for_key() const noexcept { return !keys_.empty(); }

 private:
  bool is_own_name(std::string_view name) const;

  std::vector<std::string> names_;    // lower case
  std::vector<std::string> origins_;  // as they are
  std::vector<Sha256> keys_;
};

// The name or address of "name:port", "[::1]:port" or "name"; none for anything else.
std::optional<std::string> host_name(std::string_view host);

// Keys of a file, one a line; # begins a comment. Throws Error(Usage) when there is none in it.
std::vector<std::string> read_api_keys(const std::string& path);

}  // namespace penstock::server
