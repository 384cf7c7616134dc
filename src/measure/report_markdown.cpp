// A report as Markdown: the report itself, and a page for a repository with its plots beside it.
#include <fmt/format.h>

#include <set>

#include "measure/report.h"
#include "measure/report_tables.h"
#include "measure/report_text.h"

namespace penstock::measure {
namespace {

std::string list_of(const std::vector<std::string>& remarks) {
  std::string out;
  for (const std::string& remark : remarks) out += "- " + markdown_text(remark) + "\n";
  return out.empty() ? out : out + "\n";
}

// Apart from the notes, which may end with a list.
std::string quoted(const std::vector<std::string>& remarks) {
  std::string out;
  for (const std::string& remark : remarks) out += "> " + markdown_text(remark) + "\n\n";
  return out;
}

std::string heading(const ReportSection& section) {
  return "## " + markdown_text(section.title) + (section.is_void ? " **VOID**" : "") + "\n\n";
}

std::string words(const ReportSection& section) {
  std::string out;
  if (!section.description.empty()) out += markdown_text(section.description) + "\n\n";
  if (!section.notes.empty()) {
    // Written as Markdown by whoever defined the campaign.
    out += section.notes + (section.notes.ends_with('\n') ? "\n" : "\n\n");
  }
  return out;
}

std::string tables(const ReportSection& section, const ReportComparison& comparison,
                   const ReportIndex& index, bool all) {
  std::string out = markdown_table(speed_table(comparison, index));
  out += markdown_table(failure_table(comparison, index));
  out += list_of(comparison_remarks(comparison));
  out += markdown_table(roofline_table(section, comparison, index));
  out += markdown_table(quality_table(comparison, index));
  out += markdown_table(difference_table(comparison, index));
  if (all) out += markdown_table(value_table(comparison, index));
  return out;
}

std::string sources(const Report& report, const ReportIndex& index) {
  std::string out = "## Sources\n\n";
  out +=
      "A figure in a table above is the median of its configuration's records, with the least and "
      "the most in parentheses; each record's value is the formula over its members.\n\n";
  out += markdown_table(campaign_table(report, index));
  out += markdown_table(group_table(report, index));
  out += markdown_table(record_table(report, index));
  out += markdown_table(quality_source_table(report, index));
  return out + markdown_table(formula_table(report));
}

std::string machines(const Report& report) {
  std::string out;
  for (const std::string& machine : report.machines) out += "- " + markdown_text(machine) + "\n";
  return out.empty() ? out : out + "\n";
}

}  // namespace

std::string report_markdown(const Report& report) {
  const ReportIndex index(report);
  std::string out = "# Penstock report\n\n" +
                    fmt::format("{} records. Measured on:\n\n", report.records.size()) +
                    machines(report);
  for (const ReportSection& section : report.sections) {
    out += heading(section) + words(section) + quoted(section.remarks);
    for (const ReportComparison& comparison : section.comparisons) {
      out += "### " + markdown_text(comparison_title(comparison)) + "\n\n";
      out += tables(section, comparison, index, true);
    }
  }
  return out + markdown_table(untimed_table(report, index)) + sources(report, index);
}

ReportPage report_page(const Report& report, const std::string& title, const std::string& plots) {
  const ReportIndex index(report);
  ReportPage page;
  std::string& out = page.markdown;
  out =
      "<!-- Written by `penstock report --docs` from records; edit the campaigns, not this. -->\n";
  out += "# " + markdown_text(title) + "\n\nMeasured on:\n\n" + machines(report);
  out +=
      "Every run was a process of its own with a record (`docs/records.md`). A figure is the "
      "median of its configuration's runs; the least and the most stand in parentheses. Numbers of "
      "configurations lead to their records, and the formulas stand at the end. Fewer than three "
      "runs are marked, and so is a campaign whose control moved.\n\n";
  std::set<std::string> names;
  const auto add_plots = [&](const ReportSection& section, const std::vector<ReportPlot>& drawn) {
    for (const ReportPlot& plot : drawn) {
      const std::string stem = slug(section.title) + "-" + plot.name;
      std::string name = stem;
      for (int i = 2; !names.insert(name).second; ++i) name = fmt::format("{}-{}", stem, i);
      page.plots.push_back({name + ".svg", svg_file(plot)});
      out += fmt::format("![{}]({}{}.svg)\n", markdown_text(plot.title),
                         plots.empty() ? "" : plots + "/", name);
    }
    if (!drawn.empty()) out += "\n";
  };
  for (const ReportSection& section : report.sections) {
    out += heading(section) + words(section) + quoted(section.remarks);
    for (const ReportComparison& comparison : section.comparisons) {
      out += "### " + markdown_text(comparison_title(comparison)) + "\n\n";
      out += tables(section, comparison, index, false);
      add_plots(section, report_plots(section, comparison));
    }
    add_plots(section, quality_plots(section));
  }
  out += markdown_table(untimed_table(report, index)) + sources(report, index);
  return page;
}

}  // namespace penstock::measure
