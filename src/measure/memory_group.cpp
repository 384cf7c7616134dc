#include "measure/memory_group.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <vector>

#include "base/cgroup.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"

namespace penstock::measure {
namespace {

// Without creating what is not there: a controller's file either exists or is not offered.
bool put(const std::string& path, const std::string& text) {
  int error = 0;
  const File file = File::try_open(path, O_WRONLY, &error);
  return file && ::write(file.fd(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

bool number_of(const std::string& path, uint64_t* value) {
  std::ifstream in(path);
  return static_cast<bool>(in >> *value);
}

// v2: a group can be limited only where its parent hands the controller down.
std::vector<std::string> parents_of(const CgroupFolder& group) {
  std::vector<std::string> parents = {group.path};
  std::string path = group.path;
  while (group.v2 && path.size() > group.mount.size()) {
    path.resize(path.rfind('/'));
    parents.push_back(path);
  }
  return parents;
}

}  // namespace

MemoryGroup::MemoryGroup(uint64_t limit, const std::string& root) {
  static std::atomic<int> count{0};
  const std::vector<CgroupFolder> groups = cgroup_folders(root, "memory");
  if (groups.empty()) {
    fail(ErrorKind::Unsupported, "there is no memory cgroup here: a limit cannot be set");
  }
  std::string why = "no group could be made";
  for (const CgroupFolder& group : groups) {
    for (const std::string& parent : parents_of(group)) {
      path_ = fmt::format("{}{}/penstock-bench-{}-{}", root, parent, ::getpid(), count++);
      v2_ = group.v2;
      if (::mkdir(path_.c_str(), 0755) != 0) {
        why = fmt::format("{}: {}", path_, std::strerror(errno));
        path_.clear();
        continue;
      }
      const std::string file = path_ + (v2_ ? "/memory.max" : "/memory.limit_in_bytes");
      if (v2_ && ::access(file.c_str(), F_OK) != 0) {
        put(root + parent + "/cgroup.subtree_control", "+memory");
      }
      uint64_t in_force = 0;
      if (put(file, fmt::format("{}", limit)) && number_of(file, &in_force) && in_force <= limit &&
          in_force + (1 << 20) > limit) {
        if (v2_) put(path_ + "/memory.swap.max", "0");
        return;
      }
      why = fmt::format("{}: the limit could not be set", file);
      remove();
    }
  }
  fail(ErrorKind::Unsupported,
       "no memory limit can be set here ({}): it takes the rights of root or a delegated cgroup, "
       "such as `systemd-run --user --scope -p Delegate=yes penstock bench ...`",
       why);
}

MemoryGroup::~MemoryGroup() {
  remove();
}

void MemoryGroup::remove() noexcept {
  if (path_.empty()) return;
  // A group empties itself a moment after its last process ended.
  for (int tries = 0; tries < 100; ++tries) {
    if (::rmdir(path_.c_str()) == 0 || errno != EBUSY) {
      path_.clear();
      return;
    }
    ::usleep(20000);
  }
  log::warn("{} is still in use and stays", path_);
  path_.clear();
}

uint64_t MemoryGroup::peak() const {
  uint64_t value = 0;
  number_of(path_ + (v2_ ? "/memory.peak" : "/memory.max_usage_in_bytes"), &value);
  return value;
}

uint64_t MemoryGroup::oom_kills() const {
  std::ifstream in(path_ + (v2_ ? "/memory.events" : "/memory.oom_control"));
  for (std::string name; in >> name;) {
    uint64_t value = 0;
    in >> value;
    if (name == "oom_kill") return value;
  }
  return 0;
}

std::optional<MemoryPressure> MemoryGroup::pressure() const {
  return memory_pressure_in(path_ + "/memory.pressure");
}

std::string why_no_memory_group(const std::string& root) {
  try {
    const MemoryGroup group(uint64_t{1} << 30, root);
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace penstock::measure
