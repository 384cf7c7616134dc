// A program run as a child: in a process group and a memory group of its own, watched, with its
// output kept in files. What it starts belongs to it: it is counted, and ends with it.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "experts/watchdog.h"
#include "measure/memory_group.h"

namespace penstock::measure {

struct ChildRequest {
  std::vector<std::string> argv;         // argv[0]: the executable's path, or a name in PATH
  std::string executable;                // instead of argv[0]
  std::vector<std::string> environment;  // NAME=VALUE, added to ours
  std::string out_path, err_path;        // where its output goes
  const MemoryGroup* group = nullptr;    // joined before it starts
  double timeout_s = 1800;
  // Below its fuse of available memory, or beyond its swap limit, the child is ended.
  experts::WatchdogPolicy policy;
};

struct ChildReport {
  std::string state = "finished";  // or error, watchdog, timeout, interrupted
  std::string reason;              // for people, empty if it finished with 0
  int exit_code = 0;               // 128 + signal where a signal ended it
  double seconds = 0;
  // Of the child and whatever it started, each sum the most that a sample found.
  uint64_t peak_anonymous = 0;      // bytes: anonymous and shared memory
  uint64_t peak_rss = 0;            // with file pages
  uint64_t storage_bytes = 0;       // fetched from storage
  std::set<std::string> libraries;  // own_libraries() of all of them
  experts::WatchdogReport watchdog;
};

// The last line of what a program said, at most 300 bytes of it.
std::string last_line(std::string text);

class Child {
 public:
  // Throws Error(Io) if it cannot be started (a program that is not there ends with 127).
  explicit Child(const ChildRequest& request, const std::atomic<bool>* interrupted = nullptr);
  ~Child();  // kills it if it still runs
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  bool running() const noexcept { return !ended_.load(); }
  // Asks it and what it started to end (SIGTERM, after 10 s SIGKILL): for servers, whose end is
  // then as it should be.
  void stop() noexcept { stop_.store(true); }
  ChildReport wait();  // until it has ended

 private:
  void supervise();
  void end(int signal) noexcept;
  void end_rest(int64_t asked_ns);
  experts::MemorySample sample();

  const ChildRequest request_;
  const std::atomic<bool>* interrupted_;
  pid_t pid_ = -1;
  int64_t started_ns_ = 0;
  uint64_t swapped_before_ = 0;
  std::atomic<bool> stop_{false}, ended_{false};
  std::mutex mutex_;  // of report_'s peaks and the count, which the watchdog's thread writes
  uint64_t looks_ = 0;
  ChildReport report_;
  std::unique_ptr<experts::Watchdog> watchdog_;
  std::thread supervisor_;
};

}  // namespace penstock::measure
