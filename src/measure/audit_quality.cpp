// R11: a speed that was bought with something lossy stands beside what it cost, measured under the
// same key, in both tiers and within the limits (spec/streaming.md §F.8, §I.4).
#include <fmt/format.h>

#include <algorithm>

#include "measure/audit_rules.h"
#include "measure/report_quality.h"
#include "measure/report_text.h"

namespace penstock::measure {
namespace {

using Json = nlohmann::json;

// A row of a recipe's result as measurements. Its arms are compared with the recipe's source; the
// same arm with exact routing says what routing adds.
Json measurements_of_row(const Json& row, const std::string& file) {
  Json out = Json::array();
  if (!row.is_object()) return out;
  const bool exact = text_member(row, "/routing") == "exact";
  Json kld = row;
  kld["kind"] = "kld";
  kld["model_id"] = file + " " + text_member(row, "/arm");
  kld["base_model_id"] = kld["text_sha256"] = file;
  kld["quality_settings"] = {{"moce", exact ? "off" : text_member(row, "/routing")}};
  if (row.contains("replaced_share")) {
    kld["routing"] = {{"replaced_share", row["replaced_share"]}};
  }
  out.push_back(std::move(kld));
  if (const auto tasks = row.find("tasks"); tasks != row.end() && tasks->is_object()) {
    out.push_back(*tasks);
  }
  return out;
}

void append(Json* list, Json more) {
  for (Json& one : more) list->push_back(std::move(one));
}

}  // namespace

QualityJudgement judged_quality(const Archive& archive, const std::string& key, bool cache_aware,
                                const QualityLimits& limits, Json* measured) {
  Json ours = Json::array(), all = Json::array();
  const auto take = [&](const Json& holder, const Json& measurements) {
    append(&all, measurements);
    if (text_member(holder, "/quality_key") == key) append(&ours, measurements);
  };
  for (const Archived& entry : archive.entries()) {
    if (!entry.value.is_object() || !entry.problems.empty()) continue;
    if (is_quality(entry)) take(entry.value, measurements_in(entry));
    const auto rows = entry.value.find("rows");  // a recipe's result
    if (entry.is_record() || rows == entry.value.end() || !rows->is_array()) continue;
    for (const Json& row : *rows) take(row, measurements_of_row(row, entry.id));
  }
  if (measured != nullptr) *measured = ours;
  return judge_quality(ours, cache_aware, all, limits);
}

void ClaimWork::quality(const ClaimArm& arm) {
  const bool asked =
      std::find(claim_.needs.begin(), claim_.needs.end(), "quality") != claim_.needs.end();
  for (const Archived* entry : arm.entries) {
    const Json* lossy = resolve_pointer(entry->value, "/lossy");
    const bool changed = lossy != nullptr && lossy->is_array() && !lossy->empty();
    if (!asked && !(changed && claim_.unit.is_speed())) continue;
    const bool cache_aware =
        changed && std::find(lossy->begin(), lossy->end(), "moce") != lossy->end();
    quality_of(*entry, cache_aware);
  }
}

void ClaimWork::quality_of(const Archived& entry, bool cache_aware) {
  const std::string key = text_member(entry.value, "/quality_key");
  if (key.empty()) {
    add(Verdict::QualityMissing, "R11",
        fmt::format("{} has no quality key: what was timed cannot be found among what was judged",
                    short_name(entry)));
    return;
  }
  Json measured;
  const QualityJudgement judged =
      judged_quality(archive_, key, cache_aware, claims_.limits, &measured);
  if (judged.verdict == QualityVerdict::Unmeasured) {
    add(Verdict::QualityMissing, "R11",
        fmt::format("no quality was measured under {}'s key {}", short_name(entry),
                    key.substr(0, 12)));
  } else if (!judged.publishable()) {
    add(Verdict::QualityMissing, "R11",
        fmt::format("{}: quality {}", short_name(entry), judged.text()));
  }
  if (!cache_aware || measured.empty()) return;
  const std::optional<double> share = replaced_share(entry.value);
  const std::optional<std::string> why =
      share ? other_routing(*share, measured, claims_.limits)
            : "its record does not say how many slots routing replaced";
  if (why) {
    add(Verdict::QualityMissing, "R11", fmt::format("{}: {}", short_name(entry), *why));
  }
}

}  // namespace penstock::measure
