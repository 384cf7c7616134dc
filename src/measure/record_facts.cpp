#include "measure/record_facts.h"

#include <elf.h>
#include <link.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/utsname.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/digest.h"
#include "base/error.h"
#include "base/file.h"
#include "base/machine.h"
#include "base/memory_account.h"

extern char** environ;

namespace penstock::measure {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

// The first line of a small system file; null where it cannot be read.
Json line_of(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  if (!std::getline(in, line)) return nullptr;
  while (!line.empty() && (line.back() == ' ' || line.back() == '\n')) line.pop_back();
  return line;
}

Json number_of(const std::string& path) {
  std::ifstream in(path);
  int64_t value = 0;
  return in >> value ? Json(value) : Json();
}

// NT_GNU_BUILD_ID of the main program, as it is mapped.
int find_build_id(dl_phdr_info* info, size_t, void* out) {
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& header = info->dlpi_phdr[i];
    if (header.p_type != PT_NOTE) continue;
    const char* at = reinterpret_cast<const char*>(info->dlpi_addr + header.p_vaddr);
    const char* const end = at + header.p_memsz;
    while (at + sizeof(ElfW(Nhdr)) <= end) {
      ElfW(Nhdr) note;
      std::memcpy(&note, at, sizeof note);
      const char* const name = at + sizeof note;
      const char* const desc = name + ((note.n_namesz + 3u) & ~3u);
      if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 &&
          std::memcmp(name, "GNU", 4) == 0 && desc + note.n_descsz <= end) {
        static constexpr char kDigits[] = "0123456789abcdef";
        auto* text = static_cast<std::string*>(out);
        for (uint32_t b = 0; b < note.n_descsz; ++b) {
          const auto byte = static_cast<unsigned char>(desc[b]);
          *text += kDigits[byte >> 4];
          *text += kDigits[byte & 15];
        }
        return 1;
      }
      at = desc + ((note.n_descsz + 3u) & ~3u);
    }
  }
  return 1;  // the main program comes first: look no further
}

std::string executable_path() {
  std::error_code error;
  const fs::path path = fs::read_symlink("/proc/self/exe", error);
  return error ? std::string() : path.string();
}

// The disk behind a file: model, whether it turns, its queue's scheduler; null for what is no disk.
Json device_json(const std::string& path) {
  struct stat info {};
  if (path.empty() || stat(path.c_str(), &info) != 0) return nullptr;
  const std::string node =
      fmt::format("/sys/dev/block/{}:{}", major(info.st_dev), minor(info.st_dev));
  std::error_code error;
  fs::path device = fs::canonical(node, error);
  if (error) return nullptr;
  if (fs::exists(device / "partition", error)) device = device.parent_path();
  const std::string root = device.string();
  const Json rotational = number_of(root + "/queue/rotational");
  return {{"name", device.filename().string()},
          {"model", line_of(root + "/device/model")},
          {"class", rotational.is_null() ? "unknown"
                    : rotational == 0    ? "solid state"
                                         : "rotating"},
          {"scheduler", line_of(root + "/queue/scheduler")}};
}

Json limit_json(int which) {
  rlimit limit{};
  if (getrlimit(static_cast<__rlimit_resource_t>(which), &limit) != 0) return nullptr;
  return limit.rlim_cur == RLIM_INFINITY ? Json("unlimited") : Json(limit.rlim_cur);
}

Json thermal_json() {
  Json zones = Json::array();
  for (int i = 0; i < 64; ++i) {
    const std::string zone = fmt::format("/sys/class/thermal/thermal_zone{}", i);
    const Json value = number_of(zone + "/temp");
    if (value.is_null()) break;
    zones.push_back({{"type", line_of(zone + "/type")}, {"millidegrees", value}});
  }
  return zones;
}

}  // namespace

double unix_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

Json producer_json(const Producer& producer) {
  const std::string path = executable_path();
  std::string build_id;
  dl_iterate_phdr(find_build_id, &build_id);
  Json out = {{"program", "penstock"},
              {"version", producer.version},
              {"revision", producer.revision},
              {"dirty", producer.dirty},
              {"diff_sha256", producer.diff_sha256.empty() ? Json() : Json(producer.diff_sha256)},
              {"compiler", producer.compiler},
              {"flags", producer.flags},
              {"build_id", build_id.empty() ? Json() : Json(build_id)},
              {"executable", fs::path(path).filename().string()},
              // Through the link: the very file that runs, whatever lies at its path now.
              {"executable_sha256", hex(sha256_file("/proc/self/exe"))},
              {"executable_modified", nullptr}};
  struct stat info {};
  if (stat("/proc/self/exe", &info) == 0) {
    out["executable_modified"] =
        static_cast<double>(info.st_mtim.tv_sec) + static_cast<double>(info.st_mtim.tv_nsec) * 1e-9;
  }
  return out;
}

