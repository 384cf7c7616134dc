// Reads that arrive: on top of a backend, retries what can be retried, accepts an end of file
// behind the needed bytes, keeps at most so many in flight, and counts.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "experts/counters.h"
#include "experts/io.h"
#include "experts/timeline.h"

namespace penstock::experts {

struct Read {
  int fd = -1;
  uint64_t offset = 0;
  std::byte* data = nullptr;
  uint32_t bytes = 0;
  uint32_t needed = 0;  // success from here on, though the file end before `bytes`
  int32_t buffer = -1;
  ReadReason reason = ReadReason::Demand;
  uint64_t tag = 0;
};

inline constexpr int kEndOfFile = -1;
std::string read_error_text(int error);  // an errno or kEndOfFile, for people

struct ReadDone {
  uint64_t tag = 0;
  int error = 0;        // 0, an errno, or kEndOfFile
  uint64_t offset = 0;  // where it failed
};

class ReadQueue {
 public:
  // `alignment`: of the files; a continued read starts again at a multiple of it. `expected`: reads
  // queued or in flight for which room is made in advance.
  ReadQueue(std::unique_ptr<IoBackend> backend, uint32_t alignment, size_t expected);
  ~ReadQueue();
  ReadQueue(const ReadQueue&) = delete;
  ReadQueue& operator=(const ReadQueue&) = delete;

  void push(const Read& read);
  void submit();  // hands over what was pushed; what exceeds the backend's capacity follows later

  // What has ended since the last call; valid until the next poll() or wait().
  std::span<const ReadDone> poll();
  // The same, but waits for at least one if any is outstanding.
  std::span<const ReadDone> wait();

  static uint64_t memory_bytes(size_t capacity, size_t expected) noexcept {
    return capacity * (sizeof(ReadOp) + sizeof(ReadResult)) +
           expected * (sizeof(Op) + 2 * sizeof(uint32_t) + sizeof(ReadDone));
  }

  size_t outstanding() const noexcept { return ops_.size() - free_.size(); }
  IoBackend& backend() noexcept { return *backend_; }
  void record(Timeline* timeline) noexcept { timeline_ = timeline; }  // null: nowhere

  const ReadCounts& counts(ReadReason reason) const noexcept {
    return counts_[static_cast<size_t>(reason)];
  }
  const LatencyCounts& latencies(ReadReason reason) const noexcept {
    return latencies_[static_cast<size_t>(reason)];
  }
  uint64_t busy_ns() const noexcept { return busy_ns_; }
  uint64_t latency_ns() const noexcept { return latency_ns_; }
  uint64_t retried() const noexcept { return retried_; }

 private:
  struct Op {
    Read read;
    uint32_t done = 0;  // bytes of read.data that are there
    uint32_t from = 0;  // where the current attempt starts
    int tries = 0;      // attempts since the last progress
    int64_t start_ns = 0;
  };
  void take(size_t n);
  void finish(uint32_t index, int error, int64_t now);
  bool advance(Op& op, int64_t result, int* error) const noexcept;

  std::unique_ptr<IoBackend> backend_;
  Timeline* timeline_ = nullptr;
  uint32_t alignment_;
  std::vector<Op> ops_;
  std::vector<uint32_t> free_;   // of ops_
  std::vector<uint32_t> ready_;  // of ops_, first in first out from ready_head_
  size_t ready_head_ = 0;
  std::vector<ReadOp> batch_;
  std::vector<ReadResult> results_;
  std::vector<ReadDone> done_;
  int64_t busy_since_ = 0;
  uint64_t busy_ns_ = 0;
  uint64_t latency_ns_ = 0;
  uint64_t retried_ = 0;
  std::array<ReadCounts, kReadReasons> counts_{};
  std::array<LatencyCounts, kReadReasons> latencies_{};
};

}  // namespace penstock::experts
