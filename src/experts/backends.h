// The makers of the single backends; callers outside use make_backend().
#pragma once

#include <algorithm>
#include <memory>

#include "experts/io.h"

namespace penstock::experts {

inline void relax() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Null with the errno where the kernel or a container's filter refuses io_uring.
std::unique_ptr<IoBackend> make_uring(size_t capacity, int* error);

// Threads that call pread. With `drop_cache` each read's pages are dropped from the page cache.
// Without threads (none wanted, or none to be had) submit() itself reads. `started`: how many there
// are.
std::unique_ptr<IoBackend> make_pool(size_t capacity, int threads, bool drop_cache, int* started);

}  // namespace penstock::experts
