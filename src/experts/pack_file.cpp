#include "experts/pack_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "base/machine.h"
#include "base/output_steps.h"

namespace penstock::experts {
namespace {

constexpr uint64_t kWindow = uint64_t{32} << 20;

}  // namespace

WriteCalls::WriteCalls()
    : pwrite(::pwrite),
      fsync(::fsync),
      fallocate(::fallocate),
      rename(::rename),
      fstatvfs(::fstatvfs) {}

PartialPack::PartialPack(const std::string& out, const WriteCalls& calls)
    : out_(out), calls_(calls), file_(open_locked(out + ".partial", out + ".partial")) {}

bool PartialPack::read_header(PackHeader* header) const {
  if (file_.size() < kPackHeaderBytes) return false;
  file_.read_at(0, std::as_writable_bytes(std::span(header, 1)));
  return header->magic == kPackMagic && header->header_sum == header_sum(*header);
}

void PartialPack::reserve(uint64_t bytes, uint64_t more, bool keep) {
  if (!keep && ::ftruncate(file_.fd(), 0) != 0) {
    fail(ErrorKind::Io, "cannot empty {}: {}", path(), errno_text(errno));
  }
  struct stat info {};
  struct statvfs room {};
  const bool known = ::fstat(file_.fd(), &info) == 0 && calls_.fstatvfs(file_.fd(), &room) == 0;
  const uint64_t have = static_cast<uint64_t>(info.st_blocks) * 512;
  const uint64_t need = (bytes > have ? bytes - have : 0) + more;
  const uint64_t free = known ? uint64_t{room.f_bavail} * room.f_frsize : need;
  if (need > free) {
    fail(ErrorKind::Io,
         "{} more are needed for {} ({} bytes), but {} are free there: make {} of room, or choose "
         "another folder with -o",
         format_bytes(need), out_, need, format_bytes(free), format_bytes(need - free));
  }
  int error = 0;
  do {
    const auto size = static_cast<off_t>(bytes);
    error = ::ftruncate(file_.fd(), size) != 0 || calls_.fallocate(file_.fd(), 0, 0, size) != 0
                ? errno
                : 0;
  } while (error == EINTR);
  if (error == ENOSPC || error == EDQUOT) {
    fail(ErrorKind::Io,
         "{} more are needed for {} ({} bytes), which the disk refuses: {}; make room, or choose "
         "another folder with -o",
         format_bytes(need), out_, need, errno_text(error));
  }
  // File systems without fallocate get a file with holes, and the error, if any, later.
  if (error != 0 && error != EOPNOTSUPP && error != ENOSYS) {
    fail(ErrorKind::Io, "cannot reserve {} bytes for {}: {}", bytes, path(), errno_text(error));
  }
}

void PartialPack::write(uint64_t offset, std::span<const std::byte> bytes) {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = calls_.pwrite(file_.fd(), bytes.data() + done, bytes.size() - done,
                                    static_cast<off_t>(offset + done));
    if (n > 0) {
      done += static_cast<size_t>(n);
    } else if (n == 0 || errno != EINTR) {
      const int error = n == 0 ? EIO : errno;
      fail(ErrorKind::Io,
           "writing {} bytes at offset {} of {} failed: {}{}; what is written so far stays, and "
           "the same command goes on with it",
           bytes.size() - done, offset + done, path(), errno_text(error),
           error == ENOSPC || error == EDQUOT ? ": the disk is full, make room" : "");
    }
  }
}

void PartialPack::write_behind(uint64_t offset, std::span<const std::byte> bytes) {
  write(offset, bytes);
  if (offset != window_end_) flush_window(offset);
  window_end_ = offset + bytes.size();
  if (window_end_ - window_ >= kWindow) flush_window(window_end_);
}

// Starts writing the window out, and drops the one before, which must be on the disk by now.
void PartialPack::flush_window(uint64_t next) {
  const auto range = [this](uint64_t from, uint64_t to, unsigned flags) {
    if (to > from) {
      ::sync_file_range(file_.fd(), static_cast<off_t>(from), static_cast<off_t>(to - from), flags);
    }
  };
  range(window_, window_end_, SYNC_FILE_RANGE_WRITE);
  range(before_, before_end_,
        SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
  if (before_end_ > before_) {
    ::posix_fadvise(file_.fd(), static_cast<off_t>(before_),
                    static_cast<off_t>(before_end_ - before_), POSIX_FADV_DONTNEED);
  }
  before_ = window_;
  before_end_ = window_end_;
  window_ = window_end_ = next;
}

void PartialPack::sync() {
  int error = 0;
  do {
    error = calls_.fsync(file_.fd()) != 0 ? errno : 0;
  } while (error == EINTR);
  if (error != 0) {
    fail(ErrorKind::Io,
         "{} could not be brought to the disk: {}; check the disk, the same command goes on",
         path(), errno_text(error));
  }
}

void PartialPack::commit() {
  sync();
  if (calls_.rename(path().c_str(), out_.c_str()) != 0) {
    fail(ErrorKind::Io, "cannot rename {} to {}: {}", path(), out_, errno_text(errno));
  }
  std::filesystem::path directory = std::filesystem::path(out_).parent_path();
  if (directory.empty()) directory = ".";
  int error = 0;
  const File handle = File::try_open(directory.string(), O_RDONLY | O_DIRECTORY, &error);
  if (handle) calls_.fsync(handle.fd());
}

void PartialPack::remove() {
  ::unlink(path().c_str());
}

}  // namespace penstock::experts
