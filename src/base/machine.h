// Facts about the machine and this process, each with its source, and sizes as people write them.
// `root` is put before every path that is read, so that tests can use a directory of made-up files.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

struct CpuFacts {
  std::string model;             // as /proc/cpuinfo names it; empty where it does not
  int logical = 0;               // CPUs this process may run on
  std::vector<int> cores;        // one CPU of each physical core
  std::vector<int> performance;  // those of `cores` that are performance cores; all where alike
};
CpuFacts cpu_facts(const std::string& root = "");

struct MemoryFacts {
  uint64_t total = 0;      // MemTotal
  uint64_t available = 0;  // MemAvailable
  // The memory cgroup (v1 or v2) with the least room among ours and its ancestors. Without a limit
  // `cgroup_limit` is 0.
  uint64_t cgroup_limit = 0;
  uint64_t cgroup_headroom = 0;  // limit - (usage - clean inactive file pages)
  std::string cgroup_path;       // the directory whose limit that is

  bool cgroup_binds() const noexcept { return cgroup_limit != 0 && cgroup_headroom < available; }
  uint64_t headroom() const noexcept { return cgroup_binds() ? cgroup_headroom : available; }
  std::string source() const;  // "host (MemAvailable)" or "cgroup /sys/fs/…"
};
MemoryFacts memory_facts(const std::string& root = "");

// What this process really occupies (spec/streaming.md §C.4).
struct Footprint {
  uint64_t anonymous = 0;
  uint64_t swap = 0;         // SwapPss
  uint64_t locked_file = 0;  // locked bytes of file mappings
  uint64_t rss_anon = 0;     // VmHWM and RssAnon as /proc/self/status gives them
  uint64_t peak_rss = 0;
  uint64_t total() const noexcept { return anonymous + swap + locked_file; }
};
Footprint footprint(const std::string& root = "");

// Bytes swapped out: of our cgroup as it is now where one limits memory (v2: memory.swap.current,
// v1: `swap` of memory.stat), else by the whole machine since it started (pswpout). Its changes are
// what counts.
uint64_t swapped_out(const std::string& root = "");

// Bytes this process fetched from storage (read_bytes of /proc/self/io); 0 where not readable.
uint64_t storage_bytes_read(const std::string& root = "");

// "8G", "512M", "1.5GiB", "4096": binary units, bytes without one. Throws Error(Usage).
uint64_t parse_size(std::string_view text);
std::string format_bytes(uint64_t bytes);  // "1.50 GiB", "512 MiB", "17 B"

}  // namespace penstock
