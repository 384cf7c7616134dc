// A client's connection: the library's stream with bounds on size and time, and the head of each
// request read and checked before the library parses it.
#pragma once

#include <httplib.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "server/api_error.h"
#include "server/options.h"

namespace penstock::server {

class Connection final : public httplib::Stream {
 public:
  // Takes the socket. While `closing` is set it does not wait for a second request.
  Connection(int fd, const Limits& limits, const std::atomic<bool>& closing);
  ~Connection() override;
  Connection(const Connection&) = delete;

  // The connection that this thread works on.
  static Connection* current() noexcept;

  // Waits for a request and reads up to the blank line after its headers. False: there is none (the
  // client closed the connection or was silent). Throws ApiError for a head that is too large, too
  // slow or ambiguous; the connection is of no use then but for the answer.
  bool read_head();
  // After the library has handled the request: can there be another one on this connection?
  bool reusable() const noexcept {
    return !read_failed_ && !write_failed_ && head_left_ == 0 && body_ == Body::None;
  }
  // A handler has taken the body to its end.
  void body_taken() noexcept { body_ = Body::None; }
  bool body_too_large() const noexcept { return body_too_large_; }

  bool gone() const noexcept;  // the client has closed its side
  const std::string& remote_address() const noexcept { return remote_; }

  // Writes a reply of its own and says that it is the last one.
  void reply(const ApiError& error) noexcept;
  // Says goodbye so that a client which is still sending can read the answer: stops writing, then
  // reads for a moment what comes.
  void linger() noexcept;

  bool is_readable() const override;
  bool is_writable() const override;
  ssize_t read(char* data, size_t size) override;
  ssize_t write(const char* data, size_t size) override;
  void get_remote_ip_and_port(std::string& ip, int& port) const override;
  void get_local_ip_and_port(std::string& ip, int& port) const override;
  socket_t socket() const override { return fd_; }

 private:
  enum class Body { None, Counted, Chunked };

  void check_head(std::string_view head);
  // Appends what comes to buffer_: > 0 bytes, 0 at the end, -1 on an error or after `deadline_ns`.
  ssize_t receive(int64_t deadline_ns);

  const int fd_;
  const Limits& limits_;
  const std::atomic<bool>& closing_;
  bool first_ = true;  // no request has been read yet
  std::string remote_;
  int remote_port_ = 0;
  std::string buffer_;  // received; the first taken_ bytes of it were read
  size_t taken_ = 0;
  size_t head_left_ = 0;  // unread bytes of the head
  Body body_ = Body::None;
  uint64_t body_left_ = 0;  // Counted
  size_t body_read_ = 0;    // as it is on the wire
  int64_t body_deadline_ = 0;
  bool body_too_large_ = false;
  bool read_failed_ = false, write_failed_ = false;
};

}  // namespace penstock::server
