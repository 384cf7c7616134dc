#include "models/dense_report.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/machine.h"

namespace penstock::models {

uint64_t DenseReport::tensors_converted() const noexcept {
  uint64_t n = 0;
  for (const ConvertedTensors& c : converted) n += c.tensors;
  return n;
}

uint64_t DenseReport::bytes_converted() const noexcept {
  uint64_t bytes = 0;
  for (const ConvertedTensors& c : converted) bytes += c.bytes_from;
  return bytes;
}

uint64_t DenseReport::bytes_requested() const noexcept {
  uint64_t bytes = 0;
  for (const LockedRegion& region : regions) bytes += region.requested;
  return bytes;
}

uint64_t DenseReport::bytes_locked() const noexcept {
  uint64_t bytes = 0;
  for (const LockedRegion& region : regions) bytes += region.locked;
  return bytes;
}

int DenseReport::lock_error() const noexcept {
  for (const LockedRegion& region : regions) {
    if (region.error != 0) return region.error;
  }
  return 0;
}

std::string lock_shortfall(const DenseReport& report) {
  if (!report.lock_tried || report.bytes_locked() == report.bytes_requested()) return {};
  return fmt::format(
      "dense weights: {} were to be locked in memory, {} are: {}; the limit in force "
      "(RLIMIT_MEMLOCK) is {}. What is not locked may be swapped out or dropped when memory is "
      "short. Raise the limit (ulimit -l, LimitMEMLOCK=, docker run --ulimit memlock=), or give "
      "--lock off",
      format_bytes(report.bytes_requested()), format_bytes(report.bytes_locked()),
      errno_text(report.lock_error()),
      report.lock_limit == UINT64_MAX ? "none" : format_bytes(report.lock_limit));
}

}  // namespace penstock::models
