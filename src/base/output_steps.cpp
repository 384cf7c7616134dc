#include "base/output_steps.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "base/error.h"

namespace penstock {

File open_locked(const std::string& path, const std::string& out) {
  for (;;) {
    const int created = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (created < 0) fail(ErrorKind::Io, "cannot create {}: {}", path, errno_text(errno));
    ::close(created);
    int error = 0;
    File file = File::try_open(path, O_RDWR, &error);
    if (!file && error == ENOENT) continue;  // another process has just finished with it
    if (!file) fail(ErrorKind::Io, "cannot open {}: {}", path, errno_text(error));
    if (::flock(file.fd(), LOCK_EX | LOCK_NB) != 0) {
      if (errno == EINTR) continue;
      if (errno == EWOULDBLOCK) {
        fail(ErrorKind::Io, "{} is being written by another process: let it finish, or stop it",
             out);
      }
      fail(ErrorKind::Io, "cannot lock {}: {}", path, errno_text(errno));
    }
    // Between opening and locking another process may have finished and taken the file away.
    struct stat opened {};
    struct stat named {};
    if (::fstat(file.fd(), &opened) == 0 && ::stat(path.c_str(), &named) == 0 &&
        opened.st_ino == named.st_ino && opened.st_dev == named.st_dev) {
      return file;
    }
  }
}

void write_all_at(int fd, uint64_t offset, std::span<const std::byte> bytes,
                  const std::string& name, std::string_view hint) {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n =
        ::pwrite(fd, bytes.data() + done, bytes.size() - done, static_cast<off_t>(offset + done));
    if (n >= 0) {
      done += static_cast<size_t>(n);
    } else if (errno != EINTR) {
      fail(ErrorKind::Io, "writing {} at offset {} failed: {}{}", name, offset + done,
           errno_text(errno), hint);
    }
  }
}

void publish(int fd, const std::string& temporary, const std::string& path) {
  if (::fsync(fd) != 0) fail(ErrorKind::Io, "fsync of {}: {}", temporary, errno_text(errno));
  if (::rename(temporary.c_str(), path.c_str()) != 0) {
    fail(ErrorKind::Io, "cannot rename {} to {}: {}", temporary, path, errno_text(errno));
  }
  std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (folder.empty()) folder = ".";
  int error = 0;
  const File handle = File::try_open(folder.string(), O_RDONLY | O_DIRECTORY, &error);
  if (handle) ::fsync(handle.fd());
}

}  // namespace penstock
