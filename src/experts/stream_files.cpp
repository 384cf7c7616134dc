#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>

#include "base/error.h"
#include "base/memory.h"
#include "base/resident_pages.h"
#include "experts/io.h"

namespace penstock::experts {
namespace {

constexpr uint64_t kProbeBytes = 16 << 10;
constexpr uint64_t kProbeSpacing = 8 << 20;
// The kernel drops only whole folios, which may be as large as a huge page.
constexpr uint64_t kDropBytes = 2 * kHugePageSize;
constexpr int kProbePlaces = 4;
constexpr uint32_t kMaxAlignment = kPageSize;  // that of the memory read into

std::string file_system_name(const struct statfs& info) {
  struct Name {
    uint64_t magic;
    const char* name;
  };
  static constexpr Name kNames[] = {
      {EXT4_SUPER_MAGIC, "ext4"},
      {0x58465342, "xfs"},
      {BTRFS_SUPER_MAGIC, "btrfs"},
      {TMPFS_MAGIC, "tmpfs"},
      {RAMFS_MAGIC, "ramfs"},
      {F2FS_SUPER_MAGIC, "f2fs"},
      {OVERLAYFS_SUPER_MAGIC, "overlay"},
      {NFS_SUPER_MAGIC, "nfs"},
      {FUSE_SUPER_MAGIC, "fuse"},
      {0x2fc12fc1, "zfs"},
      {SQUASHFS_MAGIC, "squashfs"},
      {V9FS_MAGIC, "9p"},
  };
  const auto magic = static_cast<uint64_t>(info.f_type) & 0xffffffffu;
  for (const Name& entry : kNames) {
    if (entry.magic == magic) return entry.name;
  }
  return fmt::format("file system {:#x}", magic);
}

// Pages of [offset, offset + bytes) in the page cache; nothing where the kernel cannot say.
std::optional<uint64_t> cached_pages(int fd, uint64_t offset, uint64_t bytes) {
  constexpr long kCachestat = 451;  // the same number on every architecture
  struct Range {
    uint64_t offset, bytes;
  } range{offset, bytes};
  struct Stat {
    uint64_t cached, dirty, writeback, evicted, recently_evicted;
  } stat{};
  if (::syscall(kCachestat, fd, &range, &stat, 0) == 0) return stat.cached;
  void* map = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, static_cast<off_t>(offset));
  if (map == MAP_FAILED) return std::nullopt;
  const std::optional<uint64_t> pages = resident_pages(map, bytes);
  ::munmap(map, bytes);
  return pages;
}

// Drops what the page cache holds around `offset`.
void drop_pages(int fd, uint64_t offset) {
  const auto from = static_cast<off_t>(round_down(offset, kHugePageSize));
  const auto length = static_cast<off_t>(kDropBytes);
  // Pages of a file that was just written are dirty and would survive the advice.
  ::sync_file_range(
      fd, from, length,
      SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
  ::posix_fadvise(fd, from, length, POSIX_FADV_DONTNEED);
}

// -1 with errno, like pread, but never interrupted.
ssize_t read_once(const ProbeCalls& calls, int fd, std::byte* data, uint64_t bytes,
                  uint64_t offset) {
  ssize_t n = 0;
  do {
    n = calls.pread(fd, data, bytes, static_cast<off_t>(offset));
  } while (n < 0 && errno == EINTR);
  return n;
}

uint32_t direct_alignment(int fd, bool* refused) {
  *refused = false;
#ifdef STATX_DIOALIGN
  struct statx info {};
  if (::statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &info) == 0 &&
      (info.stx_mask & STATX_DIOALIGN) != 0) {
    *refused = info.stx_dio_offset_align == 0;
    return std::max(info.stx_dio_offset_align, info.stx_dio_mem_align);
  }
#else
  (void)fd;
#endif
  return kPageSize;
}

enum class Evidence { Direct, Buffered, None };

struct Verdict {
  bool direct = false;
  bool proven = false;
  uint32_t alignment = 1;
  std::string reason;
};

// One place: empty the cache there, read directly, look whether the cache stayed empty, and check
// that a buffered read would have been seen.
Evidence observe(const ProbeCalls& calls, int direct_fd, int buffered_fd, std::byte* buffer,
                 uint64_t offset, uint64_t file_bytes, int* error) {
  *error = 0;
  drop_pages(buffered_fd, offset);
  const std::optional<uint64_t> before = cached_pages(buffered_fd, offset, kProbeBytes);
  if (read_once(calls, direct_fd, buffer, kProbeBytes, offset) < 0) {
    *error = errno;
    return Evidence::Buffered;
  }
  if (!before.has_value() || *before != 0) return Evidence::None;
  const bool stayed_empty = cached_pages(buffered_fd, offset, kProbeBytes).value_or(1) == 0;
  // The deliberately unaligned read: direct file systems refuse it or serve it from the cache. We
  // never issue one; it must only not be mistaken for proof, so its pages go away again.
  const uint64_t odd = std::min<uint64_t>(100, file_bytes - offset);
  const bool odd_refused = read_once(calls, direct_fd, buffer + 1, odd, offset + 1) < 0;
  drop_pages(buffered_fd, offset);
  const bool control = read_once(calls, buffered_fd, buffer, kProbeBytes, offset) > 0 &&
                       cached_pages(buffered_fd, offset, kProbeBytes).value_or(0) != 0;
  drop_pages(buffered_fd, offset);
  if (!stayed_empty) return Evidence::Buffered;
  return control || odd_refused ? Evidence::Direct : Evidence::None;
}

Verdict probe(const ProbeCalls& calls, const File& direct, const File& buffered,
              uint64_t file_bytes, uint64_t at, const std::string& file_system) {
  Verdict verdict;
  bool refused = false;
  const uint32_t alignment = direct_alignment(direct.fd(), &refused);
  if (file_system == "tmpfs" || file_system == "ramfs") {
    verdict.reason = fmt::format("{} has no direct reads", file_system);
    return verdict;
  }
  if (refused || alignment > kMaxAlignment || (alignment & (alignment - 1)) != 0) {
    verdict.reason = fmt::format("{} offers no direct reads of {}", file_system, direct.path());
    return verdict;
  }
  const Mapping buffer(2 * kProbeBytes, Pages::Small);
  bool seen_buffered = false;
  verdict.direct = true;
  verdict.alignment = std::max<uint32_t>(alignment, 64);
  for (int i = 0; i < kProbePlaces && !verdict.proven; ++i) {
    const uint64_t offset = round_down(at, kPageSize) + static_cast<uint64_t>(i) * kProbeSpacing;
    if (offset >= file_bytes) break;
    int error = 0;
    const Evidence evidence =
        observe(calls, direct.fd(), buffered.fd(), buffer.data(), offset, file_bytes, &error);
    if (error != 0) {
      return {false, false, 1,
              fmt::format("a direct read of {} at offset {} failed: {}", direct.path(), offset,
                          errno_text(error))};
    }
    verdict.proven = evidence == Evidence::Direct;
    seen_buffered |= evidence == Evidence::Buffered;
  }
  if (!verdict.proven && seen_buffered) {
    return {false, false, 1,
            fmt::format("{} serves direct reads of {} from the page cache", file_system,
                        direct.path())};
  }
  return verdict;
}

}  // namespace

