#include "measure/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "measure/formula.h"
#include "measure/record.h"
#include "measure/report_groups.h"
#include "measure/report_quality.h"
#include "measure/report_text.h"

namespace penstock::measure {
namespace {

using Json = nlohmann::json;

constexpr size_t kMostNamed = 20;  // problems in one message

// Of copies of one record that were cut down differently, the one that holds most; between equals
// what they hold decides, not the order in which they were given.
using Records = std::map<std::string, const Archived*>;

void take(Records* records, const Archived& entry) {
  const auto [at, fresh] = records->try_emplace(entry.id, &entry);
  if (fresh) return;
  const Json& held = at->second->value;
  const bool more = entry.value.size() > held.size();
  if (more || (entry.value.size() == held.size() && entry.value < held)) at->second = &entry;
}

Records records_of(const Archive& archive) {
  Records out;
  for (const Archived& entry : archive.entries()) {
    if (entry.is_record()) take(&out, entry);
  }
  return out;
}

std::vector<const Archived*> campaigns_of(const Archive& archive) {
  Records found;
  for (const Archived& entry : archive.entries()) {
    if (entry.schema == kCampaignSchema) take(&found, entry);
  }
  std::vector<const Archived*> out;
  for (const auto& [id, entry] : found) out.push_back(entry);
  std::stable_sort(out.begin(), out.end(), [](const Archived* a, const Archived* b) {
    return text_member(a->value, "/name") < text_member(b->value, "/name");
  });
  return out;
}

void refuse_unsound(const Archive& archive, const Records& records,
                    const std::vector<const Archived*>& campaigns) {
  std::set<std::string> found;
  for (const Archived& entry : archive.entries()) {
    for (const std::string& problem : entry.problems) {
      found.insert(fmt::format("{}: {}", shown_name(entry.path), problem));
    }
  }
  for (const Archived* campaign : campaigns) {
    const Json* runs = resolve_pointer(campaign->value, "/runs");
    for (size_t i = 0; runs != nullptr && i < runs->size(); ++i) {
      const std::string id = text_member((*runs)[i], "/record");
      if (id.empty() || records.count(id) != 0) continue;
      found.insert(fmt::format(
          "{}: run {} of arm '{}' has the record {}, which was not given: a campaign is reported "
          "whole",
          shown_name(campaign->path), i, text_member((*runs)[i], "/arm"), id));
    }
  }
  if (found.empty()) return;
  std::string message = "no report is made from what does not verify:";
  size_t named = 0;
  for (const std::string& problem : found) {
    if (named++ == kMostNamed) {
      message += fmt::format("\n  and {} more", found.size() - kMostNamed);
      break;
    }
    message += "\n  " + problem;
  }
  fail(ErrorKind::Format, "{}", message);
}

// What a record says about its run; the campaign's members are set by the caller.
ReportRun run_of(const Archived& record) {
  ReportRun run;
  run.record = &record;
  run.state = text_member(record.value, "/outcome/state");
  if (run.state != "finished") {
    // Its first line; a refused plan has a table below it.
    const std::string whole = without_folders(text_member(record.value, "/outcome/error"));
    const std::string error = whole.substr(0, whole.find('\n'));
    run.reason = error.empty() ? run.state : fmt::format("{}: {}", run.state, error);
    return run;
  }
  run.no_decode = why_no_decode(record.value);
  for (const Figure& figure : figures_of(record.schema)) {
    const bool of_decode = figure.phase == "decode" && figure.name != "decode_tokens";
    if (of_decode && !run.no_decode.empty()) continue;
    const std::optional<double> value = figure_value(figure, record.value);
    if (value && std::isfinite(*value)) run.values[figure.name] = *value;
  }
  return run;
}

std::vector<ReportRun> runs_of(const Archived& campaign, const Records& records,
                               std::set<std::string>* used) {
  std::vector<ReportRun> out;
  const Json& runs = campaign.value.at("runs");
  for (size_t i = 0; i < runs.size(); ++i) {
    const Json& entry = runs[i];
    const std::string id = text_member(entry, "/record");
    ReportRun run;
    if (!id.empty()) {
      run = run_of(*records.at(id));
      used->insert(id);
    }
    const std::string state = text_member(entry, "/state");
    if (run.record == nullptr || (state != "finished" && run.reason.empty())) {
      const std::string reason = without_folders(text_member(entry, "/reason"));
      run.state = state;
      run.reason = reason.empty() ? state : fmt::format("{}: {}", state, reason);
      run.values.clear();
    }
    run.arm = text_member(entry, "/arm");
    run.prompt = text_member(entry, "/prompt");
    run.repeat = entry.at("repeat").get<int64_t>();
    run.order = entry.at("order").get<int64_t>();
    run.control = entry.at("control").get<bool>();
    run.origin = fmt::format("/runs/{}", i);
    out.push_back(std::move(run));
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const ReportRun& a, const ReportRun& b) { return a.order < b.order; });
  return out;
}

// How far the control moved, from its two figures; the manifest's own verdict counts too.
void judge_control(const Json& campaign, ReportSection* section) {
  const Json* control = resolve_pointer(campaign, "/control");
  if (control == nullptr || !control->is_object()) return;
  const double first = control->at("first").get<double>();
  const double last = control->at("last").get<double>();
  const double moved = first == 0 ? 1 : std::fabs(last / first - 1);
  const double given = number_member(campaign, "/definition/control_limit");
  const double limit = given > 0 && given < 1 ? given : kControlMoves;
  section->is_void = control->at("void").get<bool>() || !(moved <= limit);
  section->remarks.push_back(fmt::format(
      "{} control, {}, {} {} tok/s first and {} tok/s last: it moved by {} % (limit {} %){}.",
      section->is_void ? "VOID: the" : "The", text_member(*control, "/arm"),
      text_member(*control, "/phase") == "prompt" ? "evaluated its prompt at" : "decoded",
      number_text(first, 2), number_text(last, 2),
      std::isfinite(moved) ? number_text(100 * moved, 1) : "countless", number_text(100 * limit, 0),
      section->is_void ? ", so the machine did not stay the same and no figure here counts" : ""));
}

void separate(ReportSection* section) {
  const auto& all = section->comparisons;
  if (all.size() < 2) return;
  section->remarks.push_back(
      fmt::format("{} comparisons, each by itself: figures of different models, prompts or numbers "
                  "of tokens are not set side by side.",
                  all.size()));
}

ReportSection section_of(const Archived& campaign, std::vector<ReportRun> runs) {
  ReportSection section;
  const Json& value = campaign.value;
  section.campaign = &campaign;
  section.title = text_member(value, "/name");
  section.description = text_member(value, "/definition/description");
  section.notes = text_member(value, "/definition/notes");
  judge_control(value, &section);
  if (text_member(value, "/outcome/state") != "finished") {
    section.remarks.emplace_back("The campaign was interrupted: not every run was made.");
  }
  std::vector<std::string> arms;
  for (const Json& arm : value.at("arms")) arms.push_back(text_member(arm, "/name"));
  for (const std::string& arm : arms) {
    const bool run =
        std::any_of(runs.begin(), runs.end(), [&](const ReportRun& r) { return r.arm == arm; });
    if (!run) section.remarks.push_back(fmt::format("Arm {} has no runs.", arm));
  }
  section.comparisons = compare_runs(std::move(runs), arms, true);
  separate(&section);
  return section;
}

// In order of their identities: files of quality, and records of `eval`.
std::vector<const Archived*> qualities_of(const Archive& archive, const Records& records) {
  std::map<std::string, const Archived*> found;
  for (const Archived& entry : archive.entries()) {
    if (!entry.is_record() && is_quality(entry)) found.emplace(entry.id, &entry);
  }
  for (const auto& [id, record] : records) {
    if (is_quality(*record)) found.emplace(id, record);
  }
  std::vector<const Archived*> out;
  for (const auto& [id, entry] : found) out.push_back(entry);
  return out;
}

void finish_sections(const std::vector<const Archived*>& qualities, Report* report) {
  std::set<const Archived*> used;
  for (ReportSection& section : report->sections) {
    for (ReportComparison& comparison : section.comparisons) {
      finish_comparison(&comparison, section.is_void);
      if (section.campaign != nullptr) add_rooflines(section.campaign->value, &comparison);
      add_quality(qualities, &comparison, &used);
    }
  }
  for (const Archived* file : qualities) {
    if (used.count(file) != 0) {
      report->qualities.push_back(file);
    } else if (file->is_record()) {
      // A record is never left out; files of a whole store of measurements may be.
      for (ReportQuality& quality : qualities_in(*file)) {
        report->untimed.push_back(std::move(quality));
      }
    }
  }
}

std::string machine_text(const Json& record) {
  std::string out = text_member(record, "/machine/cpu/model");
  if (out.empty()) return {};
  const auto number = [&](const char* pointer) {
    const Json* found = resolve_pointer(record, pointer);
    return found != nullptr && found->is_number() ? found->get<double>() : 0.0;
  };
  const double logical = number("/machine/cpu/logical"), cores = number("/machine/cpu/cores");
  if (logical > 0) out += fmt::format(", {:.0f} logical processors", logical);
  if (cores > 0) out += fmt::format(" on {:.0f} cores", cores);
  const double memory = number("/machine/memory/total");
  if (memory > 0) out += fmt::format(", {:.1f} GiB of memory", memory / 1073741824.0);
  const std::string disk = text_member(record, "/machine/device/class");
  if (!disk.empty()) out += fmt::format(", disk: {}", disk);
  const std::string release = text_member(record, "/machine/kernel/release");
  if (!release.empty()) {
    out += fmt::format(", {} {}", text_member(record, "/machine/kernel/name"), release);
  }
  return out;
}

void add_facts(const Archive& archive, const Records& records, Report* report) {
  std::set<std::string> machines, unused;
  for (const auto& [id, record] : records) {
    report->records.push_back(record);
    // A run that failed early may not have known its disk.
    if (text_member(record->value, "/outcome/state") != "finished") continue;
    if (const std::string text = machine_text(record->value); !text.empty()) machines.insert(text);
  }
  report->machines.assign(machines.begin(), machines.end());
  for (const Archived& entry : archive.entries()) {
    if (entry.is_record() || entry.schema == kCampaignSchema || is_quality(entry)) continue;
    if (entry.schema == kReportSchema) continue;  // written there before
    unused.insert(shown_name(entry.path));
  }
  report->unused.assign(unused.begin(), unused.end());
}

}  // namespace

