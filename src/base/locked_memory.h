// Memory that the kernel must not take away, and what the kernel says about it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace penstock {

// Locks [start, start + bytes) and faults it in. 0, or the errno of the refusal; then no page of
// the range is locked.
using MemoryLocker = std::function<int(const void* start, size_t bytes)>;
int lock_memory(const void* start, size_t bytes) noexcept;

// Bytes of this process that are locked: VmLck of /proc/self/status. `root` as in base/machine.h.
uint64_t locked_memory(const std::string& root = "");

// The limit on that in bytes (RLIMIT_MEMLOCK, the soft one); UINT64_MAX: none. Root is above it.
uint64_t memory_lock_limit() noexcept;

}  // namespace penstock
