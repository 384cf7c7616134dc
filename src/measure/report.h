// Reports from records alone (spec/streaming.md §J.4, docs/report.md): runs in groups, groups in
// comparisons, every number a figure (figures.h) of a named record. The same records give the same
// bytes in whatever order they are named.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "measure/archive.h"
#include "measure/figures.h"
#include "measure/record_diff.h"
#include "measure/spread.h"

namespace penstock::measure {

// Runs of which there should be three at least, and how far a control may move (§J.2).
inline constexpr size_t kLeastRuns = 3;
inline constexpr double kControlMoves = 0.05;

inline constexpr const char* kReportSchema = "penstock-report";  // of report.json

struct ReportRun {
  const Archived* record = nullptr;  // null: it left none
  std::string arm, prompt;           // of a campaign
  int64_t repeat = 0, order = 0;     // of a campaign
  bool control = false;
  std::string state;                     // finished, or what else became of it
  std::string reason;                    // why it gives no figures at all; "" if it does
  std::string no_decode;                 // why its decode is no result; "" if it is
  std::string origin;                    // where the campaign's manifest has it: "/runs/3"
  std::map<std::string, double> values;  // by the figure's name; finite
  bool gives(const std::string& name) const { return values.count(name) != 0; }
};

// One figure over the runs of a group.
struct ReportSeries {
  const Figure* figure = nullptr;                 // of the first run that gives it
  std::vector<std::pair<size_t, double>> values;  // index of the run in its group
  Spread spread;
};

// A measurement of quality (a file of `eval` or of the quality store) with the group's key.
struct ReportQuality {
  const Archived* file = nullptr;
  std::string kind, text;  // perplexity, kld or tasks; of which text or against what
  struct Value {
    std::string name, title, unit, formula;
    double value = 0;
    int digits = 4;
  };
  std::vector<Value> values;
};

// Bounds from what a campaign measured beside its runs (spec/streaming.md §M.1), medians over runs.
struct ReportRoofline {
  Spread measured_ms, serial_ms, overlap_ms;
  Spread share;  // of the overlap bound reached, in %
};

struct ReportGroup {
  std::string label, arm, prompt;
  std::vector<ReportRun> runs;
  std::vector<ReportSeries> series;  // in the order of figures_of()
  std::string lossy;                 // lossy options in force, "" if none
  std::string quality_key;
  std::vector<std::string> marks;       // "n < 3", "VOID"
  std::vector<std::string> notes;       // sentences
  std::vector<Difference> differences;  // from the comparison's first group
  std::vector<ReportQuality> quality;
  std::string verdict;  // of it, where something lossy was measured (quality_verdict.h)
  std::optional<ReportRoofline> roofline;

  const ReportSeries* find(const std::string& name) const;
  // The run whose decode speed is the median (the lower one of two), else the first with figures;
  // null if there is none.
  const ReportRun* typical() const;
};

// Groups with one model, one prompt and one number of tokens: figures may be set side by side.
struct ReportComparison {
  Workload workload;
  std::string model;   // for people
  std::string prompt;  // for people
  std::vector<ReportGroup> groups;
  bool by_slots = false;  // groups differ in the size of the arena alone
};

struct ReportSection {
  const Archived* campaign = nullptr;  // null: runs that belong to none
  std::string title, description, notes;
  bool is_void = false;
  std::vector<std::string> remarks;  // sentences: void, separated comparisons, missing conditions
  std::vector<ReportComparison> comparisons;
};

struct Report {
  std::vector<ReportSection> sections;
  std::vector<const Archived*> records;    // in order of their identities
  std::vector<const Archived*> qualities;  // files that some group's quality comes from
  std::vector<ReportQuality> untimed;      // of records of `eval` that match no group
  std::vector<std::string> machines;       // "AMD EPYC, 2 processors, 25.2 GB, Linux 6.18"
  std::vector<std::string> unused;         // files that are no records, campaigns or quality
};

// `archive` must outlive the report. Throws Error(Format), naming each file, for records or
// campaigns that do not verify and for campaigns with runs whose records are not there;
// Error(Usage) where there is no record at all.
Report make_report(const Archive& archive);

std::string short_id(const Archived& entry);  // first 8 digits

std::string report_html(const Report& report);
std::string report_markdown(const Report& report);
std::string report_csv(const Report& report);
nlohmann::ordered_json report_json(const Report& report);
std::string report_table(const Report& report);  // for a terminal

struct ReportFile {
  std::string name;  // without a folder
  std::string text;
};
// A page for a repository, and its plots, which it refers to as PLOTS/NAME.
struct ReportPage {
  std::string markdown;
  std::vector<ReportFile> plots;
};
ReportPage report_page(const Report& report, const std::string& title, const std::string& plots);

// `svg_file` makes a file of it that needs nothing beside itself.
struct ReportPlot {
  std::string name, title;  // "decode", "Decode speed"
  std::string svg;          // <svg ...>...</svg>, styled by plot_style()
};
std::vector<ReportPlot> report_plots(const ReportSection& section,
                                     const ReportComparison& comparison);
// Speed against quality, over models where prompt and lengths are the same.
std::vector<ReportPlot> quality_plots(const ReportSection& section);
const char* plot_style();  // CSS, light and dark
std::string svg_file(const ReportPlot& plot);

}  // namespace penstock::measure