const ReportSeries* ReportGroup::find(const std::string& name) const {
  for (const ReportSeries& one : series) {
    if (one.figure->name == name) return &one;
  }
  return nullptr;
}

const ReportRun* ReportGroup::typical() const {
  if (const ReportSeries* speed = find("decode_tok_s")) {
    auto values = speed->values;
    std::stable_sort(values.begin(), values.end(),
                     [](const auto& a, const auto& b) { return a.second < b.second; });
    return &runs[values[(values.size() - 1) / 2].first];
  }
  for (const ReportRun& run : runs) {
    if (!run.values.empty()) return &run;
  }
  return nullptr;
}

std::string short_id(const Archived& entry) {
  return entry.id.substr(0, std::min<size_t>(8, entry.id.size()));
}

Report make_report(const Archive& archive) {
  const Records records = records_of(archive);
  const std::vector<const Archived*> campaigns = campaigns_of(archive);
  refuse_unsound(archive, records, campaigns);
  if (records.empty() && campaigns.empty()) {
    fail(ErrorKind::Usage,
         "there is no record among the {} files: `run --record DIR` and `bench` write them",
         archive.entries().size());
  }
  Report report;
  std::set<std::string> used;
  for (const Archived* campaign : campaigns) {
    report.sections.push_back(section_of(*campaign, runs_of(*campaign, records, &used)));
  }
  std::vector<ReportRun> loose;
  for (const auto& [id, record] : records) {
    if (used.count(id) == 0 && !is_quality(*record)) loose.push_back(run_of(*record));
  }
  if (!loose.empty()) {
    // In order of time, so that repeats read as they were made.
    std::stable_sort(loose.begin(), loose.end(), [](const ReportRun& a, const ReportRun& b) {
      return number_member(a.record->value, "/started") <
             number_member(b.record->value, "/started");
    });
    ReportSection section;
    section.title = campaigns.empty() ? "Runs" : "Runs of no campaign";
    section.comparisons = compare_runs(std::move(loose), {}, false);
    separate(&section);
    report.sections.push_back(std::move(section));
  }
  finish_sections(qualities_of(archive, records), &report);
  add_facts(archive, records, &report);
  return report;
}

}  // namespace penstock::measure
