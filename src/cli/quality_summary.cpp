#include "cli/quality_summary.h"

#include <fmt/format.h>

#include <cmath>
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

// With cache-aware routing a measurement speaks for a run only if both replaced about as much
// (spec/streaming.md §I.4: within 2 points).
std::string other_routing(const engine::Runtime& runtime, const nlohmann::json& measurements) {
  constexpr double kPoints = 0.02;
  const experts::CacheRouter* router = runtime.stream().moce();
  if (router == nullptr || router->total().slots == 0) return {};
  const auto total = router->total();
  const double share = static_cast<double>(total.replaced) / static_cast<double>(total.slots);
  for (const nlohmann::json& m : measurements) {
    if (!m.contains("routing") || !m["routing"].is_object()) continue;
    const double measured = m["routing"].value("replaced_share", 0.0);
    if (std::abs(measured - share) <= kPoints) continue;
    return fmt::format(
        "; NOT for this run: it replaced {:.1f} % of the slots, the measured one {:.1f} %",
        100 * share, 100 * measured);
  }
  return {};
}

}  // namespace

std::string quality_row(const engine::Runtime& runtime) {
  const measure::QualityStore store("");
  std::error_code error;
  // The key reads pages of every tensor: not without reason.
  if (std::filesystem::exists(store.folder(), error)) {
    const auto known = store.find(measure::quality_key(runtime).id);
    if (known) {
      return fmt::format("  quality     {}{}\n", measure::quality_line(known),
                         other_routing(runtime, *known));
    }
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
