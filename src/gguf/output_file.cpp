#include "gguf/output_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/output_steps.h"

namespace penstock::gguf {

OutputFile::OutputFile(std::string path, bool kept)
    : path_(std::move(path)),
      temporary_(kept ? kept_name(path_) : fmt::format("{}.{}.partial", path_, ::getpid())),
      kept_(kept) {
  fd_ = ::open(temporary_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | (kept ? 0 : O_TRUNC), 0644);
  if (fd_ < 0) fail(ErrorKind::Io, "cannot create {}: {}", temporary_, errno_text(errno));
}

OutputFile::~OutputFile() {
  if (fd_ < 0) return;
  if (kept_) {
    ::close(fd_);
  } else {
    discard();
  }
}

void OutputFile::discard() {
  if (fd_ < 0) return;
  ::close(std::exchange(fd_, -1));
  ::unlink(temporary_.c_str());
}

void OutputFile::write_at(uint64_t offset, std::span<const std::byte> bytes) {
  write_all_at(fd_, offset, bytes, temporary_,
               kept_ ? "; what is written so far stays, and the same command goes on with it" : "");
}

void OutputFile::zero(uint64_t from, uint64_t to) {
  if (to > from) write_at(from, std::vector<std::byte>(to - from));
}

bool OutputFile::read_at(uint64_t offset, std::span<std::byte> out) const {
  size_t done = 0;
  while (done < out.size()) {
    const ssize_t n =
        ::pread(fd_, out.data() + done, out.size() - done, static_cast<off_t>(offset + done));
    if (n == 0) return false;
    if (n > 0) {
      done += static_cast<size_t>(n);
    } else if (errno != EINTR) {
      fail(ErrorKind::Io, "reading {} at offset {} failed: {}", temporary_, offset + done,
           errno_text(errno));
    }
  }
  return true;
}

void OutputFile::reserve(uint64_t bytes) {
  const auto size = static_cast<off_t>(bytes);
  int error = 0;
  if (::ftruncate(fd_, size) != 0 || (bytes > 0 && ::fallocate(fd_, 0, 0, size) != 0)) {
    error = errno;
  }
  if (error != 0 && error != EOPNOTSUPP && error != ENOSYS) {
    fail(ErrorKind::Io, "cannot reserve {} bytes for {}: {}; make room or choose another folder",
         bytes, path_, errno_text(error));
  }
}

void OutputFile::commit() {
  publish(fd_, temporary_, path_);
  ::close(std::exchange(fd_, -1));
}

}  // namespace penstock::gguf
