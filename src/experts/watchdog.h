// Watches the machine's memory while a model runs (spec/streaming.md §C.5). A thread of its own
// takes samples and says how bad it is; the scheduling thread acts on it, between tokens.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "experts/plan.h"

namespace penstock::experts {

// The one place where the limits are; it goes into the record of the run as it is in force.
struct WatchdogPolicy {
  int period_ms = 100;
  uint64_t fuse = 0;    // to be left available to the rest of the machine
  uint64_t margin = 0;  // of the levels below, above and below the fuse
  uint64_t swap_limit = uint64_t{64} << 20;
  double shrink_share = 0.1;   // of the slots, given back at once
  int shrink_pause_ms = 1000;  // before the next share

  uint64_t warn_below() const noexcept { return fuse + margin; }
  uint64_t shrink_below() const noexcept { return fuse; }
  uint64_t abort_below() const noexcept { return fuse > margin ? fuse - margin : 0; }
};
// Fuse and margin of the plan.
WatchdogPolicy watchdog_policy(const Plan& plan);

// Warn: nothing is read ahead. Shrink: slots are given back. Abort: the run ends after this token.
enum class Pressure : int { None, Warn, Shrink, Abort };
const char* pressure_name(Pressure pressure) noexcept;

struct MemorySample {
  double at_s = 0;         // since the start
  uint64_t available = 0;  // bytes, of the host or the cgroup, whichever is tighter
  uint64_t swapped = 0;    // bytes swapped out since the start
};

struct WatchdogEvent {
  Pressure pressure = Pressure::None;
  MemorySample sample;      // that caused it
  uint64_t given_back = 0;  // bytes of slots
};

struct WatchdogReport {
  WatchdogPolicy policy;
  uint64_t samples = 0;
  uint64_t min_available = UINT64_MAX;  // of all samples
  uint64_t max_swapped = 0;
  std::vector<WatchdogEvent> events;
};

class Watchdog {
 public:
  using Sampler = std::function<MemorySample()>;  // at_s is filled in here

  // Samples the machine every period. Without `run`, only look() takes samples.
  Watchdog(const WatchdogPolicy& policy, Sampler sampler, bool run = true);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  void look();  // takes a sample
  Pressure pressure() const noexcept { return pressure_.load(std::memory_order_relaxed); }
  // Whether a share of the slots is to be given back now; at most once per pause.
  bool take_shrink() noexcept;
  void gave_back(uint64_t bytes);  // by the shrink last taken
  WatchdogReport report() const;

 private:
  void run();
  Pressure judge(const MemorySample& sample) const noexcept;

  const WatchdogPolicy policy_;
  Sampler sampler_;
  int64_t started_ns_;
  std::atomic<Pressure> pressure_{Pressure::None};
  int64_t last_shrink_ns_ = 0;
  mutable std::mutex mutex_;
  std::condition_variable stopping_;
  bool stop_ = false;
  WatchdogReport report_;
  std::thread thread_;
};

// Available memory and swap as base/machine.h reads them.
Watchdog::Sampler machine_sampler();

}  // namespace penstock::experts
