#include "cli/quality_summary.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/run_record.h"
#include "measure/quality_store.h"
#include "measure/quality_verdict.h"

namespace penstock::cli {
namespace {

// Whether `known` lets this run's speed be quoted. `others`: measurements of the same model, routed
// exactly.
measure::QualityJudgement judge(const engine::Runtime& runtime, const measure::QualityStore& store,
                                const measure::QualityKey& key, const nlohmann::json& known) {
  const experts::CacheRouter* router = runtime.stream().moce();
  if (!runtime.options().stream.moce.on()) return measure::judge_quality(known, false);
  const auto plain = store.find(measure::exact_key(key).id).value_or(nlohmann::json::array());
  measure::QualityJudgement judged = measure::judge_quality(known, true, plain);
  if (router == nullptr || router->total().slots == 0) return judged;
  const auto total = router->total();
  const double share = static_cast<double>(total.replaced) / static_cast<double>(total.slots);
  const auto why = measure::other_routing(share, known);
  if (why && judged.publishable()) return {measure::QualityVerdict::Incomplete, *why};
  if (why) judged.reason += "; " + *why;
  return judged;
}

}  // namespace

std::string quality_row(const engine::Runtime& runtime) {
  const measure::QualityStore store("");
  std::error_code error;
  // The key reads pages of every tensor: not without reason.
  if (std::filesystem::exists(store.folder(), error)) {
    const measure::QualityKey key = measure::quality_key(runtime);
    const auto known = store.find(key.id);
    if (known) {
      const measure::QualityJudgement judged = judge(runtime, store, key, *known);
      const bool label = !lossy_options(runtime).empty() && !judged.publishable();
      return fmt::format("  quality     {}{}\n", measure::quality_line(known),
                         label ? "; quality: " + judged.text() : "");
    }
  }
  return !lossy_options(runtime).empty() ? "  quality: unmeasured (penstock eval measures it)\n"
                                         : "";
}

nlohmann::ordered_json quality_json(const engine::Runtime& runtime) {
  const measure::QualityKey key = measure::quality_key(runtime);
  const measure::QualityStore store("");
  const auto known = store.find(key.id);
  nlohmann::ordered_json out = {{"key", key.id}, {"settings", key.settings}};
  out["lossy"] = !lossy_options(runtime).empty();
  if (known) {
    out["measured"] = *known;
    const measure::QualityJudgement judged = judge(runtime, store, key, *known);
    out["verdict"] = measure::quality_verdict_name(judged.verdict);
    out["verdict_reason"] = judged.reason;
    out["limits"] = measure::limits_json({});
  } else {
    out["measured"] = "unmeasured";
  }
  return out;
}

}  // namespace penstock::cli
