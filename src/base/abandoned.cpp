#include "base/abandoned.h"

#include <signal.h>

#include <cerrno>
#include <charconv>
#include <filesystem>

namespace penstock {

void remove_abandoned(const std::string& out) {
  namespace fs = std::filesystem;
  const fs::path path = out;
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  const std::string prefix = path.filename().string() + ".";
  const std::string suffix = ".partial";
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (!name.starts_with(prefix) || !name.ends_with(suffix)) continue;
    const char* const last = name.data() + name.size() - suffix.size();
    pid_t pid = 0;
    const auto [at, wrong] = std::from_chars(name.data() + prefix.size(), last, pid);
    if (wrong == std::errc() && at == last && pid > 0 && ::kill(pid, 0) != 0 && errno == ESRCH) {
      std::error_code ignored;
      fs::remove(it->path(), ignored);
    }
  }
}

}  // namespace penstock
