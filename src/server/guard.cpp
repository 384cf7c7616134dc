#include "server/guard.h"

#include <arpa/inet.h>
#include <openssl/crypto.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"

namespace penstock::server {
namespace {

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

bool is_address(const std::string& name) {
  std::array<unsigned char, sizeof(in6_addr)> bytes{};
  return inet_pton(AF_INET, name.c_str(), bytes.data()) == 1 ||
         inet_pton(AF_INET6, name.c_str(), bytes.data()) == 1;
}

bool is_loopback(const std::string& name) {
  if (name == "localhost" || name.ends_with(".localhost")) return true;
  in_addr v4{};
  if (inet_pton(AF_INET, name.c_str(), &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
  in6_addr v6{};
  return inet_pton(AF_INET6, name.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

Sha256 digest(std::string_view text) {
  Sha256Stream stream;
  stream.update(text.data(), text.size());
  return stream.finish();
}

}  // namespace

std::optional<std::string> host_name(std::string_view host) {
  std::string_view name = host, port;
  if (host.starts_with('[')) {
    const size_t end = host.find(']');
    if (end == std::string_view::npos) return std::nullopt;
    name = host.substr(1, end - 1);
    port = host.substr(end + 1);
  } else if (const size_t colon = host.find(':'); colon != std::string_view::npos) {
    name = host.substr(0, colon);
    port = host.substr(colon);
  }
  if (!port.empty() && (port.size() > 6 || port.front() != ':' ||
                        port.substr(1).find_first_not_of("0123456789") != std::string_view::npos)) {
    return std::nullopt;
  }
  if (name.ends_with('.')) name.remove_suffix(1);
  if (name.empty()) return std::nullopt;
  return lower(name);
}

Guard::Guard(const ServerOptions& options) : origins_(options.allow_origins) {
  for (const std::string& key : options.api_keys) keys_.push_back(digest(key));
  if (!is_loopback(options.host) && keys_.empty()) {
    fail(ErrorKind::Usage,
         "--host {} can be reached from other machines: that needs --api-key-file FILE (or stay "
         "with 127.0.0.1)",
         options.host);
  }
  for (const std::string& name : options.allow_hosts) names_.push_back(lower(name));
  names_.push_back(lower(options.host));
  std::array<char, 256> own{};
  if (gethostname(own.data(), own.size() - 1) == 0) names_.push_back(lower(own.data()));
}

// Addresses cannot be rebound: a page that is at an address is from the machine that has it, and
// the origin check compares it with ours.
bool Guard::is_own_name(std::string_view name) const {
  const std::string text(name);
  return is_loopback(text) || std::find(names_.begin(), names_.end(), text) != names_.end();
}

void Guard::check_host(std::string_view host) const {
  const std::optional<std::string> name = host_name(host);
  if (name && (is_own_name(*name) || is_address(*name))) return;
  throw ApiError(403, "host_not_allowed",
                 fmt::format("the Host header '{}' does not name this machine: a web page may be "
                             "behind it. If it is a name of yours: --allow-host NAME",
                             host.substr(0, 100)));
}

void Guard::check_origin(std::string_view origin) const {
  if (std::find(origins_.begin(), origins_.end(), origin) != origins_.end()) return;
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!origin.starts_with(scheme)) continue;
    const std::optional<std::string> name = host_name(origin.substr(scheme.size()));
    if (name && is_own_name(*name)) return;
  }
  throw ApiError(403, "origin_not_allowed",
                 fmt::format("requests from the page or extension '{}' are refused; to allow them: "
                             "--allow-origin '{}'",
                             origin.substr(0, 100), origin.substr(0, 100)));
}

void Guard::check_key(std::string_view authorization) const {
  if (keys_.empty()) return;
  constexpr std::string_view kScheme = "bearer ";
  const bool has_scheme = lower(authorization.substr(0, kScheme.size())) == kScheme;
  const Sha256 given = digest(has_scheme ? authorization.substr(kScheme.size()) : "");
  // Digests of equal length, all of them, in constant time: how long it takes says nothing.
  int right = 0;
  for (const Sha256& key : keys_) {
    right |= static_cast<int>(CRYPTO_memcmp(key.data(), given.data(), key.size()) == 0);
  }
  if (has_scheme && right != 0) return;
  throw ApiError(401, "invalid_api_key",
                 has_scheme ? "this API key is not one of the server's"
                            : "an API key is needed: Authorization: Bearer KEY");
}

std::vector<std::string> read_api_keys(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) == 0 && (info.st_mode & 077) != 0) {
    log::warn("{} can be read by other users of this machine: chmod 600 '{}'", path, path);
  }
  std::vector<std::string> keys;
  std::istringstream lines(read_text_file(path));
  for (std::string line; std::getline(lines, line);) {
    if (const size_t comment = line.find('#'); comment != std::string::npos) line.resize(comment);
    const size_t first = line.find_first_not_of(" \t\r");
    if (first == std::string::npos) continue;
    keys.push_back(line.substr(first, line.find_last_not_of(" \t\r") - first + 1));
  }
  if (keys.empty()) fail(ErrorKind::Usage, "{}: there is no key in it, one a line", path);
  return keys;
}

}  // namespace penstock::server
