// Numbers in Markdown documents that look like measurements: with a unit of performance or memory
// beside them, or in the heading of their table's column or row.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "measure/quantities.h"

namespace penstock::measure {

struct DocumentFigure {
  size_t begin = 0, end = 0;    // bytes of the document
  size_t line = 0, column = 0;  // from 1; columns count characters
  Written number;
  Unit unit;
  std::string text;  // "13.80 tok/s"
};

// The text with everything blanked that is no prose: code between backticks, fenced and indented
// code (but fenced blocks marked ```results are kept), HTML comments and tags, targets of links.
// Of the same length, so that places stay what they are.
std::string markdown_prose(std::string_view text);

// In order of their places. Any bytes are taken: what is no UTF-8 is prose like any other.
std::vector<DocumentFigure> markdown_figures(std::string_view text);

// Where `quote` stands in `text`, each run of white space taken as one space (documents are
// wrapped): begin and end in bytes, in order, not overlapping. Nothing for a quote of white space.
class QuoteFinder {
 public:
  explicit QuoteFinder(std::string_view text);
  std::vector<std::pair<size_t, size_t>> find(std::string_view quote) const;

 private:
  std::string text_;           // with single spaces
  std::vector<size_t> place_;  // of each of its bytes
};

}  // namespace penstock::measure
