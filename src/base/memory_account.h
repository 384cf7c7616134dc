// What the kernel accounts of memory beside what base/machine.h reads: how long tasks waited for it
// (PSI), and the most that our own control group held. `root` as there.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace penstock {

// One line of a pressure file: tasks waited for memory, some of them or all at once.
struct PressureLine {
  double avg10 = 0;       // % of the last 10 s
  uint64_t total_us = 0;  // since the start of the system or of the group
};
struct MemoryPressure {
  PressureLine some, full;
};

// Of a pressure file, as the two below are; nothing for what is none.
std::optional<MemoryPressure> memory_pressure_in(const std::string& path);
// Of the whole machine (/proc/pressure/memory); nothing where the kernel does not keep it.
std::optional<MemoryPressure> host_memory_pressure(const std::string& root = "");
// Of our own group of cgroup v2 (memory.pressure); nothing in v1, which has none.
std::optional<MemoryPressure> cgroup_memory_pressure(const std::string& root = "");

// The most bytes that our own memory group ever held, page cache too (v2: memory.peak, v1:
// memory.max_usage_in_bytes). Nothing unless that very group has a limit: the group of a whole
// session says nothing about one run.
std::optional<uint64_t> cgroup_memory_peak(const std::string& root = "");

}  // namespace penstock
