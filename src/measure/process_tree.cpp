#include "measure/process_tree.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace penstock::measure {
namespace {

namespace fs = std::filesystem;

// Children are listed by the thread that started them.
std::vector<pid_t> children_of(pid_t pid) {
  std::vector<pid_t> out;
  std::error_code error;
  for (const auto& thread : fs::directory_iterator(fmt::format("/proc/{}/task", pid), error)) {
    std::ifstream in(thread.path() / "children");
    for (pid_t child = 0; in >> child;) out.push_back(child);
  }
  return out;
}

// "pid (name) state ppid pgrp ...", where the name may hold anything.
bool runs_in_group(const fs::path& folder, pid_t group) {
  std::ifstream in(folder / "stat");
  std::ostringstream text;
  text << in.rdbuf();
  const std::string line = text.str();
  const size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return false;
  std::istringstream rest(line.substr(name_end + 1));
  std::string state;
  pid_t parent = 0, its_group = 0;
  if (!(rest >> state >> parent >> its_group)) return false;
  return its_group == group && state != "Z" && state != "X";
}

bool is_process(const fs::path& path) {
  const std::string name = path.filename().string();
  return !name.empty() && name.find_first_not_of("0123456789") == std::string::npos;
}

uint64_t kib_after(const std::string& line, const char* name) {
  if (!line.starts_with(name)) return 0;
  return std::strtoull(line.c_str() + std::strlen(name), nullptr, 10) * 1024;
}

}  // namespace

std::vector<pid_t> process_tree(pid_t root) {
  std::vector<pid_t> out = {root};
  for (size_t i = 0; i < out.size(); ++i) {
    for (const pid_t child : children_of(out[i])) {
      if (std::find(out.begin(), out.end(), child) == out.end()) out.push_back(child);
    }
  }
  return out;
}

bool group_runs(pid_t group) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/proc", error)) {
    if (is_process(entry.path()) && runs_in_group(entry.path(), group)) return true;
  }
  return false;
}

ProcessFigures process_figures(pid_t pid) {
  ProcessFigures out;
  std::ifstream status(fmt::format("/proc/{}/status", pid));
  for (std::string line; std::getline(status, line);) {
    out.anonymous += kib_after(line, "RssAnon:") + kib_after(line, "RssShmem:");
    out.resident += kib_after(line, "VmRSS:");
  }
  std::ifstream io(fmt::format("/proc/{}/io", pid));
  for (std::string name; io >> name;) {
    uint64_t value = 0;
    io >> value;
    if (name == "read_bytes:") out.storage = value;
  }
  return out;
}

std::set<std::string> own_libraries(pid_t pid) {
  std::set<std::string> out;
  std::error_code error;
  const fs::path executable = fs::read_symlink(fmt::format("/proc/{}/exe", pid), error);
  if (error) return out;
  const std::string folder = executable.parent_path().string() + "/";
  std::ifstream maps(fmt::format("/proc/{}/maps", pid));
  for (std::string line; std::getline(maps, line);) {
    const size_t begin = line.find('/');
    if (begin == std::string::npos) continue;
    const std::string path = line.substr(begin);
    const std::string name = fs::path(path).filename().string();
    if (path.starts_with(folder) && name.find(".so") != std::string::npos) out.insert(path);
  }
  return out;
}

}  // namespace penstock::measure
