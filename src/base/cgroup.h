// Where this process's control groups lie.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace penstock {

// v1 writes "no limit" as a number of pages near 2^63; v2 writes "max", which is no number.
inline constexpr uint64_t kCgroupUnlimited = uint64_t{1} << 60;

struct CgroupFolder {
  bool v2 = false;
  std::string mount;  // mount point
  std::string path;   // our group's folder, at or below the mount point
};

// /proc/self/cgroup says which group, /proc/self/mountinfo where its hierarchy is mounted, and
// which part of it: in a container the mount's root is the container's own group. Those of v1's
// `controller` and of v2. `root` is put before what is read, not before what is returned.
std::vector<CgroupFolder> cgroup_folders(const std::string& root, const std::string& controller);

}  // namespace penstock
