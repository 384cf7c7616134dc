// What happened to every expert use and every byte (spec/streaming.md §A).
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace penstock::experts {

// The exclusive classes of a decode use.
struct UseCounts {
  uint64_t arena = 0;
  uint64_t ra_timely = 0;  // read ahead, there in time
  uint64_t ra_late = 0;    // read ahead or filled in lazily, still being read
  uint64_t miss_issued = 0;
  uint64_t miss_joined = 0;
  uint64_t total() const noexcept {
    return arena + ra_timely + ra_late + miss_issued + miss_joined;
  }
  UseCounts& operator+=(const UseCounts& other) noexcept {
    arena += other.arena;
    ra_timely += other.ra_timely;
    ra_late += other.ra_late;
    miss_issued += other.miss_issued;
    miss_joined += other.miss_joined;
    return *this;
  }
};

struct ReadCounts {
  uint64_t reads = 0;  // requests issued
  uint64_t bytes = 0;  // bytes asked for, as widened for direct reads; retries are not counted
};

// Why a read was made.
enum class ReadReason : uint8_t { Demand, Prompt, Fill, Rows, Spec };
inline constexpr size_t kReadReasons = 5;

// Reads by duration: bucket i holds those of [2^i, 2^(i+1)) ns. A read ends when the scheduling
// thread sees its completion, so with io_uring the figures are upper bounds.
struct LatencyCounts {
  std::array<uint64_t, 48> bucket{};
  void add(uint64_t ns) noexcept {
    const auto width = static_cast<size_t>(std::bit_width(ns));
    const size_t index = width == 0 ? 0 : width - 1;
    ++bucket[index < bucket.size() ? index : bucket.size() - 1];
  }
  // Upper bound, in ns, of the share q of the reads that were shortest; 0 without reads.
  double within_ns(double q) const noexcept {
    uint64_t total = 0;
    for (const uint64_t n : bucket) total += n;
    uint64_t seen = 0;
    for (size_t i = 0; i < bucket.size(); ++i) {
      seen += bucket[i];
      if (total != 0 && static_cast<double>(seen) >= q * static_cast<double>(total)) {
        return static_cast<double>(uint64_t{2} << i);
      }
    }
    return 0;
  }
};

// What became of the experts read ahead: issued == used_same_token + used_later + wasted + pending.
struct SpecCounts {
  uint64_t issued = 0;
  uint64_t used_same_token = 0;  // the prediction was right
  uint64_t used_later = 0;       // luck
  uint64_t wasted = 0;           // evicted, or the read failed, before the first use
  uint64_t pending = 0;          // in flight, or there and not used yet
  uint64_t used() const noexcept { return used_same_token + used_later; }
  uint64_t cancelled = 0;  // guesses dropped before they were read; not part of issued
};

// How well a layer's selection was predicted (read_ahead.h).
struct AheadMeasures {
  uint64_t layers = 0;   // predictions that were compared with a selection
  uint64_t slots = 0;    // experts selected there
  uint64_t overlap = 0;  // of these, among the K predicted as most probable
  uint64_t exact = 0;    // selections predicted whole
  uint64_t missing = 0;  // selected, not resident but for read-ahead
  uint64_t covered = 0;  // of these, among the candidates that may be read
  uint64_t issued = 0;   // experts read ahead on such predictions
  uint64_t used = 0;     // of these, used before they were evicted: precision is used / issued
  uint64_t late = 0;     // of these, still being read when they were wanted
  void add(uint64_t k, uint64_t found) noexcept {
    ++layers;
    slots += k;
    overlap += found;
    exact += found == k ? 1 : 0;
  }
  AheadMeasures& operator+=(const AheadMeasures& other) noexcept {
    layers += other.layers;
    slots += other.slots;
    overlap += other.overlap;
    exact += other.exact;
    missing += other.missing;
    covered += other.covered;
    issued += other.issued;
    used += other.used;
    late += other.late;
    return *this;
  }
};

struct Counters {
  UseCounts first;             // the first decode token
  UseCounts steady;            // all later ones
  uint64_t mapped = 0;         // uses in the page cache, outside the classes (IoMode::Mmap)
  uint64_t uses_expected = 0;  // U: rows * n_used over all layers of all steps
  uint64_t steps = 0;
  uint64_t tokens = 0;  // decode rows
  ReadCounts demand, spec, fill, prompt, ple;
  SpecCounts ahead;
  uint64_t records_verified = 0;  // of a pack, whose checksum was computed and compared
  uint64_t experts_read = 0;      // experts, where reads counts preads (three per expert)
  uint64_t stall_ns = 0;          // only time blocked
  uint64_t stall_events = 0;
  uint64_t io_busy_ns = 0;  // union of the intervals with a read in flight, as seen (LatencyCounts)
  uint64_t io_latency_ns = 0;  // sum over reads: qd_avg = io_latency_ns / io_busy_ns
  uint64_t read_errors_retried = 0;
  uint64_t evict_total = 0;
  uint64_t evict_hot = 0;     // hot experts among them
  uint64_t hot = 0;           // experts that are protected as hot
  uint64_t hot_resident = 0;  // of these, in memory
  uint64_t prompt_experts_touched = 0;
  uint64_t prompt_arena_used = 0;
  uint64_t prompt_stall_ns = 0;
  LatencyCounts demand_latency;
  LatencyCounts prompt_latency;
  LatencyCounts fill_latency;
  LatencyCounts spec_latency;
};

}  // namespace penstock::experts
