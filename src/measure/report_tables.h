// The tables of a report, built once and written as HTML, Markdown and for a terminal.
#pragma once

#include <string>
#include <vector>

#include "measure/report.h"

namespace penstock::measure {

struct TableCell {
  std::string text;         // "13.80"
  std::string detail = {};  // "13.20 to 13.96"
  std::string anchor = {};  // where its source is, without '#'; "!name": the cell itself is that
  std::string mark = {};    // "VOID, n < 3": stands after the text
  bool number = false, code = false;
};

struct ReportTable {
  std::string caption;
  std::vector<std::string> columns;
  std::vector<std::vector<TableCell>> rows;  // cells past the columns belong to the last one
  bool empty() const noexcept { return rows.empty(); }
};

// Numbers every group, record, campaign and quality file once, so that every format refers to the
// same source by the same name.
class ReportIndex {
 public:
  explicit ReportIndex(const Report& report);
  std::string group(const ReportGroup& group) const;  // "g3"
  size_t group_number(const ReportGroup& group) const;
  std::string source(const Archived& entry) const;  // "r3", "c1", "q2"

 private:
  std::map<const ReportGroup*, size_t> groups_;
  std::map<const Archived*, std::string> sources_;
};

std::string figure_heading(const Figure& figure);  // "decode, tok/s"
std::string comparison_title(const ReportComparison& comparison);

// A row per group: medians and ranges.
ReportTable speed_table(const ReportComparison& comparison, const ReportIndex& index);
// Runs that failed, were refused or whose decode is no result. Empty if there are none.
ReportTable failure_table(const ReportComparison& comparison, const ReportIndex& index);
ReportTable difference_table(const ReportComparison& comparison, const ReportIndex& index);
ReportTable untimed_table(const Report& report, const ReportIndex& index);
ReportTable quality_table(const ReportComparison& comparison, const ReportIndex& index);
ReportTable roofline_table(const ReportSection& section, const ReportComparison& comparison,
                           const ReportIndex& index);
// Every value of every figure.
ReportTable value_table(const ReportComparison& comparison, const ReportIndex& index);
std::vector<std::string> comparison_remarks(const ReportComparison& comparison);

// Sources: which record belongs where, and how figures are computed.
ReportTable record_table(const Report& report, const ReportIndex& index);
ReportTable group_table(const Report& report, const ReportIndex& index);
ReportTable formula_table(const Report& report);
ReportTable campaign_table(const Report& report, const ReportIndex& index);
// One value of one record, with where it comes from.
struct FigureRow {
  const ReportSection* section = nullptr;
  const ReportGroup* group = nullptr;
  const ReportRun* run = nullptr;
  const Figure* figure = nullptr;
  double value = 0;
};
std::vector<FigureRow> figure_rows(const Report& report);

ReportTable quality_source_table(const Report& report, const ReportIndex& index);

std::string html_table(const ReportTable& table);
std::string markdown_table(const ReportTable& table);
std::string terminal_table(const ReportTable& table);

}  // namespace penstock::measure
