#include "models/dense_reader.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/error.h"
#include "base/memory.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

namespace penstock::models {
namespace {

constexpr uint64_t kFaultPiece = uint64_t{4} << 20;
// One advice reads no more than the device's read-ahead; this is the least that is usual.
constexpr uint64_t kAdvicePiece = uint64_t{128} << 10;

void ask_for(std::byte* start, uint64_t bytes) noexcept {
  for (uint64_t at = 0; at < bytes; at += kAdvicePiece) {
    madvise(start + at, std::min(kAdvicePiece, bytes - at), MADV_WILLNEED);
  }
}

}  // namespace

DenseReader::DenseReader(const gguf::Shard& shard) : size_(shard.file_bytes) {
  int error = 0;
  direct_ = File::try_open(shard.path, O_RDONLY | O_DIRECT | O_CLOEXEC, &error);
  buffered_ = File::open_read(shard.path);
  // Without this the kernel would read ahead into what follows a stretch.
  posix_fadvise(buffered_.fd(), 0, 0, POSIX_FADV_RANDOM);
}

void DenseReader::read(uint64_t start, uint64_t bytes, std::byte* out) const {
  const uint64_t end = std::min(start + bytes, size_);
  uint64_t at = start;
  while (direct_ && at < end) {
    const ssize_t n =
        pread(direct_.fd(), out + (at - start), bytes - (at - start), static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0 ||
        (at + static_cast<uint64_t>(n) < end && static_cast<uint64_t>(n) % kPageSize != 0)) {
      break;  // refused or cut short: the buffered descriptor finishes, or says why not
    }
    at += static_cast<uint64_t>(n);
  }
  if (at < end) {
    buffered_.read_at(at, {out + (at - start), end - at});
    posix_fadvise(buffered_.fd(), static_cast<off_t>(start), static_cast<off_t>(bytes),
                  POSIX_FADV_DONTNEED);
  }
}

void fault_in(const std::byte* start, uint64_t bytes, const std::string& path,
              const std::function<void(uint64_t bytes)>& report) {
  auto* const base = const_cast<std::byte*>(start);  // the advice does not write
  ask_for(base, std::min(kFaultPiece, bytes));
  for (uint64_t at = 0; at < bytes; at += kFaultPiece) {
    const uint64_t piece = std::min(kFaultPiece, bytes - at);
    const uint64_t next = at + piece;
    ask_for(base + next, std::min(kFaultPiece, bytes - next));
    int error = 0;
    do {
      error = madvise(base + at, piece, MADV_POPULATE_READ) == 0 ? 0 : errno;
    } while (error == EINTR);
    if (error == EINVAL) {  // a kernel before 5.14
      const volatile std::byte* const pages = start + at;
      for (uint64_t i = 0; i < piece; i += kPageSize) static_cast<void>(pages[i]);
    } else if (error != 0) {
      fail(ErrorKind::Io,
           "{}: cannot read mapped dense weights: {}; the disk may be failing, or "
           "the file was cut",
           path, errno_text(error));
    }
    report(piece);
  }
}

}  // namespace penstock::models
