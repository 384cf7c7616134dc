// The program where the system gives it less than usual: a memory group that another process fills
// up, a container's filter that forbids io_uring.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/machine.h"
#include "e2e/program.h"

namespace penstock::testing {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

// A cgroup (v1) with a limit; none where this machine or these rights do not allow it.
class Group {
 public:
  explicit Group(uint64_t limit)
      : path_("/sys/fs/cgroup/memory/penstock-test-" + std::to_string(getpid())) {
    if (mkdir(path_.c_str(), 0755) != 0) {
      path_.clear();
      return;
    }
    put("memory.limit_in_bytes", std::to_string(limit));
    if (number("memory.limit_in_bytes") != limit) remove();
  }
  ~Group() { remove(); }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  explicit operator bool() const { return !path_.empty(); }
  void put(const std::string& name, const std::string& text) const {
    std::ofstream(path_ + "/" + name) << text;
  }
  uint64_t number(const std::string& name) const {
    uint64_t value = 0;
    std::ifstream(path_ + "/" + name) >> value;
    return value;
  }
  // What is left, counted as base/machine.h counts it.
  uint64_t headroom() const {
    uint64_t inactive = 0;
    std::ifstream stat(path_ + "/memory.stat");
    for (std::string name; stat >> name;) {
      uint64_t value = 0;
      stat >> value;
      if (name == "total_inactive_file") inactive = value;
    }
    return number("memory.limit_in_bytes") - (number("memory.usage_in_bytes") - inactive);
  }

