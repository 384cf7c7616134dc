// A report for programs: CSV and JSON; and for a terminal.
#include <fmt/format.h>

#include "measure/formula.h"
#include "measure/quality_verdict.h"
#include "measure/report.h"
#include "measure/report_tables.h"
#include "measure/report_text.h"

namespace penstock::measure {
namespace {

using Json = nlohmann::ordered_json;

std::string csv_line(const std::vector<std::string>& cells) {
  std::string out;
  for (size_t i = 0; i < cells.size(); ++i) out += (i == 0 ? "" : ",") + csv_cell(cells[i]);
  return out + "\n";
}

std::string joined(const std::vector<std::string>& list) {
  std::string out;
  for (const std::string& one : list) out += (out.empty() ? "" : " ") + one;
  return out;
}

std::string arm_of(const ReportGroup& group) {
  return group.arm.empty() ? group.label : group.arm;
}

Json series_json(const ReportSeries& series, const ReportGroup& group) {
  Json values = Json::array();
  for (const auto& [run, value] : series.values) {
    values.push_back({{"record", group.runs[run].record->id}, {"value", value}});
  }
  return {{"unit", series.figure->unit},
          {"phase", series.figure->phase},
          {"n", series.spread.n},
          {"median", series.spread.median},
          {"min", series.spread.least},
          {"max", series.spread.most},
          {"formula", series.figure->formula.text()},
          {"values", std::move(values)}};
}

Json spread_json(const Spread& spread) {
  return {{"n", spread.n}, {"median", spread.median}, {"min", spread.least}, {"max", spread.most}};
}

Json runs_json(const ReportGroup& group) {
  Json out = Json::array();
  for (const ReportRun& run : group.runs) {
    Json one = {{"record", run.record == nullptr ? Json() : Json(run.record->id)},
                {"repeat", run.repeat},
                {"order", run.order},
                {"control", run.control},
                {"state", run.state}};
    if (!run.reason.empty()) one["reason"] = run.reason;
    if (!run.no_decode.empty()) one["no_decode"] = run.no_decode;
    out.push_back(std::move(one));
  }
  return out;
}

Json quality_json(const std::vector<ReportQuality>& qualities) {
  Json out = Json::array();
  for (const ReportQuality& quality : qualities) {
    for (const ReportQuality::Value& value : quality.values) {
      out.push_back({{"file", quality.file->id},
                     {"kind", quality.kind},
                     {"text", quality.text},
                     {"figure", value.name},
                     {"value", value.value},
                     {"formula", value.formula}});
    }
  }
  return out;
}

Json group_json(const ReportGroup& group) {
  Json out = {{"label", group.label}, {"arm", group.arm},     {"prompt", group.prompt},
              {"lossy", group.lossy}, {"marks", group.marks}, {"notes", group.notes}};
  out["runs"] = runs_json(group);
  out["figures"] = Json::object();
  for (const ReportSeries& series : group.series) {
    out["figures"][series.figure->name] = series_json(series, group);
  }
  out["quality_key"] = group.quality_key.empty() ? Json() : Json(group.quality_key);
  out["quality"] = group.quality.empty() ? Json("unmeasured") : quality_json(group.quality);
  if (!group.verdict.empty()) out["quality_verdict"] = group.verdict;
  if (group.roofline) {
    out["bounds"] = {{"measured_ms", spread_json(group.roofline->measured_ms)},
                     {"serial_ms", spread_json(group.roofline->serial_ms)},
                     {"overlap_ms", spread_json(group.roofline->overlap_ms)},
                     {"share_of_overlap_pct", spread_json(group.roofline->share)}};
  }
  out["differences"] = Json::array();
  for (const Difference& d : group.differences) {
    out["differences"].push_back(
        {{"kind", d.kind}, {"name", d.name}, {"first", d.a}, {"here", d.b}, {"named", d.named}});
  }
  return out;
}

std::string quality_lines(const ReportQuality& quality, const std::string& campaign,
                          const std::string& arm, const std::string& prompt) {
  std::string out;
  for (const ReportQuality::Value& value : quality.values) {
    out += csv_line({quality.file->id, campaign, arm, prompt, "", quality.kind + " " + value.name,
                     fmt::format("{}", value.value), value.unit, value.formula,
                     joined(Formula(value.formula).pointers())});
  }
  return out;
}

Json optional_json(const std::optional<double>& value) {
  return value ? Json(*value) : Json();
}

}  // namespace

std::string report_csv(const Report& report) {
  std::string out = csv_line({"record", "campaign", "arm", "prompt", "repeat", "figure", "value",
                              "unit", "formula", "pointers"});
  const auto campaign = [](const ReportSection& section) {
    return section.campaign == nullptr ? std::string() : section.title;
  };
  for (const FigureRow& row : figure_rows(report)) {
    out += csv_line({row.run->record->id, campaign(*row.section), arm_of(*row.group),
                     row.group->prompt, fmt::format("{}", row.run->repeat), row.figure->name,
                     fmt::format("{}", row.value), row.figure->unit, row.figure->formula.text(),
                     joined(row.figure->formula.pointers())});
  }
  for (const ReportSection& section : report.sections) {
    for (const ReportComparison& comparison : section.comparisons) {
      for (const ReportGroup& group : comparison.groups) {
        // What gave no figures has a row that says why.
        for (const ReportRun& run : group.runs) {
          if (run.reason.empty() && run.no_decode.empty()) continue;
          out += csv_line({run.record == nullptr ? "" : run.record->id, campaign(section),
                           arm_of(group), group.prompt, fmt::format("{}", run.repeat),
                           run.reason.empty() ? "no decode result" : "no result",
                           run.reason.empty() ? run.no_decode : run.reason, "", "",
                           run.record == nullptr ? run.origin : "/outcome"});
        }
        for (const ReportQuality& quality : group.quality) {
          out += quality_lines(quality, campaign(section), arm_of(group), group.prompt);
        }
      }
    }
  }
  for (const ReportQuality& quality : report.untimed) out += quality_lines(quality, "", "", "");
  return out;
}

Json report_json(const Report& report) {
  Json out = {{"schema", kReportSchema}, {"version", 1}};
  out["records"] = Json::array();
  for (const Archived* record : report.records) out["records"].push_back(record->id);
  out["quality_files"] = Json::array();
  for (const Archived* file : report.qualities) out["quality_files"].push_back(file->id);
  out["quality_limits"] = limits_json({});
  out["untimed_quality"] = quality_json(report.untimed);
  out["machines"] = report.machines;
  out["unused"] = report.unused;
  out["sections"] = Json::array();
  for (const ReportSection& section : report.sections) {
    Json one = {{"title", section.title},
                {"campaign", section.campaign == nullptr ? Json() : Json(section.campaign->id)},
                {"void", section.is_void},
                {"remarks", section.remarks},
                {"comparisons", Json::array()}};
    for (const ReportComparison& comparison : section.comparisons) {
      Json groups = Json::array();
      for (const ReportGroup& group : comparison.groups) groups.push_back(group_json(group));
      one["comparisons"].push_back(
          {{"model", comparison.model},
           {"prompt", comparison.prompt},
           {"prompt_tokens", optional_json(comparison.workload.prompt_tokens)},
           {"decode_tokens", optional_json(comparison.workload.decode_tokens)},
           {"arena_sweep", comparison.by_slots},
           {"groups", std::move(groups)}});
    }
    out["sections"].push_back(std::move(one));
  }
  return out;
}

std::string report_table(const Report& report) {
  const ReportIndex index(report);
  std::string out;
  const auto plain = [](std::string text) {
    for (char& c : text) {
      if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = ' ';
    }
    return text;
  };
  for (const ReportSection& section : report.sections) {
    out += plain(section.title) + (section.is_void ? ": VOID" : "") + "\n";
    for (const std::string& remark : section.remarks) out += "  " + plain(remark) + "\n";
    for (const ReportComparison& comparison : section.comparisons) {
      out += "\n  " + plain(comparison_title(comparison)) + "\n";
      ReportTable speeds = speed_table(comparison, index);
      // A terminal is narrow: what is asked about first.
      const std::vector<std::string> kept = {
          "configuration", "n", "decode, tok/s", "hits, %", "read, MB/token", "prompt, tok/s"};
      ReportTable narrow;
      for (size_t i = 0; i < speeds.columns.size(); ++i) {
        if (std::find(kept.begin(), kept.end(), speeds.columns[i]) == kept.end()) continue;
        narrow.columns.push_back(speeds.columns[i]);
        narrow.rows.resize(speeds.rows.size());
        for (size_t r = 0; r < speeds.rows.size(); ++r) {
          narrow.rows[r].push_back(speeds.rows[r][i]);
          const bool ranged = speeds.columns[i].ends_with("tok/s");
          if (!ranged) narrow.rows[r].back().detail.clear();
        }
      }
      out += terminal_table(narrow);
      out += terminal_table(failure_table(comparison, index));
      out += terminal_table(roofline_table(section, comparison, index));
      for (const std::string& remark : comparison_remarks(comparison)) {
        out += "  " + plain(remark) + "\n";
      }
    }
    out += "\n";
  }
  return out;
}

}  // namespace penstock::measure
