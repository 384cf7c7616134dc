#include "cli/quality_summary.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "measure/quality_store.h"

namespace penstock::cli {
namespace {

// Options that change what the model says, or a file that says it was made by something lossy.
bool lossy(const engine::Runtime& runtime) {
  const gguf::Metadata& metadata = runtime.file().metadata();
  return runtime.options().stream.moce.on() || runtime.load().dense.tensors_converted() != 0 ||
         metadata.has("penstock.keep_map_id") || metadata.has("penstock.requantise.steps");
}

}  // namespace

std::string quality_row(const engine::Runtime& runtime) {
  const measure::QualityStore store("");
  std::error_code error;
  // The key reads pages of every tensor: not without reason.
  if (std::filesystem::exists(store.folder(), error)) {
    const auto known = store.find(measure::quality_key(runtime).id);
    if (known) return fmt::format("  quality     {}\n", measure::quality_line(known));
  }
  return lossy(runtime) ? "  quality: unmeasured (penstock eval measures it)\n" : "";
}

nlohmann::ordered_json quality_json(const engine::Runtime& runtime) {
  const measure::QualityKey key = measure::quality_key(runtime);
  const auto known = measure::QualityStore("").find(key.id);
  nlohmann::ordered_json out = {{"key", key.id}, {"settings", key.settings}};
  out["lossy"] = lossy(runtime);
  if (known) {
    out["measured"] = *known;
  } else {
    out["measured"] = "unmeasured";
  }
  return out;
}

}  // namespace penstock::cli
