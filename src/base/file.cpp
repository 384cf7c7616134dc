#include "base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/error.h"
#include "base/map_guard.h"
#include "base/memory.h"
#include "base/output_steps.h"

namespace penstock {

File File::try_open(const std::string& path, int flags, int* error) noexcept {
  File file;
  do {
    file.fd_ = ::open(path.c_str(), flags | O_CLOEXEC);
  } while (file.fd_ < 0 && errno == EINTR);
  *error = file.fd_ < 0 ? errno : 0;
  if (file.fd_ >= 0) file.path_ = path;
  return file;
}

File File::open_read(const std::string& path, int extra_flags) {
  int error = 0;
  File file = try_open(path, O_RDONLY | extra_flags, &error);
  if (!file) fail(ErrorKind::Io, "cannot open {}: {}", path, errno_text(error));
  struct stat info {};
  if (fstat(file.fd_, &info) == 0 && S_ISDIR(info.st_mode)) {
    fail(ErrorKind::Io, "{} is a directory, not a file", path);
  }
  return file;
}

File::~File() {
  if (fd_ >= 0) ::close(fd_);
}

File::File(File&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), path_(std::move(other.path_)) {}

File& File::operator=(File&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(path_, other.path_);
  return *this;
}

uint64_t File::size() const {
  struct stat info {};
  if (fstat(fd_, &info) != 0) fail(ErrorKind::Io, "cannot stat {}: {}", path_, errno_text(errno));
  return static_cast<uint64_t>(info.st_size);
}

void File::read_at(uint64_t offset, std::span<std::byte> out) const {
  size_t done = 0;
  while (done < out.size()) {
    const ssize_t n =
        ::pread(fd_, out.data() + done, out.size() - done, static_cast<off_t>(offset + done));
    if (n > 0) {
      done += static_cast<size_t>(n);
    } else if (n == 0) {
      fail(ErrorKind::Io, "{} ends at byte {}, but {} bytes at offset {} were wanted", path_,
           offset + done, out.size(), offset);
    } else if (errno != EINTR) {
      fail(ErrorKind::Io, "reading {} at offset {} failed: {}", path_, offset + done,
           errno_text(errno));
    }
  }
}

FileMap::FileMap(const File& file) : size_(file.size()) {
  if (size_ == 0) return;
  void* raw = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.fd(), 0);
  if (raw == MAP_FAILED) {
    fail(ErrorKind::Io, "cannot map {}: {}", file.path(), errno_text(errno));
  }
  data_ = static_cast<std::byte*>(raw);
  guard_mapping(data_, size_, file.path());
}

FileMap::~FileMap() {
  if (data_ == nullptr) return;
  unguard_mapping(data_);
  munmap(data_, size_);
}

FileMap::FileMap(FileMap&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

FileMap& FileMap::operator=(FileMap&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

void FileMap::advise(uint64_t offset, uint64_t bytes, int advice) const noexcept {
  if (data_ == nullptr || bytes == 0) return;
  const uint64_t from = round_down(offset, kPageSize);
  madvise(data_ + from, offset + bytes - from, advice);
}

AtomicFile::AtomicFile(std::string path)
    : path_(std::move(path)), temporary_(fmt::format("{}.{}.partial", path_, ::getpid())) {
  fd_ = ::open(temporary_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd_ < 0) fail(ErrorKind::Io, "cannot create {}: {}", temporary_, errno_text(errno));
}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) {
    ::close(fd_);
    ::unlink(temporary_.c_str());
  }
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  write_at(position_, bytes);
  position_ += bytes.size();
}

void AtomicFile::write_at(uint64_t offset, std::span<const std::byte> bytes) {
  write_all_at(fd_, offset, bytes, temporary_);
}

void AtomicFile::commit() {
  publish(fd_, temporary_, path_);
  ::close(std::exchange(fd_, -1));
}

std::string read_text_file(const std::string& path) {
  int error = 0;
  const bool standard_input = path == "-";
  const File file = standard_input ? File() : File::try_open(path, O_RDONLY, &error);
  if (!standard_input && !file) fail(ErrorKind::Io, "cannot open {}: {}", path, errno_text(error));
  const int fd = standard_input ? STDIN_FILENO : file.fd();
  std::string text;
  char buffer[65536];
  for (;;) {
    const ssize_t n = ::read(fd, buffer, sizeof buffer);
    if (n > 0) {
      text.append(buffer, static_cast<size_t>(n));
    } else if (n == 0) {
      return text;
    } else if (errno != EINTR) {
      fail(ErrorKind::Io, "reading {} failed: {}", path, errno_text(errno));
    }
  }
}

}  // namespace penstock