std::vector<std::string> command_line() {
  std::ifstream in("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> out;
  for (std::string argument; std::getline(in, argument, '\0');) out.push_back(argument);
  return out;
}

Json environment_json() {
  Json out = Json::object();
  for (char** at = environ; *at != nullptr; ++at) {
    const std::string_view entry = *at;
    const size_t equals = entry.find('=');
    if (equals == std::string_view::npos) continue;
    const std::string name(entry.substr(0, equals));
    for (const char* prefix : {"PENSTOCK_", "MALLOC_", "GLIBC_TUNABLES", "OMP_", "GOMP_", "LD_",
                               "JEMALLOC_", "TCMALLOC_", "MIMALLOC_"}) {
      if (name.starts_with(prefix)) out[name] = std::string(entry.substr(equals + 1));
    }
  }
  return out;
}

Json machine_json(const std::string& path) {
  const CpuFacts cpu = cpu_facts();
  const MemoryFacts memory = memory_facts();
  utsname kernel{};
  uname(&kernel);
  Json out;
  out["cpu"] = {{"model", cpu.model},
                {"logical", cpu.logical},
                {"cores", cpu.cores.size()},
                {"performance_cores", cpu.performance.size()},
                {"governor", line_of("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")}};
  out["memory"] = {{"total", memory.total}, {"available", memory.available}};
  out["cgroup"] = nullptr;
  if (memory.cgroup_limit != 0) {
    out["cgroup"] = {{"path", memory.cgroup_path},
                     {"limit", memory.cgroup_limit},
                     {"headroom", memory.cgroup_headroom}};
  }
  out["kernel"] = {{"name", kernel.sysname},
                   {"release", kernel.release},
                   {"version", kernel.version},
                   {"machine", kernel.machine}};
  struct statfs file_system {};
  out["file_system_magic"] = !path.empty() && statfs(path.c_str(), &file_system) == 0
                                 ? Json(static_cast<uint64_t>(file_system.f_type))
                                 : Json();
  out["device"] = device_json(path);
  out["limits"] = {{"locked_memory", limit_json(RLIMIT_MEMLOCK)},
                   {"open_files", limit_json(RLIMIT_NOFILE)},
                   {"address_space", limit_json(RLIMIT_AS)}};
  out["thermal"] = thermal_json();
  double load[3] = {};
  out["load_average"] = getloadavg(load, 3) == 3 ? Json({load[0], load[1], load[2]}) : Json();
  return out;
}

Json pressure_json(const std::optional<MemoryPressure>& pressure) {
  if (!pressure) return nullptr;
  const auto line = [](const PressureLine& l) -> Json {
    return {{"avg10", l.avg10}, {"total_us", l.total_us}};
  };
  return {{"some", line(pressure->some)}, {"full", line(pressure->full)}};
}

Json memory_json() {
  const Footprint f = footprint();
  const std::optional<uint64_t> cgroup_peak = cgroup_memory_peak();
  const MemoryFacts facts = memory_facts();
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return {{"footprint", f.total()},
          {"anonymous", f.anonymous},
          {"swap", f.swap},
          {"locked_file", f.locked_file},
          {"peak_rss", f.peak_rss},
          {"available", facts.available},
          {"cgroup_headroom", facts.cgroup_limit != 0 ? Json(facts.cgroup_headroom) : Json()},
          {"cgroup_peak", cgroup_peak ? Json(*cgroup_peak) : Json()},
          {"pressure",
           {{"host", pressure_json(host_memory_pressure())},
            {"cgroup", pressure_json(cgroup_memory_pressure())}}},
          {"swapped_out", swapped_out()},
          {"major_faults", usage.ru_majflt},
          {"minor_faults", usage.ru_minflt},
          {"storage_bytes_read", storage_bytes_read()}};
}

}  // namespace penstock::measure
