#include "base/cgroup.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string_view>

namespace penstock {
namespace {

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

std::vector<std::string> lines_of_file(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

bool contains(const std::vector<std::string>& list, std::string_view item) {
  return std::find(list.begin(), list.end(), item) != list.end();
}

}  // namespace

std::vector<CgroupFolder> cgroup_folders(const std::string& root, const std::string& controller) {
  std::vector<CgroupFolder> found;
  const std::vector<std::string> mounts = lines_of_file(root + "/proc/self/mountinfo");
  for (const std::string& line : lines_of_file(root + "/proc/self/cgroup")) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string group = line.substr(second + 1);
    const bool v2 = controllers.empty();
    if (!v2 && !contains(split(controllers, ','), controller)) continue;
    for (const std::string& mount : mounts) {
      const std::vector<std::string> fields = split(mount, ' ');
      const auto dash = std::find(fields.begin(), fields.end(), "-");
      if (fields.size() < 6 || fields.end() - dash < 4) continue;
      if (dash[1] != (v2 ? "cgroup2" : "cgroup")) continue;
      if (!v2 && !contains(split(dash[3], ','), controller)) continue;
      const std::string& mount_root = fields[3];
      std::string below;
      if (mount_root == "/") {
        below = group;
      } else if (group.compare(0, mount_root.size(), mount_root) == 0) {
        below = group.substr(mount_root.size());
      }
      while (!below.empty() && below.back() == '/') below.pop_back();
      found.push_back({v2, fields[4], fields[4] + below});
      break;
    }
  }
  return found;
}

}  // namespace penstock
