// Tables of a report as HTML, Markdown and text.
#include <fmt/format.h>

#include <algorithm>

#include "measure/report_tables.h"
#include "measure/report_text.h"

namespace penstock::measure {
namespace {

// Cells by column: those past the last column are joined with it.
template <typename Render>
std::vector<std::string> columns_of(const ReportTable& table, const std::vector<TableCell>& row,
                                    const Render& render) {
  std::vector<std::string> out(table.columns.size());
  for (size_t i = 0; i < row.size(); ++i) {
    std::string& cell = out[std::min(i, out.size() - 1)];
    if (!cell.empty()) cell += ' ';
    cell += render(row[i]);
  }
  return out;
}

bool defines(const TableCell& cell) {
  return cell.anchor.starts_with('!');
}

std::string html_cell(const TableCell& cell) {
  std::string inner = html_text(cell.text);
  if (cell.code && !inner.empty()) inner = "<code>" + inner + "</code>";
  if (!cell.detail.empty()) inner += " <small>" + html_text(cell.detail) + "</small>";
  if (!cell.anchor.empty() && !defines(cell)) {
    inner = fmt::format("<a href=\"#{}\">{}</a>", cell.anchor, inner);
  }
  if (!cell.mark.empty()) inner += " <b class=\"mark\">" + html_text(cell.mark) + "</b>";
  return inner;
}

// Figures are rows of the table of formulas: in Markdown a link leads to the group or file.
std::string markdown_target(const TableCell& cell) {
  return cell.anchor.empty() || defines(cell) ? std::string()
                                              : cell.anchor.substr(0, cell.anchor.find('-'));
}

// `row_target`: where the row's first cell leads; the others need not lead there again.
std::string markdown_cell(const TableCell& cell, const std::string& row_target) {
  std::string inner = markdown_text(cell.text);
  // No formula holds a backtick or a bar; what does is no code span.
  if (cell.code && !cell.text.empty() && cell.text.find_first_of("`|\n") == std::string::npos) {
    inner = "`" + cell.text + "`";
  }
  if (!cell.detail.empty()) inner += " (" + markdown_text(cell.detail) + ")";
  const std::string target = markdown_target(cell);
  if (defines(cell)) {
    inner = fmt::format("<a id=\"{}\"></a>{}", cell.anchor.substr(1), inner);
  } else if (!target.empty() && target != row_target) {
    inner = fmt::format("[{}](#{})", inner, target);
  }
  if (!cell.mark.empty()) inner += " **" + markdown_text(cell.mark) + "**";
  return inner;
}

std::string plain_cell(const TableCell& cell) {
  std::string inner = cell.text;
  if (!cell.detail.empty()) inner += " (" + cell.detail + ")";
  if (!cell.mark.empty()) inner += " [" + cell.mark + "]";
  for (char& c : inner) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = ' ';
  }
  return inner;
}

}  // namespace

std::string html_table(const ReportTable& table) {
  if (table.empty()) return {};
  std::string out = "<div class=\"scroll\"><table>\n";
  if (!table.caption.empty()) out += "<caption>" + html_text(table.caption) + "</caption>\n";
  out += "<thead><tr>";
  for (size_t i = 0; i < table.columns.size(); ++i) {
    const auto is_number = [&](const auto& row) { return i < row.size() && row[i].number; };
    const bool number = std::any_of(table.rows.begin(), table.rows.end(), is_number) &&
                        table.rows[0].size() <= table.columns.size();
    out += fmt::format("<th{}>{}</th>", number ? " class=\"n\"" : "", html_text(table.columns[i]));
  }
  out += "</tr></thead>\n<tbody>\n";
  for (const std::vector<TableCell>& row : table.rows) {
    const std::vector<std::string> cells = columns_of(table, row, html_cell);
    const auto id = std::find_if(row.begin(), row.end(), defines);
    out += id == row.end() ? "<tr>" : fmt::format("<tr id=\"{}\">", id->anchor.substr(1));
    for (size_t i = 0; i < cells.size(); ++i) {
      const bool number = i < row.size() && row[i].number && row.size() <= cells.size();
      out += fmt::format("<td{}>{}</td>", number ? " class=\"n\"" : "", cells[i]);
    }
    out += "</tr>\n";
  }
  return out + "</tbody></table></div>\n";
}

std::string markdown_table(const ReportTable& table) {
  if (table.empty()) return {};
  std::string out;
  if (!table.caption.empty()) out += table.caption + ":\n\n";
  const auto line = [&](const std::vector<std::string>& cells) {
    out += '|';
    for (const std::string& cell : cells) out += " " + cell + " |";
    out += '\n';
  };
  std::vector<std::string> head;
  for (const std::string& column : table.columns) head.push_back(markdown_text(column));
  line(head);
  out += '|';
  for (size_t i = 0; i < head.size(); ++i) out += "---|";
  out += '\n';
  for (const std::vector<TableCell>& row : table.rows) {
    const std::string target = markdown_target(row.front());
    line(columns_of(table, row, [&](const TableCell& cell) {
      return markdown_cell(cell, &cell == &row.front() ? std::string() : target);
    }));
  }
  return out + "\n";
}

std::string terminal_table(const ReportTable& table) {
  if (table.empty()) return {};
  std::vector<std::vector<std::string>> lines = {table.columns};
  for (const auto& row : table.rows) lines.push_back(columns_of(table, row, plain_cell));
  std::vector<size_t> widths(table.columns.size());
  for (const auto& line : lines) {
    for (size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], characters(line[i]));
  }
  std::string out;
  if (!table.caption.empty()) out += "  " + table.caption + "\n";
  for (const auto& line : lines) {
    std::string text = "  ";
    for (size_t i = 0; i < line.size(); ++i) {
      text += line[i] + std::string(widths[i] - characters(line[i]) + 2, ' ');
    }
    text.resize(text.find_last_not_of(' ') + 1);
    out += text + "\n";
  }
  return out;
}

}  // namespace penstock::measure
