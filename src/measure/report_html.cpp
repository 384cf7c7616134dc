// A report as one HTML file: no scripts, nothing from elsewhere, light and dark, readable on a
// phone.
#include <fmt/format.h>

#include "measure/formula.h"
#include "measure/report.h"
#include "measure/report_tables.h"
#include "measure/report_text.h"

namespace penstock::measure {
namespace {

constexpr const char* kPage =
    R"(:root{color-scheme:light dark;--bg:#fff;--fg:#1b1f24;--soft:#57606a;--rule:#d0d7de;--link:#0b5cc0;--warn:#a40e26;--card:#f6f8fa}
@media (prefers-color-scheme:dark){:root{--bg:#0d1117;--fg:#e6edf3;--soft:#9aa7b4;--rule:#30363d;--link:#58a6ff;--warn:#ff8b81;--card:#161b22}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--fg);font:16px/1.5 system-ui,sans-serif}
main{max-width:72rem;margin:0 auto;padding:1rem}
h1{font-size:1.6rem;line-height:1.2}h2{font-size:1.3rem;margin-top:2.5rem;border-top:1px solid var(--rule);padding-top:1rem}
h3{font-size:1.05rem;margin-top:2rem;overflow-wrap:anywhere}h4{font-size:.95rem;overflow-wrap:anywhere;margin-bottom:.3rem}
a{color:var(--link);text-decoration:none}a:hover,a:focus{text-decoration:underline}
p,li{overflow-wrap:anywhere;max-width:48rem}.soft{color:var(--soft)}.warn,.mark{color:var(--warn)}.mark{font-size:.85em;white-space:nowrap}
.scroll{overflow-x:auto;max-width:100%;margin:1rem 0;border:1px solid var(--rule);border-radius:6px}
table{border-collapse:collapse;width:100%;font-size:.9rem}
caption{text-align:left;font-weight:600;padding:.4rem .6rem;position:sticky;left:0}
th,td{padding:.35rem .6rem;text-align:left;vertical-align:top;border-top:1px solid var(--rule)}
th{background:var(--card);font-weight:600}td.n,th.n{text-align:right}td.n{font-variant-numeric:tabular-nums;white-space:nowrap}
td small{display:block;color:var(--soft);white-space:nowrap}td:first-child{min-width:9rem}
code{font:.85em ui-monospace,monospace;overflow-wrap:anywhere}tr:target{background:var(--card);outline:2px solid var(--link)}
.plots{display:grid;gap:1.5rem;grid-template-columns:repeat(auto-fit,minmax(min(100%,26rem),1fr));margin:1rem 0}
figure{margin:0}
)";

// Notes are Markdown; here their paragraphs and lists are kept, and the rest is shown as written.
std::string notes_html(const std::string& notes) {
  std::string out;
  size_t begin = 0;
  bool list = false;
  std::string paragraph;
  const auto close = [&] {
    if (!paragraph.empty()) out += "<p>" + html_text(paragraph) + "</p>\n";
    paragraph.clear();
    if (list) out += "</ul>\n";
    list = false;
  };
  while (begin <= notes.size()) {
    const size_t end = std::min(notes.find('\n', begin), notes.size());
    std::string line = notes.substr(begin, end - begin);
    begin = end + 1;
    const size_t word = line.find_first_not_of(" \t\r");
    if (word == std::string::npos) {
      close();
      continue;
    }
    line = line.substr(word);
    if (line.starts_with("- ") || line.starts_with("* ")) {
      if (!list) {
        close();
        out += "<ul>\n";
        list = true;
      }
      out += "<li>" + html_text(line.substr(2)) + "</li>\n";
    } else if (list) {
      close();
      paragraph = line;
    } else {
      paragraph += (paragraph.empty() ? "" : " ") + line;
    }
  }
  close();
  return out;
}

std::string remarks_html(const std::vector<std::string>& remarks, bool is_void) {
  std::string out;
  for (const std::string& remark : remarks) {
    out += fmt::format("<li{}>{}</li>\n", is_void ? " class=\"warn\"" : "", html_text(remark));
  }
  return out.empty() ? out : "<ul>\n" + out + "</ul>\n";
}

std::string plots_html(const std::vector<ReportPlot>& plots) {
  std::string out;
  for (const ReportPlot& plot : plots) out += "<figure>" + plot.svg + "</figure>\n";
  return out.empty() ? out : "<div class=\"plots\">\n" + out + "</div>\n";
}

std::string section_html(const ReportSection& section, size_t number, const ReportIndex& index) {
  std::string out =
      fmt::format("<section id=\"s{}\">\n<h2>{}{}</h2>\n", number, html_text(section.title),
                  section.is_void ? " <b class=\"mark\">VOID</b>" : "");
  if (section.campaign != nullptr) {
    out += fmt::format("<p class=\"soft\">campaign <a href=\"#{}\">{}</a></p>\n",
                       index.source(*section.campaign), short_id(*section.campaign));
  }
  out += notes_html(section.description) + notes_html(section.notes);
  out += remarks_html(section.remarks, section.is_void);
  for (const ReportComparison& comparison : section.comparisons) {
    out += "<h3>" + html_text(comparison_title(comparison)) + "</h3>\n";
    out += html_table(speed_table(comparison, index));
    out += html_table(failure_table(comparison, index));
    out += remarks_html(comparison_remarks(comparison), false);
    out += plots_html(report_plots(section, comparison));
    out += html_table(roofline_table(section, comparison, index));
    out += html_table(quality_table(comparison, index));
    out += html_table(difference_table(comparison, index));
    out += html_table(value_table(comparison, index));
  }
  return out + plots_html(quality_plots(section)) + "</section>\n";
}

// Every figure of every record: the end of all links.
std::string figures_html(const Report& report, const ReportIndex& index) {
  std::map<std::string, ReportTable> tables;
  for (const FigureRow& row : figure_rows(report)) {
    const std::string source = index.source(*row.run->record);
    ReportTable& table = tables[source];
    const std::string anchor = "!" + source + "-" + row.figure->name;
    const bool known = std::any_of(table.rows.begin(), table.rows.end(),
                                   [&](const auto& other) { return other[0].anchor == anchor; });
    if (known) continue;  // a record of two campaigns
    table.columns = {"figure", "value", "unit", "formula"};
    table.rows.push_back(
        {{.text = row.figure->title + " (" + row.figure->phase + ")", .anchor = anchor},
         {.text = fmt::format("{}", row.value), .number = true},
         {.text = row.figure->unit},
         {.text = row.figure->formula.text(), .code = true}});
  }
  std::string out;
  for (const Archived* record : report.records) {
    const auto found = tables.find(index.source(*record));
    if (found == tables.end()) continue;
    out += fmt::format("<h4>record {}, file {}</h4>\n", record->id,
                       html_text(shown_name(record->path)));
    out += html_table(found->second);
  }
  return out;
}

}  // namespace

std::string report_html(const Report& report) {
  const ReportIndex index(report);
  std::string out =
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta "
      "name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>Penstock "
      "report</title>\n<style>\n";
  out += kPage;
  out += plot_style();
  out += "</style>\n</head>\n<body>\n<main>\n<h1>Penstock report</h1>\n";
  out += fmt::format(
      "<p>{} records. Every number leads to the record it comes from: medians to the values of the "
      "runs, those to the record and the formula over its members. Below a median stand the least "
      "and the most.</p>\n",
      report.records.size());
  for (const std::string& machine : report.machines) {
    out += "<p class=\"soft\">" + html_text(machine) + "</p>\n";
  }
  out += "<nav><ul>\n";
  for (size_t i = 0; i < report.sections.size(); ++i) {
    out += fmt::format("<li><a href=\"#s{}\">{}</a></li>\n", i + 1,
                       html_text(report.sections[i].title));
  }
  out += "<li><a href=\"#sources\">Sources</a></li>\n</ul></nav>\n";
  for (size_t i = 0; i < report.sections.size(); ++i) {
    out += section_html(report.sections[i], i + 1, index);
  }
  out += html_table(untimed_table(report, index));
  out += "<section id=\"sources\">\n<h2>Sources</h2>\n";
  out += html_table(campaign_table(report, index));
  out += html_table(group_table(report, index));
  out += html_table(record_table(report, index));
  out += html_table(quality_source_table(report, index));
  if (!report.unused.empty()) {
    std::string list;
    for (const std::string& name : report.unused) list += (list.empty() ? "" : ", ") + name;
    out += "<p class=\"soft\">Not used, being neither records nor quality: " + html_text(list) +
           "</p>\n";
  }
  out += figures_html(report, index);
  return out + "</section>\n</main>\n</body>\n</html>\n";
}

}  // namespace penstock::measure