std::shared_ptr<const StreamFiles> StreamFiles::open(const std::vector<std::string>& paths,
                                                     IoMode mode,
                                                     std::span<const uint64_t> probe_at,
                                                     const ProbeCalls& calls) {
  if (paths.size() != probe_at.size()) {
    fail(ErrorKind::Internal, "{} files but {} places to probe", paths.size(), probe_at.size());
  }
  auto files = std::make_shared<StreamFiles>();
  IoReport& report = files->report_;
  report.requested = mode;
  std::vector<File> direct;
  bool all_direct = mode != IoMode::Buffered && mode != IoMode::Mmap;
  report.proven = all_direct;
  for (size_t i = 0; i < paths.size(); ++i) {
    File buffered = File::open_read(paths[i]);
    const uint64_t bytes = buffered.size();
    // Buffered reads, the probe's too, fetch what is asked for and no more.
    ::posix_fadvise(buffered.fd(), 0, 0, POSIX_FADV_RANDOM);
    struct statfs info {};
    if (::fstatfs(buffered.fd(), &info) != 0) {
      fail(ErrorKind::Io, "cannot statfs {}: {}", paths[i], errno_text(errno));
    }
    const std::string file_system = file_system_name(info);
    if (i == 0) report.file_system = file_system;
    if (all_direct) {
      int error = 0;
      File opened = calls.open(paths[i], O_RDONLY | O_DIRECT, &error);
      Verdict verdict;
      if (opened) {
        verdict = probe(calls, opened, buffered, bytes, probe_at[i], file_system);
      } else {
        verdict.reason =
            fmt::format("{} refuses O_DIRECT for {}: {}", file_system, paths[i], errno_text(error));
      }
      all_direct = verdict.direct;
      report.proven = report.proven && verdict.proven;
      report.alignment = std::max(report.alignment, verdict.alignment);
      report.reason = verdict.reason;
      direct.push_back(std::move(opened));
    }
    files->bytes_.push_back(bytes);
    files->stamps_.push_back(stamp_of(buffered));
    files->files_.push_back(std::move(buffered));
  }
  report.direct = all_direct;
  if (all_direct) {
    files->files_ = std::move(direct);
  } else {
    report.alignment = 1;
    report.proven = false;
  }
  return files;
}

std::string StreamFiles::changed() const {
  for (size_t i = 0; i < files_.size(); ++i) {
    std::string what = stamp_difference(path(i), stamps_[i], stamp_of(files_[i]));
    if (!what.empty()) return what;
  }
  return {};
}

FileStamp stamp_of(const File& file) {
  struct stat info {};
  if (::fstat(file.fd(), &info) != 0) {
    fail(ErrorKind::Io, "cannot stat {}: {}", file.path(), errno_text(errno));
  }
  return {info.st_dev, info.st_ino, static_cast<uint64_t>(info.st_size),
          int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec};
}

std::string stamp_difference(const std::string& path, const FileStamp& then, const FileStamp& now) {
  if (now.bytes != then.bytes) {
    return fmt::format("{} had {} bytes when it was opened and has {} now", path, then.bytes,
                       now.bytes);
  }
  if (now.modified_ns != then.modified_ns) {
    return fmt::format("{} was written to while it was in use", path);
  }
  return {};
}

}  // namespace penstock::experts
