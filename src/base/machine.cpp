#include "base/machine.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>
#include <optional>
#include <set>
#include <sstream>

#include "base/cgroup.h"
#include "base/error.h"

namespace penstock {
namespace {

// Kernel files are small and may be missing: then they say nothing.
std::string slurp(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::optional<uint64_t> to_number(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end == text.data()) return std::nullopt;
  return value;
}

// "Name: 123 kB" or "name 123": the number after `name` at the start of a line.
std::optional<uint64_t> field(const std::string& text, std::string_view name) {
  for (const std::string& line : lines_of(text)) {
    if (line.size() <= name.size() || std::string_view(line).substr(0, name.size()) != name) {
      continue;
    }
    const char next = line[name.size()];
    if (next == ':' || next == ' ' || next == '\t') {
      return to_number(std::string_view(line).substr(name.size() + 1));
    }
  }
  return std::nullopt;
}

uint64_t kib_field(const std::string& text, std::string_view name) {
  return field(text, name).value_or(0) * 1024;
}

// "0-3,8,10-11"
std::vector<int> cpu_list(const std::string& text) {
  std::vector<int> cpus;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) {
    const std::optional<uint64_t> first = to_number(part);
    if (!first) continue;
    const size_t dash = part.find('-');
    const uint64_t last =
        dash == std::string::npos ? *first : to_number(part.substr(dash + 1)).value_or(*first);
    for (uint64_t cpu = *first; cpu <= last && cpu < CPU_SETSIZE; ++cpu) {
      cpus.push_back(static_cast<int>(cpu));
    }
  }
  return cpus;
}

std::vector<int> usable_cpus(const std::string& root) {
  std::vector<int> online = cpu_list(slurp(root + "/sys/devices/system/cpu/online"));
  if (!root.empty()) return online;
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return online;
  if (online.empty()) {
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) online.push_back(cpu);
  }
  online.erase(std::remove_if(online.begin(), online.end(),
                              [&](int cpu) { return CPU_ISSET(cpu, &allowed) == 0; }),
               online.end());
  return online;
}

// The fast cores of a hybrid CPU: the kernel's own list, else capacity, else clock.
std::vector<int> performance_cores(const std::string& root, const std::vector<int>& cores) {
  const std::vector<int> listed = cpu_list(slurp(root + "/sys/devices/cpu_core/cpus"));
  std::vector<int> fast;
  if (!listed.empty()) {
    for (const int cpu : cores) {
      if (std::find(listed.begin(), listed.end(), cpu) != listed.end()) fast.push_back(cpu);
    }
    return fast.empty() ? cores : fast;
  }
  for (const char* measure : {"cpu_capacity", "cpufreq/cpuinfo_max_freq"}) {
    std::vector<uint64_t> values;
    for (const int cpu : cores) {
      const std::string path =
          fmt::format("{}/sys/devices/system/cpu/cpu{}/{}", root, cpu, measure);
      values.push_back(to_number(slurp(path)).value_or(0));
    }
    const uint64_t most = values.empty() ? 0 : *std::max_element(values.begin(), values.end());
    const uint64_t least = values.empty() ? 0 : *std::min_element(values.begin(), values.end());
    // Favoured cores differ by a few per cent, kinds of cores by a quarter and more.
    const auto is_fast = [&](uint64_t value) { return value * 5 >= most * 4; };
    if (least == 0 || is_fast(least)) continue;
    for (size_t i = 0; i < cores.size(); ++i) {
      if (is_fast(values[i])) fast.push_back(cores[i]);
    }
    return fast;
  }
  return cores;
}

std::vector<std::string> words_of(const std::string& line) {
  std::istringstream stream(line);
  return {std::istream_iterator<std::string>(stream), {}};
}

std::optional<uint64_t> cgroup_limit(const std::string& directory, bool v2) {
  std::optional<uint64_t> limit;
  const auto tighten = [&](const char* file) {
    const std::optional<uint64_t> value = to_number(slurp(directory + file));
    if (value && *value < kCgroupUnlimited) limit = std::min(limit.value_or(*value), *value);
  };
  if (v2) {
    tighten("/memory.max");
    tighten("/memory.high");
  } else {
    tighten("/memory.limit_in_bytes");
  }
  return limit;
}

uint64_t cgroup_headroom(const std::string& directory, bool v2, uint64_t limit) {
  const uint64_t usage =
      to_number(slurp(directory + (v2 ? "/memory.current" : "/memory.usage_in_bytes"))).value_or(0);
  const std::string stat = slurp(directory + "/memory.stat");
  const auto value = [&](const char* v1_name, const char* v2_name) {
    return field(stat, v2 ? v2_name : v1_name).value_or(0);
  };
  // Pages that can be dropped at once: inactive and neither dirty nor being written.
  const uint64_t inactive = value("total_inactive_file", "inactive_file");
  const uint64_t busy =
      value("total_dirty", "file_dirty") + value("total_writeback", "file_writeback");
  const uint64_t clean = inactive > busy ? inactive - busy : 0;
  const uint64_t held = usage > clean ? usage - clean : 0;
  return limit > held ? limit - held : 0;
}

}  // namespace

