// What the storage gives when a model's experts are read at random: the W of the speed model
// (spec/streaming.md §M.1-2).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "experts/geometry.h"
#include "experts/io.h"

namespace penstock::experts {

struct IoBenchOptions {
  IoMode io = IoMode::Auto;
  std::vector<int> depths = {1, 2, 4, 8, 16, 32};  // experts in flight
  double warm_up_s = 2;
  double seconds = 10;   // measured, per depth
  int busy_threads = 0;  // threads that meanwhile read memory as fast as they can
  bool huge_pages = true;
  uint64_t seed = 1;
  // Wraps the backend in use; for fault injection by tests. May be empty.
  std::function<std::unique_ptr<IoBackend>(std::unique_ptr<IoBackend>)> decorate = {};
};

struct IoBenchRow {
  int depth = 0;
  double seconds = 0;
  uint64_t experts = 0;  // read whole
  uint64_t bytes = 0;    // as widened for direct reads
  uint64_t p50_ns = 0;   // from the submission of an expert's reads to the arrival of the last
  uint64_t p99_ns = 0;
  double cpu_s = 0;             // of the whole process but its busy threads
  double busy_bytes_per_s = 0;  // memory read by the busy threads meanwhile
  double bytes_per_s() const noexcept {
    return seconds > 0 ? static_cast<double>(bytes) / seconds : 0;
  }
};

struct IoBenchReport {
  IoReport io;
  uint64_t span_bytes = 0;  // all experts that are drawn from
  uint64_t huge_bytes = 0;  // of the memory read into, on huge pages
  std::vector<IoBenchRow> rows;
};

// Reads at random in less than this may be answered by a cache inside the drive.
inline constexpr uint64_t kDriveCache = uint64_t{4} << 30;

uint64_t expert_span(const Geometry& geometry) noexcept;  // bytes of all experts

// Reads experts of all layers uniformly at random into memory like the arena's, at each depth in
// turn, so many in flight at all times. `row` is called as each depth ends. Throws Error(Io) naming
// file, offset and errno when a read fails.
IoBenchReport iobench(const Geometry& geometry, const StreamFiles& files,
                      const IoBenchOptions& options,
                      const std::function<void(const IoBenchRow&)>& row = {});

}  // namespace penstock::experts
