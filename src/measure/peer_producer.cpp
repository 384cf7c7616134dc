#include "measure/peer_producer.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/digest.h"
#include "base/error.h"
#include "base/file.h"
#include "measure/child.h"

namespace penstock::measure {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

// The file that a command names, looked up in PATH.
std::string executable_of(const std::string& name) {
  if (name.find('/') != std::string::npos) return name;
  const char* path = std::getenv("PATH");
  std::string rest = path == nullptr ? "" : path;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find(':'), rest.size());
    const std::string candidate = rest.substr(0, end) + "/" + name;
    if (::access(candidate.c_str(), X_OK) == 0) return candidate;
    rest.erase(0, std::min(end + 1, rest.size()));
  }
  return name;
}

// Null for something that may be run and not read: it stays unidentified.
Json hash_of(const std::string& path) {
  try {
    return hex(sha256_file(path));
  } catch (const Error&) {
    return nullptr;
  }
}

// What the program says of itself; "" where it does not within a few seconds.
std::string ask_version(const CampaignArm& arm, const std::string& work) {
  ChildRequest request;
  request.argv = {arm.command[0], "--version"};
  request.environment = arm.environment;
  request.out_path = request.err_path = work + "/version";
  request.timeout_s = 10;
  try {
    Child(request).wait();
    return llama_version_in(read_text_file(request.out_path));
  } catch (const Error&) {
    return {};
  }
}

}  // namespace

std::string llama_version_in(const std::string& text) {
  const std::string mark = "version: ";
  for (size_t at = text.find(mark); at != std::string::npos; at = text.find(mark, at + 1)) {
    if (at != 0 && text[at - 1] != '\n') continue;
    const size_t begin = at + mark.size();
    std::string line = text.substr(begin, text.find('\n', begin) - begin).substr(0, 200);
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
    return line;
  }
  return {};
}

Json peer_producer(const CampaignArm& arm, const std::set<std::string>& libraries,
                   const std::string& work) {
  const bool here = !arm.command.empty();
  const std::string path = here ? executable_of(arm.command[0]) : std::string();
  const std::string name = fs::path(path).filename().string();
  std::string program = here ? name : arm.url;
  // An interpreter is not the program: what it is given to run is.
  if (std::error_code error; arm.command.size() > 1 && arm.program != ArmProgram::LlamaServer &&
                             fs::is_regular_file(arm.command[1], error)) {
    program += " " + fs::path(arm.command[1]).filename().string();
  }
  std::string version, source;
  if (here && arm.program == ArmProgram::LlamaServer) version = ask_version(arm, work);
  if (!version.empty()) source = "program";
  if (version.empty() && !arm.version.empty()) {
    version = arm.version;
    source = "campaign";
  }
  const auto text = [](const std::string& value) { return value.empty() ? Json() : Json(value); };
  Json out = {{"program", program},
              {"version", text(version)},
              {"version_source", text(source)},
              {"version_given", text(arm.version)},
              {"executable", text(name)},
              {"executable_sha256", nullptr},
              {"executable_modified", nullptr},
              {"libraries", Json::array()}};
  struct stat info {};
  if (!here || ::stat(path.c_str(), &info) != 0) return out;
  out["executable_modified"] = static_cast<double>(info.st_mtim.tv_sec);
  out["executable_sha256"] = hash_of(path);
  for (const std::string& library : libraries) {
    out["libraries"].push_back(
        {{"name", fs::path(library).filename().string()}, {"sha256", hash_of(library)}});
  }
  return out;
}

}  // namespace penstock::measure
