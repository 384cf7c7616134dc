#include "measure/report_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "measure/formula.h"
#include "measure/record.h"
#include "measure/report_text.h"

namespace penstock::measure {
namespace {

// Columns of the table of speeds, as far as a group gives them.
constexpr const char* kColumns[] = {
    "decode_tok_s",         "decode_ms",    "hit_pct",        "mb_per_token",
    "storage_mb_per_token", "stall_ms",     "prefill_tok_s",  "cold_prefill_tok_s",
    "first_token_s",        "cold_start_s", "planned_mib",    "footprint_mib",
    "anonymous_mib",        "peak_rss_mib", "group_peak_mib", "swapped_mib"};

std::string joined(const std::vector<std::string>& list) {
  std::string out;
  for (const std::string& one : list) out += (out.empty() ? "" : ", ") + one;
  return out;
}

const Figure* figure_in(const ReportComparison& comparison, const std::string& name) {
  for (const ReportGroup& group : comparison.groups) {
    if (const ReportSeries* series = group.find(name)) return series->figure;
  }
  return nullptr;
}

// Swap says something where there was any; what the system fetched, where it is not this program
// that reads.
bool is_worth_a_column(const ReportComparison& comparison, const std::string& name) {
  const auto any = [&](const char* figure, bool zero) {
    return std::any_of(comparison.groups.begin(), comparison.groups.end(),
                       [&](const ReportGroup& group) {
                         const ReportSeries* series = group.find(figure);
                         if (series == nullptr) return zero && !group.series.empty();
                         const bool is_zero = series->spread.most == 0 && series->spread.least == 0;
                         return is_zero == zero;
                       });
  };
  if (name == "swapped_mib") return any("swapped_mib", false);
  return name != "storage_mb_per_token" || any("mb_per_token", true);
}

TableCell spread_cell(const Spread& spread, int digits, const std::string& anchor) {
  TableCell cell{.text = number_text(spread.median, digits), .anchor = anchor, .number = true};
  if (spread.n > 1) {
    cell.detail = fmt::format("{} to {}", number_text(spread.least, digits),
                              number_text(spread.most, digits));
  }
  return cell;
}

TableCell label_cell(const ReportGroup& group, const std::string& anchor) {
  TableCell cell{.text = group.label, .anchor = anchor};
  std::vector<std::string> marks = group.marks;
  if (!group.lossy.empty()) marks.push_back("lossy: " + group.lossy);
  cell.mark = joined(marks);
  return cell;
}

std::string run_text(const ReportRun& run) {
  return run.record == nullptr ? std::string("no record") : short_id(*run.record);
}

// Errors stand beside what they belong to.
void add_quality_rows(const std::string& label, const ReportQuality& quality,
                      const ReportIndex& index, ReportTable* table) {
  for (size_t i = 0; i < quality.values.size(); ++i) {
    const ReportQuality::Value& value = quality.values[i];
    TableCell cell{.text = number_text(value.value, value.digits),
                   .anchor = index.source(*quality.file),
                   .number = true};
    if (i + 1 < quality.values.size() && quality.values[i + 1].name == value.name + "_error") {
      ++i;
      cell.detail = "+- " + number_text(quality.values[i].value, value.digits);
    }
    const std::string heading = value.unit.empty() ? value.title : value.title + ", " + value.unit;
    table->rows.push_back(
        {{.text = label}, {.text = heading}, cell, {.text = quality.kind + ": " + quality.text}});
  }
}

template <typename Each>
void for_groups(const Report& report, const Each& each) {
  for (const ReportSection& section : report.sections) {
    for (const ReportComparison& comparison : section.comparisons) {
      for (const ReportGroup& group : comparison.groups) each(section, comparison, group);
    }
  }
}

}  // namespace

ReportIndex::ReportIndex(const Report& report) {
  for_groups(report, [&](const auto&, const auto&, const ReportGroup& group) {
    groups_.emplace(&group, groups_.size() + 1);
  });
  const auto number = [&](const char* prefix, const std::vector<const Archived*>& list) {
    for (size_t i = 0; i < list.size(); ++i) {
      sources_.emplace(list[i], fmt::format("{}{}", prefix, i + 1));
    }
  };
  std::vector<const Archived*> campaigns;
  for (const ReportSection& section : report.sections) {
    if (section.campaign != nullptr) campaigns.push_back(section.campaign);
  }
  number("r", report.records);
  number("c", campaigns);
  number("q", report.qualities);
}

size_t ReportIndex::group_number(const ReportGroup& group) const {
  return groups_.at(&group);
}

std::string ReportIndex::group(const ReportGroup& group) const {
  return fmt::format("g{}", group_number(group));
}

std::string ReportIndex::source(const Archived& entry) const {
  const auto found = sources_.find(&entry);
  return found == sources_.end() ? std::string() : found->second;
}

std::string figure_heading(const Figure& figure) {
  if (figure.unit.empty() || figure.unit == figure.title) return figure.title;
  return figure.title + ", " + figure.unit;
}

std::string comparison_title(const ReportComparison& comparison) {
  std::string out = comparison.model + "; prompt " + comparison.prompt;
  // N tokens have N - 1 intervals.
  if (comparison.workload.decode_tokens) {
    out += fmt::format("; {:.0f} tokens generated, {:.0f} timed",
                       *comparison.workload.decode_tokens + 1, *comparison.workload.decode_tokens);
  } else {
    out += "; no decode result";
  }
  return out;
}

ReportTable speed_table(const ReportComparison& comparison, const ReportIndex& index) {
  ReportTable table;
  std::vector<const Figure*> figures;
  table.columns = {"configuration", "n"};
  for (const char* name : kColumns) {
    const Figure* figure = figure_in(comparison, name);
    if (figure == nullptr) continue;
    if (!is_worth_a_column(comparison, name)) continue;
    figures.push_back(figure);
    table.columns.push_back(figure_heading(*figure));
  }
  for (const ReportGroup& group : comparison.groups) {
    const std::string anchor = index.group(group);
    std::vector<TableCell> row = {label_cell(group, anchor)};
    size_t n = 0;
    for (const ReportRun& run : group.runs) n += run.values.empty() ? 0 : 1;
    row.push_back({.text = n == group.runs.size() ? fmt::format("{}", n)
                                                  : fmt::format("{} of {}", n, group.runs.size()),
                   .anchor = anchor,
                   .number = true});
    for (const Figure* figure : figures) {
      const ReportSeries* series = group.find(figure->name);
      row.push_back(series == nullptr
                        ? TableCell{.text = "-"}
                        : spread_cell(series->spread, figure->digits, anchor + "-" + figure->name));
      if (series == nullptr) continue;
      // Some runs of the group give it and others do not.
      if (series->spread.n != n) row.back().mark = fmt::format("n = {}", series->spread.n);
    }
    table.rows.push_back(std::move(row));
  }
  return table;
}

ReportTable failure_table(const ReportComparison& comparison, const ReportIndex& index) {
  ReportTable table{
      "Runs without a result", {"configuration", "run", "record", "what happened"}, {}};
  for (const ReportGroup& group : comparison.groups) {
    for (const ReportRun& run : group.runs) {
      if (run.reason.empty() && run.no_decode.empty()) continue;
      const std::string what =
          !run.reason.empty() ? run.reason : "no decode result: " + run.no_decode;
      table.rows.push_back({{.text = group.label, .anchor = index.group(group)},
                            {.text = run.origin.empty() ? "-" : fmt::format("{}", run.order)},
                            {.text = run_text(run)},
                            {.text = what}});
    }
  }
  return table;
}

ReportTable difference_table(const ReportComparison& comparison, const ReportIndex& index) {
  ReportTable table{"What differs from the first configuration",
                    {"configuration", "what", "first", "here", "named by the command lines"},
                    {}};
  for (const ReportGroup& group : comparison.groups) {
    for (const Difference& d : group.differences) {
      table.rows.push_back({{.text = group.label, .anchor = index.group(group)},
                            {.text = d.kind + ": " + d.name},
                            {.text = shortened(d.a, 60)},
                            {.text = shortened(d.b, 60)},
                            {.text = d.named ? "yes" : "NO"}});
    }
  }
  return table;
}

std::vector<std::string> comparison_remarks(const ReportComparison& comparison) {
  std::vector<std::string> out;
  for (const ReportGroup& group : comparison.groups) {
    for (const std::string& note : group.notes) out.push_back(group.label + ": " + note + ".");
    std::set<std::string> unnamed, named;
    for (const Difference& d : group.differences) {
      const std::string last = d.name.substr(d.name.rfind('/') + 1);
      (d.named ? named : unnamed).insert(d.kind == "settings" ? last : d.kind + " " + d.name);
    }
    // Sizes follow from one another, and what belongs to one feature begins alike.
    if (named.count("slots") != 0) {
      for (const char* other : {"arena_slots", "memory"}) named.erase(other);
    }
    std::erase_if(named, [&](const std::string& name) {
      return std::any_of(named.begin(), named.end(), [&](const std::string& other) {
        return name != other && name.starts_with(other + "_");
      });
    });
    if (named.count("moce") != 0) named.erase("identity lossy");
    if (!unnamed.empty()) {
      out.push_back(
          fmt::format("{} also differs from the first configuration in what no option names: {}.",
                      group.label, joined({unnamed.begin(), unnamed.end()})));
    }
    if (named.size() > 1) {
      out.push_back(fmt::format(
          "{} differs from the first configuration in {} settings at once ({}): no single one "
          "explains its figures.",
          group.label, named.size(), joined({named.begin(), named.end()})));
    }
  }
  return out;
}

ReportTable quality_table(const ReportComparison& comparison, const ReportIndex& index) {
  ReportTable table{
      "Quality of what was timed", {"configuration", "figure", "value", "measured"}, {}};
  // Configurations of one key have one quality.
  std::vector<std::pair<std::string, const ReportGroup*>> keys;
  for (const ReportGroup& group : comparison.groups) {
    if (group.series.empty()) continue;
    const std::string key = group.quality.empty() ? std::string() : group.quality_key;
    const auto known = std::find_if(keys.begin(), keys.end(), [&](const auto& other) {
      return !key.empty() && other.second->quality_key == key && !other.second->quality.empty() &&
             other.second->verdict == group.verdict;
    });
    const auto unmeasured = std::find_if(keys.begin(), keys.end(), [&](const auto& other) {
      return key.empty() && other.second->quality.empty();
    });
    const auto same = known != keys.end() ? known : unmeasured;
    if (same != keys.end()) {
      same->first += "; " + group.label;
    } else {
      keys.emplace_back(group.label, &group);
    }
  }
  for (const auto& [label, group] : keys) {
    if (group->quality.empty()) {
      table.rows.push_back(
          {{.text = label}, {.text = "quality: unmeasured"}, {.text = "-"}, {.text = "-"}});
    }
    if (!group->verdict.empty()) {
      table.rows.push_back({{.text = label},
                            {.text = "quality: " + group->verdict},
                            {.text = "-"},
                            {.text = "limits of cache-aware routing; both tiers"}});
    }
    for (const ReportQuality& quality : group->quality)
      add_quality_rows(label, quality, index, &table);
  }
  return table;
}

ReportTable untimed_table(const Report& report, const ReportIndex& index) {
  ReportTable table{"Quality of what was not timed", {"model", "figure", "value", "measured"}, {}};
  for (const ReportQuality& quality : report.untimed) {
    const std::string path = text_member(quality.file->value, "/inputs/model/path");
    add_quality_rows(path.empty() ? "-" : shown_name(path), quality, index, &table);
  }
  return table;
}

ReportTable roofline_table(const ReportSection& section, const ReportComparison& comparison,
                           const ReportIndex& index) {
  ReportTable table{"Time of a token against its bounds",
                    {"configuration", "measured, ms", "serial bound, ms", "overlap bound, ms",
                     "share of the overlap bound, %"},
                    {}};
  if (section.campaign == nullptr) return table;
  const std::string source = index.source(*section.campaign) + "-bounds";
  for (const ReportGroup& group : comparison.groups) {
    if (!group.roofline) continue;
    const ReportRoofline& roof = *group.roofline;
    table.rows.push_back({{.text = group.label, .anchor = index.group(group)},
                          spread_cell(roof.measured_ms, 2, index.group(group) + "-decode_ms"),
                          spread_cell(roof.serial_ms, 2, source),
                          spread_cell(roof.overlap_ms, 2, source),
                          spread_cell(roof.share, 1, source)});
    // Faster than everything overlapped cannot be: the measurement is wrong.
    if (roof.share.median > 100)
      table.rows.back()[4].mark = "above the bound: a measurement is wrong";
  }
  return table;
}

ReportTable value_table(const ReportComparison& comparison, const ReportIndex& index) {
  ReportTable table{
      "Every value", {"configuration", "figure", "phase", "median", "min", "max", "values"}, {}};
  for (const ReportGroup& group : comparison.groups) {
    for (const ReportSeries& series : group.series) {
      const Figure& figure = *series.figure;
      std::vector<TableCell> row = {
          {.text = group.label},
          {.text = figure_heading(figure), .anchor = "!" + index.group(group) + "-" + figure.name},
          {.text = figure.phase}};
      for (const double value : {series.spread.median, series.spread.least, series.spread.most}) {
        row.push_back({.text = number_text(value, figure.digits), .number = true});
      }
      for (const auto& [run, value] : series.values) {
        const Archived& record = *group.runs[run].record;
        row.push_back({.text = number_text(value, figure.digits),
                       .anchor = index.source(record) + "-" + figure.name,
                       .number = true});
      }
      table.rows.push_back(std::move(row));
    }
  }
  return table;
}

ReportTable record_table(const Report& report, const ReportIndex& index) {
  ReportTable table{"Records", {"record", "program", "campaign, arm", "how it ended"}, {}};
  std::map<const Archived*, std::string> places;
  for_groups(report, [&](const ReportSection& section, const auto&, const ReportGroup& group) {
    for (const ReportRun& run : group.runs) {
      if (run.record == nullptr) continue;
      std::string& place = places[run.record];
      if (!place.empty()) place += "; ";
      place += section.campaign == nullptr ? group.label : section.title + ", " + group.label;
    }
  });
  for (const ReportQuality& quality : report.untimed) places[quality.file] = "quality";
  for (const Archived* file : report.qualities) {
    if (file->is_record()) places[file] = "quality";
  }
  for (const Archived* record : report.records) {
    const std::string revision = text_member(record->value, "/producer/revision");
    std::string program = text_member(record->value, "/producer/program") + " " +
                          text_member(record->value, "/producer/version");
    if (!revision.empty()) program += " " + revision.substr(0, 16);
    table.rows.push_back({{.text = record->id, .anchor = "!" + index.source(*record)},
                          {.text = program},
                          {.text = places[record]},
                          {.text = text_member(record->value, "/outcome/state")}});
  }
  return table;
}

ReportTable group_table(const Report& report, const ReportIndex& index) {
  ReportTable table{"Configurations and their records", {"no.", "configuration", "records"}, {}};
  for_groups(report, [&](const auto&, const auto&, const ReportGroup& group) {
    std::vector<std::string> ids;
    for (const ReportRun& run : group.runs) ids.push_back(run_text(run));
    table.rows.push_back(
        {{.text = fmt::format("{}", index.group_number(group)), .anchor = "!" + index.group(group)},
         {.text = group.label},
         {.text = joined(ids)}});
  });
  return table;
}

ReportTable formula_table(const Report& report) {
  ReportTable table{"Formulas", {"figure", "unit", "phase", "over members of", "formula"}, {}};
  std::map<std::string, std::set<std::string>> used;  // schema: figures
  for_groups(report, [&](const auto&, const auto&, const ReportGroup& group) {
    for (const ReportRun& run : group.runs) {
      for (const auto& [name, value] : run.values) used[run.record->schema].insert(name);
    }
  });
  for (const char* schema : {kRecordSchema, kPeerSchema}) {
    for (const Figure& figure : figures_of(schema)) {
      if (used[schema].count(figure.name) == 0) continue;
      table.rows.push_back(
          {{.text = figure.title},
           {.text = figure.unit.empty() ? "-" : figure.unit},
           {.text = figure.phase},
           {.text = schema == std::string(kRecordSchema) ? "run records" : "peer records"},
           {.text = figure.formula.text(), .code = true}});
    }
  }
  return table;
}

ReportTable campaign_table(const Report& report, const ReportIndex& index) {
  ReportTable table{"Campaigns", {"campaign", "manifest", "figure", "value", "formula"}, {}};
  struct Member {
    const char* title;
    const char* pointer;
  };
  static constexpr Member kMembers[] = {
      {"control, first, tok/s", "/control/first"},
      {"control, last, tok/s", "/control/last"},
      {"compute per token, ms", "/measured/compute_ms"},
      {"disk, bytes per second", "/measured/disk_bytes_per_s"},
      {"disk beside computing, bytes per second", "/measured/disk_busy_bytes_per_s"},
      {"memory, bytes per second", "/measured/memory_bytes_per_s"}};
  for (const ReportSection& section : report.sections) {
    if (section.campaign == nullptr) continue;
    const std::string anchor = "!" + index.source(*section.campaign);
    const auto add = [&](const std::string& title, const std::string& value,
                         const std::string& formula, const std::string& at) {
      table.rows.push_back({{.text = section.title, .anchor = at},
                            {.text = section.campaign->id},
                            {.text = title},
                            {.text = value, .number = true},
                            {.text = formula, .code = true}});
    };
    add("runs", fmt::format("{}", resolve_pointer(section.campaign->value, "/runs")->size()),
        "count({/runs})", anchor);
    for (const Member& member : kMembers) {
      const auto* found = resolve_pointer(section.campaign->value, member.pointer);
      if (found == nullptr || !found->is_number()) continue;
      add(member.title, number_text(found->get<double>(), 2), fmt::format("{{{}}}", member.pointer),
          "");
    }
    const bool bounds = std::any_of(
        section.comparisons.begin(), section.comparisons.end(), [](const ReportComparison& c) {
          return std::any_of(c.groups.begin(), c.groups.end(),
                             [](const ReportGroup& g) { return g.roofline.has_value(); });
        });
    if (!bounds) continue;
    const std::string read = "MB/token / {/measured/disk_bytes_per_s} * 1e9";
    add("serial bound, ms", "-", "{/measured/compute_ms} + " + read, anchor + "-bounds");
    add("overlap bound, ms", "-", "most({/measured/compute_ms}, " + read + ")", "");
    add("share of the overlap bound, %", "-", "overlap bound / measured ms * 100", "");
  }
  return table;
}

std::vector<FigureRow> figure_rows(const Report& report) {
  std::vector<FigureRow> out;
  for_groups(report, [&](const ReportSection& section, const auto&, const ReportGroup& group) {
    for (const ReportRun& run : group.runs) {
      if (run.record == nullptr) continue;
      for (const Figure& figure : figures_of(run.record->schema)) {
        const auto found = run.values.find(figure.name);
        if (found == run.values.end()) continue;
        out.push_back({&section, &group, &run, &figure, found->second});
      }
    }
  });
  return out;
}

ReportTable quality_source_table(const Report& report, const ReportIndex& index) {
  ReportTable table{"Quality", {"file", "identity", "figure", "formula"}, {}};
  // In order of their identities.
  std::map<std::string, std::pair<const Archived*, std::map<std::string, std::string>>> formulas;
  const auto take = [&](const ReportQuality& quality) {
    for (const ReportQuality::Value& value : quality.values) {
      auto& [file, of] = formulas[quality.file->id];
      file = quality.file;
      of[value.formula] = quality.kind + ": " + value.title;
    }
  };
  for_groups(report, [&](const auto&, const auto&, const ReportGroup& group) {
    for (const ReportQuality& quality : group.quality) take(quality);
  });
  for (const ReportQuality& quality : report.untimed) take(quality);
  for (const auto& [id, source] : formulas) {
    bool first = !source.first->is_record();  // records stand in their own table
    for (const auto& [formula, title] : source.second) {
      table.rows.push_back({{.text = shown_name(source.first->path),
                             .anchor = first ? "!" + index.source(*source.first) : std::string()},
                            {.text = id},
                            {.text = title},
                            {.text = formula, .code = true}});
      first = false;
    }
  }
  return table;
}

}  // namespace penstock::measure
