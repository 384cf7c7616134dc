#include "measure/markdown_figures.h"

#include <algorithm>

namespace penstock::measure {
namespace {

bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

size_t indent_of(std::string_view line) {
  size_t columns = 0;
  for (const char c : line) {
    if (c == ' ') {
      ++columns;
    } else if (c == '\t') {
      columns += 4 - columns % 4;
    } else {
      break;
    }
  }
  return columns;
}

std::string_view unindented(std::string_view line) {
  const size_t at = line.find_first_not_of(" \t");
  return at == std::string_view::npos ? std::string_view() : line.substr(at);
}

// Columns up to the content of a list item that begins on this line; 0 if none does.
size_t list_item(std::string_view line) {
  const std::string_view rest = unindented(line);
  size_t marker = 0;
  if (!rest.empty() && (rest[0] == '-' || rest[0] == '*' || rest[0] == '+')) {
    marker = 1;
  } else {
    while (marker < rest.size() && marker < 9 && rest[marker] >= '0' && rest[marker] <= '9') {
      ++marker;
    }
    if (marker == 0 || marker >= rest.size() || (rest[marker] != '.' && rest[marker] != ')')) {
      return 0;
    }
    ++marker;
  }
  if (marker >= rest.size() || rest[marker] != ' ') return 0;
  return indent_of(line) + marker + 1;
}

// ``` or ~~~, at least three; 0 if the line opens or closes no fence.
size_t fence_of(std::string_view line, char* with) {
  const std::string_view rest = unindented(line);
  if (rest.empty() || (rest[0] != '`' && rest[0] != '~')) return 0;
  const size_t n = std::min(rest.find_first_not_of(rest[0]), rest.size());
  if (n < 3) return 0;
  *with = rest[0];
  return n;
}

// Goes through the lines once and blanks those that are code; what is kept as it is, a block of
// results, is noted, so that no backtick in it counts.
class Blocks {
 public:
  Blocks(std::string* out, std::vector<bool>* verbatim) : out_(*out), verbatim_(*verbatim) {}

  void run() {
    for (size_t begin = 0; begin < out_.size();) {
      const size_t end = std::min(out_.find('\n', begin), out_.size());
      line(begin, end);
      begin = end + 1;
    }
  }

 private:
  void blank(size_t begin, size_t end) {
    std::fill(out_.begin() + static_cast<ptrdiff_t>(begin),
              out_.begin() + static_cast<ptrdiff_t>(end), ' ');
  }

  void line(size_t begin, size_t end) {
    const std::string_view text(out_.data() + begin, end - begin);
    char with = 0;
    const size_t fence = fence_of(text, &with);
    if (fence_ > 0) {
      const bool closes =
          fence >= fence_ && with == with_ && is_blank(unindented(text).substr(fence));
      if (closes) fence_ = 0;
      if (closes || !results_) {
        blank(begin, end);
      } else {
        std::fill(verbatim_.begin() + static_cast<ptrdiff_t>(begin),
                  verbatim_.begin() + static_cast<ptrdiff_t>(end), true);
      }
      return;
    }
    if (fence > 0) {
      const std::string_view info = unindented(unindented(text).substr(fence));
      if (with == '`' && info.find('`') != std::string_view::npos) return;  // code within a line
      fence_ = fence;
      with_ = with;
      results_ = info.starts_with("results") && is_blank(info.substr(7));
      blank(begin, end);
      after_blank_ = false;
      return;
    }
    if (is_blank(text)) {
      after_blank_ = true;
      return;
    }
    const size_t indent = indent_of(text);
    const size_t item = list_item(text);
    // Indented code needs a blank line before it (or code), and to be deeper than the list it is
    // in.
    if ((after_blank_ || in_code_) && indent >= list_ + 4) {
      in_code_ = true;
      blank(begin, end);
    } else {
      in_code_ = false;
      if (item > 0) {
        list_ = item;
      } else if (indent < list_ && after_blank_) {
        list_ = 0;
      }
    }
    after_blank_ = false;
  }

  std::string& out_;
  std::vector<bool>& verbatim_;
  size_t fence_ = 0, list_ = 0;
  char with_ = 0;
  bool results_ = false, in_code_ = false, after_blank_ = true;
};

// Within the text: code between backticks, comments, tags, targets of links, addresses.
class Inlines {
 public:
  Inlines(std::string* out, const std::vector<bool>& verbatim) : out_(*out), verbatim_(verbatim) {}

  void run() {
    const std::string text = out_;  // what is looked at stays while out_ is blanked
    for (size_t at = 0; at < text.size();) {
      if (verbatim_[at]) {
        ++at;
        continue;
      }
      const size_t end = span(text, at);
      if (end > at) {
        blank(at, end);
        at = end;
      } else {
        ++at;
      }
    }
  }

 private:
  // Line ends stay, for tables and paragraphs.
  void blank(size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      if (out_[i] != '\n') out_[i] = ' ';
    }
  }

