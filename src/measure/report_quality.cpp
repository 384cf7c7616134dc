#include "measure/report_quality.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "measure/formula.h"
#include "measure/quality_verdict.h"
#include "measure/record.h"
#include "measure/report_text.h"

namespace penstock::measure {
namespace {

using Json = nlohmann::json;

constexpr const char* kQualityStore = "penstock-quality-1";

// Nothing is added where the file does not say, or says it in another form.
void add_value(const char* name, const char* title, const char* unit, const std::string& formula,
               int digits, ReportQuality* out) {
  try {
    const double value = Formula(formula).evaluate(out->file->value);
    out->values.push_back({name, title, unit, formula, value, digits});
  } catch (const Error&) {
    return;
  }
}

ReportQuality quality_at(const Archived& file, const std::string& prefix) {
  ReportQuality out;
  out.file = &file;
  out.kind = text_member(file.value, prefix + "/kind");
  out.text = without_folders(text_member(file.value, prefix + "/text"));
  const std::string base = without_folders(text_member(file.value, prefix + "/base"));
  if (!base.empty()) out.text += (out.text.empty() ? "against " : ", against ") + base;
  const auto at = [&](const char* member) { return "{" + prefix + "/" + member + "}"; };
  const auto add = [&](const char* name, const char* title, const char* unit,
                       const std::string& formula,
                       int digits) { add_value(name, title, unit, formula, digits, &out); };
  if (out.kind == "kld") {
    add("mean_kld", "mean KLD", "nats", at("mean_kld"), 4);
    add("mean_kld_error", "its standard error", "nats", at("mean_kld_error"), 4);
    add("same_top_pct", "same top token", "%", at("same_top") + " * 100", 2);
  } else if (out.kind == "tasks") {
    add("accuracy_pct", "tasks solved", "%", at("accuracy") + " * 100", 1);
    add("tasks", "of tasks", "tasks", at("n"), 0);
  }
  if (out.kind == "perplexity" || out.kind == "kld") {
    add("ppl", "perplexity", "", at("ppl"), 3);
    add("ppl_error", "its standard error", "", at("ppl_error"), 3);
  }
  return out;
}

bool same_quality(const ReportQuality& a, const ReportQuality& b) {
  if (a.kind != b.kind || a.text != b.text || a.values.size() != b.values.size()) return false;
  for (size_t i = 0; i < a.values.size(); ++i) {
    if (a.values[i].name != b.values[i].name || a.values[i].value != b.values[i].value)
      return false;
  }
  return true;
}

// Whether the run replaced as many slots as what was judged, as far as its record says.
std::optional<std::string> not_for(const ReportGroup& group, const Json& measured) {
  for (const ReportRun& run : group.runs) {
    if (run.record == nullptr) continue;
    const std::optional<double> share = replaced_share(run.record->value);
    if (!share) continue;
    if (auto why = other_routing(*share, measured)) return why;
  }
  return std::nullopt;
}

// A speed whose quality is not good enough, or not known to be, is no headline (§F.8).
void label_verdict(const Json& measured, const Json& all, ReportGroup* group) {
  const bool cache_aware = group->lossy.find("moce") != std::string::npos;
  QualityJudgement judged = judge_quality(measured, cache_aware, all);
  if (cache_aware && judged.publishable()) {
    if (auto why = not_for(*group, measured)) judged = {QualityVerdict::Incomplete, *why};
  }
  group->verdict = judged.text();
  if (!judged.publishable()) {
    group->marks.push_back(std::string("quality ") + quality_verdict_name(judged.verdict));
  }
}

}  // namespace

bool is_quality(const Archived& entry) {
  if (!entry.value.is_object() || text_member(entry.value, "/quality_key").empty()) return false;
  if (entry.is_record()) return !text_member(entry.value, "/evaluation/kind").empty();
  return entry.schema == kQualityStore || !text_member(entry.value, "/kind").empty();
}

std::vector<std::string> measurement_places(const Archived& file) {
  if (file.schema != kQualityStore) return {file.is_record() ? "/evaluation" : ""};
  std::vector<std::string> places;
  const Json* list = resolve_pointer(file.value, "/measurements");
  for (size_t i = 0; list != nullptr && list->is_array() && i < list->size(); ++i) {
    places.push_back(fmt::format("/measurements/{}", i));
  }
  return places;
}

Json measurements_in(const Archived& file) {
  Json out = Json::array();
  for (const std::string& place : measurement_places(file)) {
    const Json* found = place.empty() ? &file.value : resolve_pointer(file.value, place);
    if (found != nullptr && found->is_object()) out.push_back(*found);
  }
  return out;
}

std::vector<ReportQuality> qualities_in(const Archived& file) {
  std::vector<ReportQuality> out;
  for (const std::string& place : measurement_places(file)) {
    ReportQuality found = quality_at(file, place);
    if (!found.values.empty()) out.push_back(std::move(found));
  }
  return out;
}

void add_quality(const std::vector<const Archived*>& files, ReportComparison* comparison,
                 std::set<const Archived*>* used) {
  Json all = Json::array();
  for (const Archived* file : files) {
    for (Json& m : measurements_in(*file)) all.push_back(std::move(m));
  }
  for (ReportGroup& group : comparison->groups) {
    if (group.quality_key.empty()) continue;
    Json measured = Json::array();
    for (const Archived* file : files) {
      if (text_member(file->value, "/quality_key") != group.quality_key) continue;
      for (Json& m : measurements_in(*file)) measured.push_back(std::move(m));
      for (ReportQuality& found : qualities_in(*file)) {
        const bool known =
            std::any_of(group.quality.begin(), group.quality.end(),
                        [&](const ReportQuality& other) { return same_quality(found, other); });
        // The store holds again what a record says.
        used->insert(file);
        if (!known) group.quality.push_back(std::move(found));
      }
    }
    std::stable_sort(group.quality.begin(), group.quality.end(),
                     [](const ReportQuality& a, const ReportQuality& b) {
                       return std::tie(a.kind, a.text) < std::tie(b.kind, b.text);
                     });
    if (!group.lossy.empty() && !group.quality.empty()) label_verdict(measured, all, &group);
  }
}

}  // namespace penstock::measure
