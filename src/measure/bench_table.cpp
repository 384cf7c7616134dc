#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/file.h"
#include "measure/bench.h"
#include "measure/figures.h"
#include "measure/formula.h"
#include "measure/json_schema.h"
#include "measure/quality_store.h"
#include "measure/quality_verdict.h"
#include "measure/spread.h"

namespace penstock::measure {

using Json = nlohmann::json;

namespace {

struct Row {
  std::string arm, prompt, failure;
  std::map<std::string, std::vector<double>> values;
  size_t failed = 0;
  std::string quality;  // what stands beside the speed of a lossy configuration
};

constexpr const char* kColumns[] = {"prefill_tok_s", "decode_tok_s", "hit_pct",
                                    "storage_mb_per_token", "peak_rss_mib"};

// Of a run with something lossy on: what was measured under its key, and whether that will do.
std::string quality_of(const Json& record) {
  const Json* lossy = resolve_pointer(record, "/lossy");
  const Json* key = resolve_pointer(record, "/quality_key");
  if (lossy == nullptr || lossy->empty() || key == nullptr || !key->is_string()) return {};
  const auto known = QualityStore("").find(key->get<std::string>());
  if (!known) return "quality: unmeasured";
  const QualityJudgement judged = judge_quality(*known, replaced_share(record).has_value());
  return fmt::format("quality: {}; {}", quality_line(known), judged.text());
}

}  // namespace

std::string bench_table(const Json& manifest, const std::string& folder) {
  std::vector<Row> rows;
  for (const Json& run : manifest.at("runs")) {
    if (run.at("control").get<bool>()) continue;
    auto row = std::find_if(rows.begin(), rows.end(), [&](const Row& r) {
      return r.arm == run.at("arm") && r.prompt == run.at("prompt");
    });
    if (row == rows.end()) {
      rows.push_back({run.at("arm"), run.at("prompt"), {}, {}, 0, {}});
      row = rows.end() - 1;
    }
    if (run.at("state") != "finished" || !run.at("record").is_string()) {
      ++row->failed;
      if (run.at("reason").is_string()) row->failure = run["reason"].get<std::string>();
      continue;
    }
    const std::string path = folder + "/" + run["record"].get<std::string>() + ".json";
    const Json record = parse_json(read_text_file(path), path);
    if (row->quality.empty()) row->quality = quality_of(record);
    for (const char* name : kColumns) {
      const Figure* figure = find_figure(record.at("schema"), name);
      const auto value = figure == nullptr ? std::nullopt : figure_value(*figure, record);
      if (value) row->values[name].push_back(*value);
    }
  }
  size_t width = 3;
  for (const Row& row : rows) width = std::max(width, row.arm.size() + row.prompt.size() + 2);
  std::string out =
      fmt::format("  {:<{}}  {:>24}  {:>24}  {:>7}  {:>9}  {:>9}\n", "arm, prompt", width,
                  "prompt tok/s", "decode tok/s", "hits %", "MB/token", "RSS MiB");
  for (Row& row : rows) {
    out += fmt::format("  {:<{}}", row.arm + ", " + row.prompt, width);
    if (row.values.empty()) {
      out += fmt::format("  {} of {} failed: {}\n", row.failed, row.failed, row.failure);
      continue;
    }
    for (const char* name : {"prefill_tok_s", "decode_tok_s"}) {
      const Spread s = spread_of(row.values[name]);
      out += fmt::format("  {:>24}",
                         fmt::format("{:.2f} ({:.2f} to {:.2f})", s.median, s.least, s.most));
    }
    const auto cell = [&](const char* name, int places, int digits) {
      const Spread s = spread_of(row.values[name]);
      out += s.n == 0 ? fmt::format("  {:>{}}", "-", places)
                      : fmt::format("  {:>{}.{}f}", s.median, places, digits);
    };
    cell("hit_pct", 7, 1);
    cell("storage_mb_per_token", 9, 2);
    cell("peak_rss_mib", 9, 0);
    out += row.failed == 0 ? "\n" : fmt::format("  ({} failed: {})\n", row.failed, row.failure);
    if (!row.quality.empty()) out += fmt::format("    {}\n", row.quality);
  }
  const Json& control = manifest.at("control");
  if (control.is_object()) {
    out += fmt::format("  control: the {} speed of {} moved by {:+.1f} %{}\n",
                       control.value("phase", "decode"), control["arm"].get<std::string>(),
                       100 * control["moved"].get<double>(),
                       control["void"].get<bool>()
                           ? "; that voids the comparison: the machine did not stay the same"
                           : "");
  }
  return out;
}

}  // namespace penstock::measure