  // Where the span that is no prose and begins at `at` ends; `at` if none begins there.
  size_t span(const std::string& text, size_t at) {
    const std::string_view rest = std::string_view(text).substr(at);
    if (rest[0] == '\\' && rest.size() > 1 && rest[1] == '`') return at + 2;
    if (rest[0] == '`') return code(text, at);
    if (rest.starts_with("<!--")) {
      if (no_comment_end_) return at;
      const size_t end = text.find("-->", at);
      no_comment_end_ = end == std::string::npos;
      return no_comment_end_ ? text.size() : end + 3;
    }
    if (rest[0] == '<' && rest.size() > 1 && (is_letter(rest[1]) || rest[1] == '/')) {
      const size_t end = rest.substr(0, kLongestTag).find_first_of("<>", 1);
      return end != std::string_view::npos && rest[end] == '>' ? at + end + 1 : at;
    }
    if (rest.starts_with("](")) {
      const size_t end = rest.substr(0, kLongestLink).find_first_of(")\n");
      return end != std::string_view::npos && rest[end] == ')' ? at + end + 1 : at;
    }
    if (rest.starts_with("]: ")) {  // the definition of a reference
      return at + std::min(rest.find('\n'), rest.size());
    }
    if (rest.starts_with("http://") || rest.starts_with("https://")) {
      return at + std::min(rest.find_first_of(" \t\n)>|"), rest.size());
    }
    return at;
  }

  // A run of as many backticks closes it, before the paragraph ends. Of a run that nothing closes
  // the length is remembered until that paragraph is over, so that no text takes quadratic time.
  size_t code(const std::string& text, size_t at) {
    const size_t run = std::min(text.find_first_not_of('`', at), text.size()) - at;
    if (run > kLongestTag) return at + run;
    if (at >= paragraph_) {
      paragraph_ = std::min(text.find("\n\n", at), text.size());
      unclosed_.clear();
    }
    if (run < unclosed_.size() && unclosed_[run]) return at + run;
    for (size_t next = at + run; next < paragraph_;) {
      next = std::min(text.find('`', next), paragraph_);
      if (next == paragraph_) break;
      const size_t other = std::min(text.find_first_not_of('`', next), text.size()) - next;
      if (other == run) return next + other;
      next += other;
    }
    if (run >= unclosed_.size()) unclosed_.resize(run + 1);
    unclosed_[run] = true;
    return at + run;
  }

  static constexpr size_t kLongestTag = 4000, kLongestLink = 500;
  std::string& out_;
  const std::vector<bool>& verbatim_;
  size_t paragraph_ = 0;        // end of the one that was looked at last
  std::vector<bool> unclosed_;  // by the length of a run: none of them closes in it
  bool no_comment_end_ = false;
};

struct Cell {
  size_t begin, end;
};

std::vector<Cell> cells_of(std::string_view text, size_t begin, size_t end) {
  std::vector<Cell> out;
  size_t at = begin;
  while (at < end && (text[at] == ' ' || text[at] == '\t' || text[at] == '>')) ++at;
  if (at < end && text[at] == '|') ++at;
  size_t from = at;
  for (; at < end; ++at) {
    if (text[at] != '|' || text[at - 1] == '\\') continue;
    out.push_back({from, at});
    from = at + 1;
  }
  if (!is_blank(text.substr(from, end - from))) out.push_back({from, end});
  return out;
}

bool is_delimiter_row(std::string_view line) {
  return line.find('-') != std::string_view::npos && line.find('|') != std::string_view::npos &&
         line.find_first_not_of(" \t|:->\r") == std::string_view::npos;
}

class Places {
 public:
  explicit Places(std::string_view text) : text_(text) {}
  // Called with places in rising order.
  void of(size_t at, DocumentFigure* figure) {
    for (; now_ < at && now_ < text_.size(); ++now_) {
      if (text_[now_] == '\n') {
        ++line_;
        column_ = 1;
      } else if ((static_cast<unsigned char>(text_[now_]) & 0xc0) != 0x80) {
        ++column_;
      }
    }
    figure->line = line_;
    figure->column = column_;
  }

 private:
  std::string_view text_;
  size_t now_ = 0, line_ = 1, column_ = 1;
};

class Scanner {
 public:
  Scanner(std::string_view text, std::string prose) : text_(text), prose_(std::move(prose)) {}

  std::vector<DocumentFigure> run() {
    std::string_view all = prose_;
    for (size_t begin = 0; begin < all.size();) {
      const size_t end = line_end(begin);
      const size_t next = end + 1;
      if (next < all.size() && all.substr(begin, end - begin).find('|') != std::string_view::npos &&
          is_delimiter_row(all.substr(next, line_end(next) - next))) {
        flush(begin);
        begin = table(begin);
        paragraph_ = begin;
      } else {
        begin = next;
      }
    }
    flush(all.size());
    std::sort(out_.begin(), out_.end(),
              [](const auto& a, const auto& b) { return a.begin < b.begin; });
    Places places(text_);
    for (DocumentFigure& figure : out_) places.of(figure.begin, &figure);
    return std::move(out_);
  }

 private:
  size_t line_end(size_t begin) const { return std::min(prose_.find('\n', begin), prose_.size()); }

  void flush(size_t end) {
    if (end > paragraph_) add(paragraph_, end, std::nullopt);
    paragraph_ = end;
  }

