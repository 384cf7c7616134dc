#include "measure/child.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/clock.h"
#include "base/error.h"
#include "base/machine.h"
#include "measure/process_tree.h"

extern char** environ;

namespace penstock::measure {
namespace {

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (std::string& text : texts) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

// Between fork and exec: nothing but system calls.
[[noreturn]] void become(const char* path, char* const* argv, char* const* env, int out, int err,
                         int join, pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);
  ::setpgid(0, 0);  // so that the terminal's Ctrl-C reaches us alone, who then end it in order
  if (join >= 0 && ::write(join, "0", 1) != 1) ::_exit(126);
  const int nothing = ::open("/dev/null", O_RDONLY);
  if (nothing >= 0) ::dup2(nothing, 0);
  ::dup2(out, 1);
  ::dup2(err, 2);
  ::execvpe(path, argv, env);
  const char* const text = std::strerror(errno);
  (void)!::write(2, text, std::strlen(text));
  (void)!::write(2, "\n", 1);
  ::_exit(127);
}

int open_output(const std::string& path) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) fail(ErrorKind::Io, "{}: {}", path, std::strerror(errno));
  return fd;
}

}  // namespace

std::string last_line(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  const size_t begin = text.find_last_of("\r\n");
  return text.substr(begin == std::string::npos ? 0 : begin + 1).substr(0, 300);
}

Child::Child(const ChildRequest& request, const std::atomic<bool>* interrupted)
    : request_(request), interrupted_(interrupted), swapped_before_(swapped_out()) {
  std::vector<std::string> argv = request.argv, env;
  for (char** at = environ; *at != nullptr; ++at) {
    const std::string_view entry = *at;
    const std::string_view name = entry.substr(0, entry.find('=') + 1);
    bool replaced = false;
    for (const std::string& added : request.environment) replaced |= added.starts_with(name);
    if (!replaced) env.emplace_back(entry);
  }
  env.insert(env.end(), request.environment.begin(), request.environment.end());
  const std::vector<char*> argv_pointers = pointers(argv), env_pointers = pointers(env);
  const int out = open_output(request.out_path);
  const int err = request.err_path == request.out_path ? ::dup(out) : open_output(request.err_path);
  int join = -1;
  if (request.group != nullptr) {
    join = ::open(request.group->join_file().c_str(), O_WRONLY | O_CLOEXEC);
    if (join < 0) {
      const int error = errno;
      ::close(out);
      ::close(err);
      fail(ErrorKind::Io, "{}: {}", request.group->join_file(), std::strerror(error));
    }
  }
  const std::string& path = request.executable.empty() ? request.argv[0] : request.executable;
  const pid_t parent = ::getpid();
  started_ns_ = now_ns();
  pid_ = ::fork();
  if (pid_ == 0)
    become(path.c_str(), argv_pointers.data(), env_pointers.data(), out, err, join, parent);
  const int error = errno;
  if (pid_ > 0) ::setpgid(pid_, pid_);  // whoever comes first: it fails once it has started
  ::close(out);
  ::close(err);
  if (join >= 0) ::close(join);
  if (pid_ < 0) fail(ErrorKind::Io, "{}: {}", request.argv[0], std::strerror(error));
  watchdog_ = std::make_unique<experts::Watchdog>(request.policy, [this] { return sample(); });
  supervisor_ = std::thread([this] { supervise(); });
}

Child::~Child() {
  if (pid_ > 0 && running()) end(SIGKILL);
  if (supervisor_.joinable()) supervisor_.join();
}

experts::MemorySample Child::sample() {
  const std::vector<pid_t> all = process_tree(pid_);
  ProcessFigures sum;
  for (const pid_t pid : all) {
    const ProcessFigures one = process_figures(pid);
    sum.anonymous += one.anonymous;
    sum.resident += one.resident;
    sum.storage += one.storage;
  }
  {
    const std::lock_guard lock(mutex_);
    report_.peak_anonymous = std::max(report_.peak_anonymous, sum.anonymous);
    report_.peak_rss = std::max(report_.peak_rss, sum.resident);
    report_.storage_bytes = std::max(report_.storage_bytes, sum.storage);
    // Programs load their parts early; later looks are for those that load more.
    if (looks_ < 8 || looks_ % 16 == 0) {
      for (const pid_t pid : all) report_.libraries.merge(own_libraries(pid));
    }
    ++looks_;
  }
  const uint64_t swapped = swapped_out();
  return {.at_s = 0,
          .available = memory_facts().available,
          .swapped = swapped > swapped_before_ ? swapped - swapped_before_ : 0};
}

void Child::end(int signal) noexcept {
  ::kill(-pid_, signal);  // the whole group
}

// What the child started and left behind is of the same run and ends with it. The child itself was
// not waited for yet, so that its number still names this group.
void Child::end_rest(int64_t asked_ns) {
  constexpr double kPatience = 10, kHopeless = 20;  // s
  if (!group_runs(pid_)) return;
  if (asked_ns == 0) {
    asked_ns = now_ns();
    end(SIGTERM);
  }
  bool killed = false;
  while (group_runs(pid_) && seconds_since(asked_ns) < kHopeless) {
    if (!killed && seconds_since(asked_ns) > kPatience) {
      killed = true;
      end(SIGKILL);
    }
    ::usleep(20000);
  }
}

void Child::supervise() {
  std::string why, state;
  int64_t asked_ns = 0;
  int status = 0;
  const auto ask = [&](const char* new_state, std::string reason) {
    if (asked_ns != 0) return;
    asked_ns = now_ns();
    state = new_state;
    why = std::move(reason);
    end(SIGTERM);
  };
  while (true) {
    // The process is left as it is until its last figures were read.
    siginfo_t info{};
    if (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
        info.si_pid == pid_) {
      watchdog_->look();
      end_rest(asked_ns);
      ::waitpid(pid_, &status, 0);
      break;
    }
    if (stop_) ask("stopped", {});
    if (interrupted_ != nullptr && *interrupted_) ask("interrupted", "interrupted");
    if (watchdog_->pressure() == experts::Pressure::Abort) {
      const experts::WatchdogReport now = watchdog_->report();
      ask("watchdog",
          fmt::format("ended by the watchdog: {} available, {} swapped out (limits {} and {})",
                      format_bytes(now.min_available), format_bytes(now.max_swapped),
                      format_bytes(request_.policy.abort_below()),
                      format_bytes(request_.policy.swap_limit)));
    }
    if (seconds_since(started_ns_) > request_.timeout_s) {
      ask("timeout", fmt::format("not finished after {:.0f} s", request_.timeout_s));
    }
    if (asked_ns != 0 && seconds_since(asked_ns) > 10) end(SIGKILL);
    ::usleep(10000);
  }
  const std::lock_guard lock(mutex_);
  report_.seconds = seconds_since(started_ns_);
  report_.exit_code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  if (state == "stopped") {
    report_.exit_code = 0;
  } else if (!state.empty()) {
    report_.state = state;
    report_.reason = why;
  } else if (report_.exit_code != 0) {
    report_.state = "error";
    report_.reason = WIFSIGNALED(status) ? fmt::format("killed by signal {} ({})", WTERMSIG(status),
                                                       ::strsignal(WTERMSIG(status)))
                                         : fmt::format("exit code {}", report_.exit_code);
  }
  ended_ = true;
}

ChildReport Child::wait() {
  if (supervisor_.joinable()) supervisor_.join();
  ChildReport report = report_;
  report.watchdog = watchdog_->report();
  return report;
}

}  // namespace penstock::measure