 private:
  void remove() {
    if (path_.empty()) return;
    rmdir(path_.c_str());
    path_.clear();
  }
  std::string path_;
};

class MemoryGroup : public Program {
 protected:
  // Starts the program inside the group.
  pid_t start_in(const Group& group, const std::vector<std::string>& arguments) const {
    const pid_t child = fork();
    if (child != 0) return child;
    group.put("cgroup.procs", std::to_string(getpid()));
    const pid_t inner = start(arguments);
    int status = 0;
    waitpid(inner, &status, 0);
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 100 + WTERMSIG(status));
  }
  // Waits until the program has said this on standard error.
  bool says(const std::string& words) const {
    for (int i = 0; i < 600; ++i) {
      if (read_all(path("err.0")).find(words) != std::string::npos) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    return false;
  }
  // Takes memory inside the group until only `left` bytes are free there; returns who holds it.
  static pid_t hog(const Group& group, uint64_t left) {
    int ready[2];
    if (pipe(ready) != 0) return -1;
    const pid_t child = fork();
    if (child != 0) {
      char byte = 0;
      close(ready[1]);
      EXPECT_EQ(::read(ready[0], &byte, 1), 1);
      close(ready[0]);
      return child;
    }
    group.put("cgroup.procs", std::to_string(getpid()));
    while (group.headroom() > left) {
      const uint64_t bytes = std::min<uint64_t>(group.headroom() - left, 4 * kMiB) / 4096 * 4096;
      if (bytes == 0) break;
      void* memory =
          mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (memory == MAP_FAILED) break;
      std::memset(memory, 1, bytes);
    }
    if (::write(ready[1], "x", 1) != 1) _exit(1);
    pause();
    _exit(0);
  }
  static void end(pid_t child) {
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  }
};

TEST_F(MemoryGroup, TheArenaShrinksAndTheRunEndsInOrderWhenMemoryIsTaken) {
  const std::string model = std::string(PENSTOCK_SOURCE_DIR) + "/models/sample-qwen4exp-q8_0.gguf";
  if (!std::filesystem::exists(model)) GTEST_SKIP() << "no sample model";
  const uint64_t limit = 700 * kMiB;
  const Group group(limit);
  if (!group) GTEST_SKIP() << "no memory group can be made here";
  // The fuse of a group is 128 MiB at least, the margin 2 % of the limit.
  const uint64_t fuse = 128 * kMiB;
  const uint64_t margin = limit / 50;
  const pid_t child = start_in(
      group, {"run", "-m", model, "-p", "The river", "-n", "1000000", "--ctx", "100000",
              "--ignore-eos", "--json", "--no-summary", "--watchdog-ms", "20", "--memory", "500M"});
  ASSERT_TRUE(says("experts are read from")) << read_all(path("err.0"));
  const pid_t first = hog(group, fuse - margin / 2);
  EXPECT_TRUE(says("slots are left")) << read_all(path("err.0"));
  const pid_t second = hog(group, fuse - 2 * margin);
  int status = 0;
  waitpid(child, &status, 0);
  end(first);
  end(second);
  EXPECT_EQ(WEXITSTATUS(status), 4) << read_all(path("err.0"));
  const auto json = nlohmann::json::parse(read_all(path("out.0")), nullptr, false);
  ASSERT_FALSE(json.is_discarded()) << read_all(path("err.0"));
  EXPECT_EQ(json["stop_reason"], "watchdog");
  const auto& dog = json["watchdog"];
  EXPECT_EQ(dog["policy"]["fuse"], fuse);
  EXPECT_EQ(dog["policy"]["shrink_below"], fuse);
  EXPECT_LT(dog["min_available"].get<uint64_t>(), fuse - margin);
  EXPECT_GT(dog["samples"].get<int>(), 2);
  uint64_t given_back = 0;
  for (const auto& event : dog["events"]) given_back += event["given_back"].get<uint64_t>();
  EXPECT_GT(given_back, 0u);
  EXPECT_EQ(dog["events"].back()["pressure"], "abort");
  EXPECT_LT(dog["slots_left"], json["plan"]["slots"]);
}

// Refuses io_uring_setup with EPERM, as container filters do.
bool forbid_io_uring() {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_io_uring_setup, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{4, program};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

class Forbidden : public Program {};

TEST_F(Forbidden, WithoutIoUringThePoolReadsTheSame) {
  const std::vector<std::string> arguments = {
      "run", "-m",     tiny(), "--ids",  write("ids", "1 2 3"), "-n",
      "6",   "--temp", "0",    "--json", "--arena-slots",       "24"};
  const Outcome free = run(arguments);
  ASSERT_EQ(free.code, 0) << free.err;
  const pid_t child = fork();
  if (child == 0) {
    if (!forbid_io_uring()) _exit(99);
    const pid_t inner = start(arguments, "1");
    int status = 0;
    waitpid(inner, &status, 0);
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 100);
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (WEXITSTATUS(status) == 99) GTEST_SKIP() << "no filters here";
  ASSERT_EQ(WEXITSTATUS(status), 0) << read_all(path("err.1"));
  const auto a = nlohmann::json::parse(free.out);
  const auto b = nlohmann::json::parse(read_all(path("out.1")));
  EXPECT_EQ(a["tokens"], b["tokens"]);
  EXPECT_EQ(b["experts"]["io"]["engine"], "pread pool");
  const std::string reason = b["experts"]["io"]["reason"];
  EXPECT_NE(reason.find("no io_uring"), std::string::npos) << reason;
  EXPECT_NE(reason.find("Operation not permitted"), std::string::npos) << reason;
}

TEST_F(MemoryGroup, WhatDoesNotFitIsRefusedBeforehandNotKilled) {
  const Group group(120 * kMiB);  // less than the fuse alone
  if (!group) GTEST_SKIP() << "no memory group can be made here";
  const pid_t child = start_in(group, {"run", "-m", tiny(), "-p", "x", "-n", "1"});
  int status = 0;
  waitpid(child, &status, 0);
  const std::string err = read_all(path("err.0"));
  EXPECT_EQ(WEXITSTATUS(status), 3) << err;
  EXPECT_NE(err.find("cgroup /sys/fs/cgroup/memory/penstock-test"), std::string::npos) << err;
}

}  // namespace
}  // namespace penstock::testing
