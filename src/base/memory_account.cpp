#include "base/memory_account.h"

#include <charconv>
#include <fstream>
#include <sstream>

#include "base/cgroup.h"

namespace penstock {
namespace {

template <typename Number>
bool read_number(std::string_view text, Number* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end != text.data();
}

std::optional<uint64_t> number_in(const std::string& path) {
  std::ifstream file(path);
  uint64_t value = 0;
  if (!(file >> value)) return std::nullopt;
  return value;
}

}  // namespace

// "some avg10=0.00 avg60=0.00 avg300=0.00 total=0", and the same for "full".
std::optional<MemoryPressure> memory_pressure_in(const std::string& path) {
  std::ifstream file(path);
  MemoryPressure found;
  int numbers = 0;
  for (std::string text; std::getline(file, text);) {
    std::istringstream words(text);
    std::string word;
    words >> word;
    PressureLine* line = word == "some" ? &found.some : word == "full" ? &found.full : nullptr;
    while (line != nullptr && words >> word) {
      const std::string_view value(word);
      if (value.starts_with("avg10=")) numbers += read_number(value.substr(6), &line->avg10);
      if (value.starts_with("total=")) numbers += read_number(value.substr(6), &line->total_us);
    }
  }
  if (numbers != 4) return std::nullopt;
  return found;
}

std::optional<MemoryPressure> host_memory_pressure(const std::string& root) {
  return memory_pressure_in(root + "/proc/pressure/memory");
}

std::optional<MemoryPressure> cgroup_memory_pressure(const std::string& root) {
  for (const CgroupFolder& group : cgroup_folders(root, "memory")) {
    if (!group.v2) continue;
    if (auto found = memory_pressure_in(root + group.path + "/memory.pressure")) return found;
  }
  return std::nullopt;
}

std::optional<uint64_t> cgroup_memory_peak(const std::string& root) {
  for (const CgroupFolder& group : cgroup_folders(root, "memory")) {
    const std::string folder = root + group.path;
    const auto limit = number_in(folder + (group.v2 ? "/memory.max" : "/memory.limit_in_bytes"));
    if (!limit || *limit >= kCgroupUnlimited) continue;
    return number_in(folder + (group.v2 ? "/memory.peak" : "/memory.max_usage_in_bytes"));
  }
  return std::nullopt;
}

}  // namespace penstock
