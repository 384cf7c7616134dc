// Time from the monotonic clock, in nanoseconds.
#pragma once

#include <chrono>
#include <cstdint>

namespace penstock {

inline int64_t now_ns() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

inline double seconds_since(int64_t start_ns) noexcept {
  return static_cast<double>(now_ns() - start_ns) * 1e-9;
}

}  // namespace penstock
