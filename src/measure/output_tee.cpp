#include "measure/output_tee.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

#include "base/error.h"

namespace penstock::measure {
namespace {

// What does not go through is lost to the original alone: the copy is complete.
void write_all(int fd, const char* data, size_t bytes) noexcept {
  while (bytes > 0) {
    const ssize_t n = ::write(fd, data, bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    data += n;
    bytes -= static_cast<size_t>(n);
  }
}

}  // namespace

OutputTee::OutputTee(int fd) : fd_(fd) {
  std::fflush(nullptr);  // what was printed before is not part of it
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    fail(ErrorKind::Io, "no pipe to record the output with: {}", errno_text(errno));
  }
  original_ = ::fcntl(fd, F_DUPFD_CLOEXEC, 3);
  if (original_ < 0 || ::dup2(ends[1], fd) < 0) {
    const int error = errno;
    ::close(ends[0]);
    ::close(ends[1]);
    if (original_ >= 0) ::close(original_);
    fail(ErrorKind::Io, "output {} cannot be recorded: {}", fd, errno_text(error));
  }
  ::close(ends[1]);
  read_end_ = ends[0];
  thread_ = std::thread([this] { pump(); });
}

OutputTee::~OutputTee() {
  stop();
}

void OutputTee::pump() {
  char buffer[1 << 14];
  for (;;) {
    const ssize_t n = ::read(read_end_, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    write_all(original_, buffer, static_cast<size_t>(n));
    text_.append(buffer, static_cast<size_t>(n));
  }
}

std::string OutputTee::stop() {
  if (original_ < 0) return {};
  // The pipe's last writing end goes with this; its reader then meets the end.
  ::dup2(original_, fd_);
  thread_.join();
  ::close(read_end_);
  ::close(std::exchange(original_, -1));
  return std::move(text_);
}

}  // namespace penstock::measure
