// What belongs to a child process beside itself: whatever it started, as /proc says.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace penstock::measure {

// `root` and the processes below it, itself first. One whose parent has ended is no longer below.
std::vector<pid_t> process_tree(pid_t root);
// Whether a process of the group `group` still runs (one that ended and was not waited for does
// not).
bool group_runs(pid_t group);

struct ProcessFigures {
  uint64_t anonymous = 0;  // bytes of anonymous and shared memory
  uint64_t resident = 0;   // bytes, file pages too
  uint64_t storage = 0;    // bytes fetched from storage, by it and by what it waited for
};
// Zeros for a process that is gone.
ProcessFigures process_figures(pid_t pid);

// Paths of the shared libraries that the process has mapped from its executable's own folder or
// below it, as of now: what was built with it and may differ although the executable does not.
std::set<std::string> own_libraries(pid_t pid);

}  // namespace penstock::measure
