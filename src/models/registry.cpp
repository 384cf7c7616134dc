#include "models/registry.h"

#include "base/error.h"

namespace penstock::models {
namespace {

struct Row {
  std::string_view name;
  Loader load;
};

constexpr Row kArchitectures[] = {
    {"qwen3moe", load_qwen3moe},
    {"qwen35moe", load_qwen35moe},
    {"qwen3next", load_qwen3next},
    {"qwen4exp", load_qwen4exp},
};

}  // namespace

std::vector<std::string_view> known_architectures() {
  std::vector<std::string_view> names;
  for (const Row& row : kArchitectures) names.push_back(row.name);
  return names;
}

std::unique_ptr<Model> open(const Sources& sources, const OpenOptions& options) {
  const std::string_view name = sources.trunk->architecture();
  for (const Row& row : kArchitectures) {
    if (row.name == name) return row.load(sources, options);
  }
  fail(ErrorKind::Unsupported, "{}: architecture \"{}\" is not known (known: {})",
       sources.trunk->path(), name, fmt::join(known_architectures(), ", "));
}

}  // namespace penstock::models
