// What happened to every expert use and every byte (spec/streaming.md §A).
#pragma once

#include <cstdint>

namespace penstock::experts {

// The exclusive classes of a decode use.
struct UseCounts {
  uint64_t arena = 0;
  uint64_t ra_timely = 0;  // read-ahead classes stay 0 until read-ahead exists
  uint64_t ra_late = 0;
  uint64_t miss_issued = 0;
  uint64_t miss_joined = 0;
  uint64_t total() const noexcept {
    return arena + ra_timely + ra_late + miss_issued + miss_joined;
  }
};

struct ReadCounts {
  uint64_t reads = 0;  // requests issued
  uint64_t bytes = 0;  // bytes asked for, as widened to the direct-I/O alignment
};

struct Counters {
  UseCounts first;             // the first decode token
  UseCounts steady;            // all later ones
  uint64_t uses_expected = 0;  // U = sum over steps of rows * sum_l n_used
  uint64_t steps = 0;
  uint64_t tokens = 0;  // decode rows
  ReadCounts demand, spec, fill, prompt, ple;
  uint64_t experts_read = 0;  // experts, where reads counts preads (three per expert)
  uint64_t stall_ns = 0;      // only time blocked
  uint64_t stall_events = 0;
  uint64_t io_busy_ns = 0;     // union of the intervals with a read in flight
  uint64_t io_latency_ns = 0;  // sum over reads: qd_avg = io_latency_ns / io_busy_ns
  uint64_t read_errors_retried = 0;
  uint64_t evict_total = 0;
  uint64_t evict_hot = 0;
  uint64_t prompt_experts_touched = 0;
  uint64_t prompt_arena_used = 0;
  uint64_t prompt_stall_ns = 0;
};

}  // namespace penstock::experts
