#include "experts/watchdog.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/machine.h"

namespace penstock::experts {
namespace {

constexpr size_t kMostEvents = 1000;  // a machine that swings would fill the record

}  // namespace

const char* pressure_name(Pressure pressure) noexcept {
  switch (pressure) {
    case Pressure::None:
      return "none";
    case Pressure::Warn:
      return "warn";
    case Pressure::Shrink:
      return "shrink";
    case Pressure::Abort:
      return "abort";
  }
  return "?";
}

WatchdogPolicy watchdog_policy(const Plan& plan) {
  WatchdogPolicy policy;
  policy.fuse = plan.fuse;
  policy.margin = plan.margin;
  return policy;
}

Watchdog::Watchdog(const WatchdogPolicy& policy, Sampler sampler, bool run)
    : policy_(policy), sampler_(std::move(sampler)), started_ns_(now_ns()) {
  report_.policy = policy;
  if (run) thread_ = std::thread([this] { this->run(); });
}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  stopping_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Watchdog::run() {
  const auto period = std::chrono::milliseconds(policy_.period_ms);
  for (;;) {
    look();
    std::unique_lock lock(mutex_);
    if (stopping_.wait_for(lock, period, [this] { return stop_; })) return;
  }
}

Pressure Watchdog::judge(const MemorySample& sample) const noexcept {
  if (sample.available < policy_.abort_below() || sample.swapped > policy_.swap_limit) {
    return Pressure::Abort;
  }
  if (sample.available < policy_.shrink_below()) return Pressure::Shrink;
  if (sample.available < policy_.warn_below()) return Pressure::Warn;
  return Pressure::None;
}

void Watchdog::look() {
  MemorySample sample = sampler_();
  sample.at_s = seconds_since(started_ns_);
  const Pressure pressure = judge(sample);
  const std::lock_guard lock(mutex_);
  ++report_.samples;
  report_.min_available = std::min(report_.min_available, sample.available);
  report_.max_swapped = std::max(report_.max_swapped, sample.swapped);
  const Pressure before = pressure_.exchange(pressure, std::memory_order_relaxed);
  if (pressure == before || report_.events.size() >= kMostEvents) return;
  report_.events.push_back({pressure, sample, 0});
  if (pressure > before) {
    log::warn("memory is getting short: {} available, {} swapped out since the start ({})",
              format_bytes(sample.available), format_bytes(sample.swapped),
              pressure_name(pressure));
  }
}

bool Watchdog::take_shrink() noexcept {
  if (pressure() != Pressure::Shrink) return false;
  const int64_t now = now_ns();
  if (last_shrink_ns_ != 0 && now - last_shrink_ns_ < int64_t{policy_.shrink_pause_ms} * 1000000) {
    return false;
  }
  last_shrink_ns_ = now;
  return true;
}

void Watchdog::gave_back(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto last = std::find_if(report_.events.rbegin(), report_.events.rend(),
                                 [](const auto& e) { return e.pressure == Pressure::Shrink; });
  if (last != report_.events.rend()) last->given_back += bytes;
}

WatchdogReport Watchdog::report() const {
  const std::lock_guard lock(mutex_);
  return report_;
}

Watchdog::Sampler machine_sampler() {
  return [at_start = swapped_out()] {
    MemorySample sample;
    sample.available = memory_facts().headroom();
    const uint64_t now = swapped_out();
    sample.swapped = now > at_start ? now - at_start : 0;
    return sample;
  };
}

}  // namespace penstock::experts