CpuFacts cpu_facts(const std::string& root) {
  CpuFacts facts;
  for (const std::string& line : lines_of(slurp(root + "/proc/cpuinfo"))) {
    if (line.compare(0, 10, "model name") != 0) continue;
    const size_t colon = line.find(": ");
    if (colon != std::string::npos) facts.model = line.substr(colon + 2);
    break;
  }
  const std::vector<int> cpus = usable_cpus(root);
  facts.logical = static_cast<int>(cpus.size());
  std::set<int> siblings_of_seen;
  for (const int cpu : cpus) {
    if (siblings_of_seen.count(cpu) != 0) continue;
    facts.cores.push_back(cpu);
    const std::string path =
        fmt::format("{}/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", root, cpu);
    for (const int sibling : cpu_list(slurp(path))) siblings_of_seen.insert(sibling);
  }
  facts.performance = performance_cores(root, facts.cores);
  return facts;
}

std::string MemoryFacts::source() const {
  return cgroup_binds() ? fmt::format("cgroup {}", cgroup_path) : "host (MemAvailable)";
}

MemoryFacts memory_facts(const std::string& root) {
  MemoryFacts facts;
  const std::string meminfo = slurp(root + "/proc/meminfo");
  facts.total = kib_field(meminfo, "MemTotal");
  facts.available = kib_field(meminfo, "MemAvailable");
  for (const CgroupFolder& group : cgroup_folders(root, "memory")) {
    for (std::string path = group.path; path.size() >= group.mount.size();) {
      const std::string directory = root + path;
      if (const std::optional<uint64_t> limit = cgroup_limit(directory, group.v2)) {
        const uint64_t headroom = cgroup_headroom(directory, group.v2, *limit);
        if (facts.cgroup_limit == 0 || headroom < facts.cgroup_headroom) {
          facts.cgroup_limit = *limit;
          facts.cgroup_headroom = headroom;
          facts.cgroup_path = path;
        }
      }
      const size_t slash = path.rfind('/');
      if (slash == std::string::npos || slash == 0) break;
      path.resize(slash);
    }
  }
  return facts;
}

Footprint footprint(const std::string& root) {
  Footprint result;
  const std::string rollup = slurp(root + "/proc/self/smaps_rollup");
  result.anonymous = kib_field(rollup, "Anonymous");
  result.swap = kib_field(rollup, "SwapPss");
  if (kib_field(rollup, "Locked") != 0) {
    // Which of the locked bytes belong to files only the single mappings tell.
    bool of_file = false;
    for (const std::string& line : lines_of(slurp(root + "/proc/self/smaps"))) {
      const std::vector<std::string> words = words_of(line);
      if (words.size() >= 5 && words[0].find('-') != std::string::npos) {
        of_file = words[4] != "0";  // the inode
      } else if (of_file) {
        result.locked_file += kib_field(line, "Locked");
      }
    }
  }
  const std::string status = slurp(root + "/proc/self/status");
  result.rss_anon = kib_field(status, "RssAnon");
  result.peak_rss = kib_field(status, "VmHWM");
  return result;
}

uint64_t swapped_out(const std::string& root) {
  for (const CgroupFolder& group : cgroup_folders(root, "memory")) {
    const std::string directory = root + group.path;
    if (!cgroup_limit(directory, group.v2)) continue;
    const std::optional<uint64_t> swap = group.v2
                                             ? to_number(slurp(directory + "/memory.swap.current"))
                                             : field(slurp(directory + "/memory.stat"), "swap");
    if (swap) return *swap;
  }
  return field(slurp(root + "/proc/vmstat"), "pswpout").value_or(0) *
         static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

uint64_t storage_bytes_read(const std::string& root) {
  return field(slurp(root + "/proc/self/io"), "read_bytes").value_or(0);
}

uint64_t parse_size(std::string_view text) {
  const std::string all(text);
  const auto refuse = [&]() {
    fail(ErrorKind::Usage,
         "\"{}\" is not a size; write bytes, or a number with K, M, G or T, as in "
         "512M or 1.5G",
         all);
  };
  double value = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
  if (error != std::errc() || !(value >= 0)) refuse();
  std::string_view unit = text.substr(static_cast<size_t>(end - text.data()));
  double scale = 1;
  if (!unit.empty()) {
    constexpr std::string_view kUnits = "KMGT";
    const size_t power = kUnits.find(
        unit[0] >= 'a' && unit[0] <= 'z' ? static_cast<char>(unit[0] - 'a' + 'A') : unit[0]);
    if (power != std::string_view::npos) {
      scale = std::ldexp(1.0, 10 * (static_cast<int>(power) + 1));
      unit.remove_prefix(1);
      if (unit == "iB" || unit == "B") unit = {};
    } else if (unit == "B") {
      unit = {};
    }
    if (!unit.empty()) refuse();
  }
  const double bytes = std::floor(value * scale);
  if (!(bytes < 9e18)) refuse();
  return static_cast<uint64_t>(bytes);
}

std::string format_bytes(uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  if (unit == 0) return fmt::format("{} {}", bytes, kUnits[0]);
  return fmt::format("{:.{}f} {}", value, value < 10 ? 2 : value < 100 ? 1 : 0, kUnits[unit]);
}

}  // namespace penstock
