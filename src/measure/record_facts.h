// Facts that go into every run record (docs/records.md): who made it, where, with what around it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/memory_account.h"

namespace penstock::measure {

double unix_seconds();  // now, since 1970

// What only the build knows.
struct Producer {
  std::string version = {}, revision = {}, compiler = {}, flags = {};
  bool dirty = false;
  std::string diff_sha256 = {};  // of the working tree's difference to the revision; empty: none
  std::string diff_path = {};    // where the build left it
};

// With the executable's hash, build id and time.
nlohmann::json producer_json(const Producer& producer);
std::vector<std::string> command_line();  // argv as the kernel has it
// This program's variables, and those of allocators, threads and the loader.
nlohmann::json environment_json();
// Processor, memory, kernel, limits, cgroup, power and temperature as far as they can be read;
// `path`: a file on the disk that matters.
nlohmann::json machine_json(const std::string& path);
// {"some": {"avg10", "total_us"}, "full": ...}; null for none.
nlohmann::json pressure_json(const std::optional<MemoryPressure>& pressure);
// Footprint, available memory, swap, pressure, faults, storage reads: now.
nlohmann::json memory_json();

}  // namespace penstock::measure
