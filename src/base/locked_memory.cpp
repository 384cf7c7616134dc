#include "base/locked_memory.h"

#include <sys/mman.h>
#include <sys/resource.h>

#include <cerrno>
#include <fstream>

namespace penstock {

int lock_memory(const void* start, size_t bytes) noexcept {
  if (mlock(start, bytes) == 0) return 0;
  const int error = errno;
  munlock(start, bytes);  // the kernel may have given up in the middle
  return error;
}

uint64_t locked_memory(const std::string& root) {
  std::ifstream status(root + "/proc/self/status");
  for (std::string word; status >> word;) {
    uint64_t kib = 0;
    if (word == "VmLck:" && status >> kib) return kib * 1024;
  }
  return 0;
}

uint64_t memory_lock_limit() noexcept {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return UINT64_MAX;
  return limit.rlim_cur;
}

}  // namespace penstock