  // Numbers between `begin` and `end`; one without a unit has `other`, if that is given.
  void add(size_t begin, size_t end, const std::optional<Unit>& other) {
    const std::string_view part = std::string_view(prose_).substr(begin, end - begin);
    for (const NumberInText& number : numbers_in(part)) {
      const size_t before = part.substr(0, number.begin).find_last_not_of(" \t\n");
      const bool named = before != std::string_view::npos && part[before] == '=';
      if (!number.unit && (!other || named)) continue;  // "n = 3" has no unit
      DocumentFigure figure;
      figure.begin = begin + number.begin;
      figure.end = begin + number.unit_end;
      figure.number = number.number;
      figure.unit = number.unit ? *number.unit : *other;
      figure.text = number.number.text + " " + figure.unit.name;
      out_.push_back(std::move(figure));
    }
  }

  // The table whose heading begins at `begin`; returns where it ends.
  size_t table(size_t begin) {
    std::vector<std::optional<Unit>> units;
    const size_t heading_end = line_end(begin);
    for (const Cell& cell : cells_of(prose_, begin, heading_end)) {
      units.push_back(unit_of_heading(
          without_numbers(std::string_view(prose_).substr(cell.begin, cell.end - cell.begin))));
      add(cell.begin, cell.end, std::nullopt);
    }
    size_t at = line_end(heading_end + 1) + 1;
    while (at < prose_.size()) {
      const size_t end = line_end(at);
      const std::string_view row = std::string_view(prose_).substr(at, end - at);
      if (row.find('|') == std::string_view::npos) break;
      const std::vector<Cell> cells = cells_of(prose_, at, end);
      std::optional<Unit> of_row, corner;  // "hits, %" above the names of rows is of all cells
      for (size_t i = 0; i < cells.size(); ++i) {
        const std::string_view cell =
            std::string_view(prose_).substr(cells[i].begin, cells[i].end - cells[i].begin);
        if (i == 0) {
          of_row = unit_of_heading(without_numbers(cell));
          // "8 layers" names the row; a number alone is one of the column's.
          const bool named = std::any_of(cell.begin(), cell.end(), is_letter);
          corner = units.empty() ? std::nullopt : units[0];
          add(cells[i].begin, cells[i].end, named ? std::nullopt : corner);
          if (!named) corner = std::nullopt;
        } else {
          const bool headed = i < units.size() && units[i].has_value();
          add(cells[i].begin, cells[i].end, headed ? units[i] : of_row ? of_row : corner);
        }
      }
      at = end + 1;
    }
    return std::min(at, prose_.size());
  }

  // "KLD [95 %]" in a heading and "3.56 GB by direct reads" in a row's first cell are numbers of
  // their own, and give no unit.
  static std::string without_numbers(std::string_view cell) {
    std::string out(cell);
    for (const NumberInText& number : numbers_in(cell)) {
      std::fill(out.begin() + static_cast<ptrdiff_t>(number.begin),
                out.begin() + static_cast<ptrdiff_t>(number.unit_end), ' ');
    }
    return out;
  }

  std::string_view text_;
  std::string prose_;
  size_t paragraph_ = 0;
  std::vector<DocumentFigure> out_;
};

}  // namespace

std::string markdown_prose(std::string_view text) {
  std::string out(text);
  std::vector<bool> verbatim(text.size());
  Blocks(&out, &verbatim).run();
  Inlines(&out, verbatim).run();
  return out;
}

std::vector<DocumentFigure> markdown_figures(std::string_view text) {
  return Scanner(text, markdown_prose(text)).run();
}

QuoteFinder::QuoteFinder(std::string_view text) {
  const auto space = [](char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; };
  for (size_t at = 0; at < text.size(); ++at) {
    if (space(text[at])) {
      if (!text_.empty() && text_.back() == ' ') continue;
      text_ += ' ';
    } else {
      text_ += text[at];
    }
    place_.push_back(at);
  }
}

std::vector<std::pair<size_t, size_t>> QuoteFinder::find(std::string_view quote) const {
  std::vector<std::pair<size_t, size_t>> out;
  const QuoteFinder normal(quote);
  std::string_view wanted = normal.text_;
  while (wanted.starts_with(' ')) wanted.remove_prefix(1);
  while (wanted.ends_with(' ')) wanted.remove_suffix(1);
  if (wanted.empty()) return out;
  // "8 %" is not found in "98 %": a quote begins and ends where words and numbers do.
  const auto word = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  };
  for (size_t at = text_.find(wanted); at != std::string::npos; at = text_.find(wanted, at + 1)) {
    const size_t end = at + wanted.size();
    const bool begins =
        at == 0 || !word(wanted[0]) ||
        !(word(text_[at - 1]) || (text_[at - 1] == '.' && at > 1 && word(text_[at - 2])));
    const bool ends = end >= text_.size() || !word(wanted.back()) || !word(text_[end]);
    if (!begins || !ends) continue;
    out.emplace_back(place_[at], place_[end - 1] + 1);
  }
  return out;
}

}  // namespace penstock::measure
