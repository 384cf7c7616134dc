// Run records, records of other programs and campaigns, sealed (parts.h), through what reads them:
// their identities, figures and facts, `record verify`, `report` and `diff`. They may be refused
// with an Error and nothing else; a record cut down keeps its name, and a report does not depend on
// the order of its records.
#include <algorithm>

#include "base/log.h"
#include "measure/audit.h"
#include "measure/figures.h"
#include "measure/record.h"
#include "measure/record_diff.h"
#include "measure/record_verify.h"
#include "measure/report.h"
#include "parts.h"

using namespace penstock;
using namespace penstock::measure;
using nlohmann::json;

namespace {

void inspect(const json& record) {
  const std::string schema = record["schema"].is_string() ? record["schema"] : json("");
  const std::string id = record_id(record);
  for (const auto& [name, member] : record.items()) {
    fuzz::tolerate(
        [&, &key = name] { fuzz::require(record_id(trim_record(record, {key})) == id); });
    phase_of(schema, "/" + name);
  }
  for (const Figure& figure : figures_of(schema)) figure_value(figure, record);
  why_no_decode(record);
  facts_of(record);
  workload_of(record);
  fuzz::require(differences_of(record, record).empty());
  if (record.contains("argv")) options_of(record["argv"]);
}

void report(const Archive& archive, const Archive& reversed) {
  std::string text;
  fuzz::tolerate([&] {
    const Report made = make_report(archive);
    text = report_json(made).dump(1);
    text += report_markdown(made) + report_csv(made) + report_html(made) + report_table(made);
    report_page(made, "Benchmarks", "plots");
  });
  fuzz::tolerate([&] {
    const Report made = make_report(reversed);
    std::string again = report_json(made).dump(1);
    again += report_markdown(made) + report_csv(made) + report_html(made) + report_table(made);
    fuzz::require(text == again);
  });
}

void diff(const Archive& archive) {
  std::vector<const Archived*> sound;
  for (const Archived& entry : archive.entries()) {
    if (entry.is_record() && entry.problems.empty()) sound.push_back(&entry);
  }
  if (sound.empty()) return;
  fuzz::tolerate([&] {
    const RecordDiff found = diff_records({sound.front()}, {sound.back()});
    diff_table(found);
    diff_json(found).dump(1);
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static fuzz::Folder folder;
  log::set_level(log::Level::Quiet);
  folder.clear();
  for (const json& record : fuzz::write_archive(fuzz::parts_of(data, size), 0, folder, "records")) {
    fuzz::tolerate([&] { inspect(record); });
  }
  Archive archive, reversed;
  archive.add(folder.path() + "/records");
  std::vector<std::string> paths;
  for (const Archived& entry : archive.entries()) {
    record_findings(entry);
    paths.push_back(entry.path);
  }
  std::reverse(paths.begin(), paths.end());
  for (const std::string& path : paths) reversed.add(path);
  campaign_findings(archive);
  report(archive, reversed);
  diff(archive);
  return 0;
}
