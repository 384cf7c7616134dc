// Asynchronous positional reads into memory (spec/streaming.md §B.4).
//
//   StreamFiles   the open files, how they may be read (direct or buffered, proven by a probe)
//   IoBackend     raw reads: io_uring, or threads that call pread
//   ReadQueue     on top (read_queue.h): retries, end of file, accounting
#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "experts/options.h"

namespace penstock::experts {

enum class Engine { Uring, Pool, Synchronous };
const char* engine_name(Engine engine) noexcept;

// How reads are really made; a field of the run record.
struct IoReport {
  IoMode requested = IoMode::Auto;
  Engine engine = Engine::Synchronous;
  int threads = 0;          // of the pool
  bool mapped = false;      // nothing is read: experts are used in the mapped files
  bool direct = false;      // every file is read past the page cache
  bool proven = false;      // the page cache was seen to stay empty (false: could not be observed)
  uint32_t alignment = 1;   // of offsets and lengths
  std::string file_system;  // of the first file
  std::string reason;       // why not the preferred engine or mode; empty when all is as wished
  uint64_t registered_bytes = 0;  // arena memory registered with io_uring
  std::string describe() const;   // one line for people
};

// The system calls that find out whether a file can be read directly; tests put others in their
// place to play file systems that refuse.
struct ProbeCalls {
  std::function<File(const std::string& path, int flags, int* error)> open = File::try_open;
  std::function<ssize_t(int fd, void* data, size_t bytes, off_t offset)> pread = ::pread;
};

// What tells that a file was written to or cut.
struct FileStamp {
  uint64_t device = 0, inode = 0, bytes = 0;
  int64_t modified_ns = 0;
  bool same_file(const FileStamp& other) const noexcept {
    return device == other.device && inode == other.inode;
  }
};
FileStamp stamp_of(const File& file);  // throws Error(Io)
// How `now` differs from `then`, naming the path; empty if it does not.
std::string stamp_difference(const std::string& path, const FileStamp& then, const FileStamp& now);

// The files that hold experts or rows, opened once and shared by the stream and the row store.
class StreamFiles {
 public:
  // probe_at[i]: an offset in file i inside the data that will be streamed; its neighbourhood is
  // what the probe reads. Throws Error(Io) when a file cannot be opened at all.
  static std::shared_ptr<const StreamFiles> open(const std::vector<std::string>& paths, IoMode mode,
                                                 std::span<const uint64_t> probe_at,
                                                 const ProbeCalls& calls = {});

  size_t size() const noexcept { return files_.size(); }
  int fd(size_t file) const noexcept { return files_[file].fd(); }
  const std::string& path(size_t file) const noexcept { return files_[file].path(); }
  uint64_t bytes(size_t file) const noexcept { return bytes_[file]; }
  bool direct() const noexcept { return report_.direct; }
  uint32_t alignment() const noexcept { return report_.alignment; }  // 1 when buffered
  const IoReport& report() const noexcept { return report_; }

  // The first file that was written to or cut since it was opened, with what differs; empty when
  // all are as they were. A file that was replaced by another of its name is no such file: what was
  // opened stays readable.
  std::string changed() const;

 private:
  std::vector<File> files_;
  std::vector<uint64_t> bytes_;
  std::vector<FileStamp> stamps_;
  IoReport report_;
};

struct ReadOp {
  int fd = -1;
  uint64_t offset = 0;
  std::byte* data = nullptr;
  uint32_t bytes = 0;
  int32_t buffer = -1;  // index of the registered buffer that holds [data, data + bytes), or -1
  uint64_t tag = 0;
};

struct ReadResult {
  uint64_t tag = 0;
  int64_t result = 0;  // bytes read, as the system call returned them, or -errno
};

struct MemoryRange {
  std::byte* data = nullptr;
  size_t bytes = 0;
};

// Raw reads: what the system call returns is passed on. Called by one thread; whatever threads a
// backend has only fill bytes and post results.
class IoBackend {
 public:
  virtual ~IoBackend() = default;                 // waits for the reads in flight
  virtual size_t capacity() const noexcept = 0;   // most reads in flight
  virtual size_t in_flight() const noexcept = 0;  // submitted and not yet returned by poll or wait
  // Precondition: batch.size() <= capacity() - in_flight(). Returns without waiting for the reads.
  virtual void submit(std::span<const ReadOp> batch) = 0;
  // Results that are there, at most out.size(); never blocks.
  virtual size_t poll(std::span<ReadResult> out) = 0;
  // Blocks until at least min(min, in_flight(), out.size()) results are there.
  virtual size_t wait(std::span<ReadResult> out, size_t min) = 0;
  // Registers memory for ReadOp::buffer (index = position). 0, or the errno of the refusal.
  virtual int register_buffers(std::span<const MemoryRange> ranges) = 0;
  virtual void unregister_buffers() {}  // precondition: nothing in flight
  virtual Engine engine() const noexcept = 0;
};

// `drop_cache`: buffered files, whose pages are dropped after each read. `threads`: of a pool.
// Falls back from io_uring to the pool to synchronous reads; the report says what and why.
std::unique_ptr<IoBackend> make_backend(IoMode mode, bool drop_cache, size_t capacity, int threads,
                                        IoReport* report);

// What a backend of this capacity allocates, for the plan.
uint64_t backend_bytes(size_t capacity, int threads) noexcept;

}  // namespace penstock::experts
