// A memory cgroup for one child process: made with a limit, removed again (v1 and v2).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/memory_account.h"

namespace penstock::measure {

class MemoryGroup {
 public:
  // Makes a group below ours. Throws Error(Unsupported) saying what is missing: no memory
  // controller, no right to make groups or to set a limit, a limit that did not stick. `root`: put
  // before every path, for tests.
  MemoryGroup(uint64_t limit, const std::string& root = "");
  ~MemoryGroup();  // removes it; a group that is still in use is left with a warning
  MemoryGroup(const MemoryGroup&) = delete;
  MemoryGroup& operator=(const MemoryGroup&) = delete;

  const std::string& path() const noexcept { return path_; }
  bool v2() const noexcept { return v2_; }
  // The file that a process writes "0" to in order to join.
  std::string join_file() const { return path_ + "/cgroup.procs"; }
  uint64_t peak() const;  // bytes, page cache too; 0 where the kernel does not say
  uint64_t oom_kills() const;
  // How long its tasks waited for memory; nothing where the kernel does not say (all of v1).
  std::optional<MemoryPressure> pressure() const;

 private:
  void remove() noexcept;

  std::string path_;
  bool v2_ = false;
};

// Empty if groups can be made here, else why not.
std::string why_no_memory_group(const std::string& root = "");

}  // namespace penstock::measure
