#include "server/connection.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "base/clock.h"

namespace penstock::server {
namespace {

thread_local Connection* t_current = nullptr;

int64_t after(double seconds) {
  return now_ns() + static_cast<int64_t>(seconds * 1e9);
}

// Waits for `events`; false after the deadline or on an error.
bool wait_for(int fd, int16_t events, int64_t deadline_ns) {
  for (;;) {
    const int64_t left = deadline_ns - now_ns();
    if (left <= 0) return false;
    pollfd request{fd, events, 0};
    const int n =
        poll(&request, 1, static_cast<int>(std::min<int64_t>(left / 1'000'000 + 1, 60'000)));
    if (n > 0) return true;
    if (n < 0 && errno != EINTR) return false;
  }
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

bool same_name(std::string_view a, std::string_view b) {
  return a.size() == b.size() && strncasecmp(a.data(), b.data(), a.size()) == 0;
}

ApiError bad_head(const char* message) {
  return {400, "bad_request", message};
}

const char* reason_phrase(int status) {
  switch (status) {
    case 400:
      return "Bad Request";
    case 408:
      return "Request Timeout";
    case 411:
      return "Length Required";
    case 413:
      return "Payload Too Large";
    case 414:
      return "URI Too Long";
    case 431:
      return "Request Header Fields Too Large";
    case 501:
      return "Not Implemented";
    default:
      return "Service Unavailable";
  }
}

std::pair<std::string, int> name_of(const sockaddr_storage& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (address.ss_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
    inet_ntop(AF_INET6, &v6.sin6_addr, text.data(), text.size());
    return {text.data(), ntohs(v6.sin6_port)};
  }
  const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
  inet_ntop(AF_INET, &v4.sin_addr, text.data(), text.size());
  return {text.data(), ntohs(v4.sin_port)};
}

}  // namespace

Connection::Connection(int fd, const Limits& limits, const std::atomic<bool>& closing)
    : fd_(fd), limits_(limits), closing_(closing) {
  const int on = 1;
  setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);  // an event is sent when it is there
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (getpeername(fd_, reinterpret_cast<sockaddr*>(&address), &length) == 0) {
    std::tie(remote_, remote_port_) = name_of(address);
  }
  t_current = this;
}

Connection::~Connection() {
  t_current = nullptr;
  close(fd_);
}

Connection* Connection::current() noexcept {
  return t_current;
}

ssize_t Connection::receive(int64_t deadline_ns) {
  std::array<char, 16384> chunk;
  for (;;) {
    const ssize_t n = recv(fd_, chunk.data(), chunk.size(), MSG_DONTWAIT);
    if (n > 0) {
      buffer_.append(chunk.data(), static_cast<size_t>(n));
      return n;
    }
    if (n == 0) return 0;
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) return -1;
    if (!wait_for(fd_, POLLIN, deadline_ns)) return -1;
  }
}

bool Connection::read_head() {
  buffer_.erase(0, taken_);
  taken_ = 0;
  body_read_ = 0;
  body_too_large_ = false;
  // The first byte may take its time; looking up now and then for the end of the server.
  const int64_t idle = after(limits_.idle_seconds);
  while (buffer_.empty()) {
    if ((closing_ && !first_) || now_ns() > idle) return false;
    if (!wait_for(fd_, POLLIN, std::min(idle, after(0.1)))) continue;
    if (receive(idle) <= 0) return false;
  }
  first_ = false;
  // An HTTPS client greets with a byte that no method begins with.
  if (buffer_[0] < 'A' || buffer_[0] > 'Z') {
    throw bad_head("this is not an HTTP request (the server speaks HTTP, not HTTPS)");
  }
  const int64_t deadline = after(limits_.head_seconds);
  size_t searched = 0;
  for (;;) {
    const size_t end = buffer_.find("\r\n\r\n", searched);
    if (end != std::string::npos && end + 4 <= limits_.head_bytes) {
      head_left_ = end + 4;
      check_head(std::string_view(buffer_).substr(0, end + 2));
      return true;
    }
    const size_t line = buffer_.find("\r\n");
    if (line == std::string::npos ? buffer_.size() > limits_.line_bytes
                                  : line > limits_.line_bytes) {
      throw ApiError(414, "uri_too_long",
                     fmt::format("the request line is longer than {} bytes", limits_.line_bytes));
    }
    if (end != std::string::npos || buffer_.size() >= limits_.head_bytes) {
      throw ApiError(431, "headers_too_large",
                     fmt::format("the headers are longer than {} bytes", limits_.head_bytes));
    }
    searched = buffer_.size() < 3 ? 0 : buffer_.size() - 3;
    const ssize_t n = receive(deadline);
    if (n == 0) return false;
    if (n < 0) {
      if (now_ns() < deadline) return false;
      throw ApiError(408, "request_timeout", "the headers took too long to arrive");
    }
  }
}

// Refuses what two readers could understand differently, so that the library's reading is the only
// one. `head`: lines, each with its CRLF.
void Connection::check_head(std::string_view head) {
  body_ = Body::None;
  if (head.find('\0') != std::string_view::npos) throw bad_head("the headers hold a zero byte");
  const std::string_view first = head.substr(0, head.find("\r\n"));
  const bool may_have_body =
      first.starts_with("POST ") || first.starts_with("PUT ") || first.starts_with("PATCH ");
  const bool old = first.ends_with(" HTTP/1.0");
  int hosts = 0, lengths = 0, encodings = 0;
  std::string kept(first);
  kept += "\r\n";
  for (size_t at = kept.size(); at < head.size();) {
    const size_t end = head.find("\r\n", at);
    const std::string_view line = head.substr(at, end - at);
    at = end + 2;
    if (line.size() > limits_.line_bytes) {
      throw ApiError(431, "headers_too_large",
                     fmt::format("a header is longer than {} bytes", limits_.line_bytes));
    }
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos || colon == 0 ||
        line.find_first_of("\r\n") != std::string_view::npos ||
        line.substr(0, colon).find_first_of(" \t") != std::string_view::npos) {
      throw bad_head("a header line is not NAME: VALUE");
    }
    const std::string_view name = line.substr(0, colon), value = trim(line.substr(colon + 1));
    if (same_name(name, "range")) continue;  // replies are sent whole
    kept.append(line).append("\r\n");
    if (same_name(name, "host")) ++hosts;
    if (same_name(name, "transfer-encoding")) {
      if (!same_name(value, "chunked")) {
        throw ApiError(501, "not_implemented", "the only Transfer-Encoding taken is chunked");
      }
      ++encodings;
      body_ = Body::Chunked;
    }
    if (same_name(name, "content-length")) {
      ++lengths;
      const auto [rest, error] =
          std::from_chars(value.data(), value.data() + value.size(), body_left_);
      if (error != std::errc() || rest != value.data() + value.size()) {
        throw bad_head("Content-Length is not a number");
      }
      if (body_left_ > 0) body_ = Body::Counted;
    }
  }
  if (hosts > 1 || (hosts == 0 && !old)) throw bad_head("there must be one Host header");
  if (lengths > 1 || encodings > 1 || lengths + encodings > 1) {
    throw bad_head("the length of the body is given more than once");
  }
  if (may_have_body && lengths + encodings == 0) {
    throw ApiError(411, "length_required", "a body needs a Content-Length header");
  }
  if (body_ == Body::Counted && body_left_ > limits_.body_bytes) {
    throw ApiError(
        413, "body_too_large",
        fmt::format("the body has {} bytes; at most {} are taken", body_left_, limits_.body_bytes));
  }
  kept += "\r\n";
  buffer_.replace(0, head_left_, kept);
  head_left_ = kept.size();
  body_deadline_ = after(limits_.body_seconds);
}

bool Connection::gone() const noexcept {
  pollfd request{fd_, POLLRDHUP, 0};
  return poll(&request, 1, 0) > 0 && (request.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

bool Connection::is_readable() const {
  return taken_ < buffer_.size() || wait_for(fd_, POLLIN, after(0));
}

bool Connection::is_writable() const {
  return !write_failed_ && !gone();
}

ssize_t Connection::read(char* data, size_t size) {
  if (head_left_ == 0 && body_ == Body::Counted) {
    size = static_cast<size_t>(std::min<uint64_t>(size, body_left_));
  }
  if (size == 0) return 0;
  if (taken_ == buffer_.size()) {
    buffer_.clear();
    taken_ = 0;
    if (receive(body_deadline_) <= 0) {
      read_failed_ = true;
      return -1;
    }
  }
  size_t n = std::min(size, buffer_.size() - taken_);
  if (head_left_ > 0) n = std::min(n, head_left_);
  std::copy_n(buffer_.data() + taken_, n, data);
  taken_ += n;
  if (head_left_ > 0) {
    head_left_ -= n;
    return static_cast<ssize_t>(n);
  }
  body_read_ += n;
  if (body_ == Body::Counted && (body_left_ -= n) == 0) body_ = Body::None;
  // Chunk headers count too: a body of tiny chunks is refused as well.
  if (body_read_ > 2 * limits_.body_bytes) {
    body_too_large_ = read_failed_ = true;
    return -1;
  }
  return static_cast<ssize_t>(n);
}

ssize_t Connection::write(const char* data, size_t size) {
  if (write_failed_) return -1;
  for (;;) {
    const ssize_t n = send(fd_, data, size, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n >= 0) return n;
    if (errno == EINTR) continue;
    const bool full = errno == EAGAIN || errno == EWOULDBLOCK;
    if (!full || !wait_for(fd_, POLLOUT, after(limits_.write_seconds))) {
      write_failed_ = true;
      return -1;
    }
  }
}

void Connection::reply(const ApiError& error) noexcept {
  const std::string body = error.body();
  const std::string text = fmt::format(
      "HTTP/1.1 {} {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: "
      "close\r\n\r\n{}",
      error.status(), reason_phrase(error.status()), body.size(), body);
  for (size_t at = 0; at < text.size();) {
    const ssize_t n = write(text.data() + at, text.size() - at);
    if (n < 0) break;
    at += static_cast<size_t>(n);
  }
}

void Connection::linger() noexcept {
  constexpr double kSeconds = 1;
  constexpr size_t kBytes = size_t{64} << 20;
  shutdown(fd_, SHUT_WR);
  const int64_t deadline = after(kSeconds);
  std::array<char, 16384> scrap;
  for (size_t read = 0; read < kBytes;) {
    const ssize_t n = recv(fd_, scrap.data(), scrap.size(), MSG_DONTWAIT);
    if (n > 0) {
      read += static_cast<size_t>(n);
    } else if (n == 0 || (errno != EAGAIN && errno != EINTR) || !wait_for(fd_, POLLIN, deadline)) {
      return;
    }
  }
}

void Connection::get_remote_ip_and_port(std::string& ip, int& port) const {
  ip = remote_;
  port = remote_port_;
}

void Connection::get_local_ip_and_port(std::string& ip, int& port) const {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &length) == 0) {
    std::tie(ip, port) = name_of(address);
  }
}

}  // namespace penstock::server
