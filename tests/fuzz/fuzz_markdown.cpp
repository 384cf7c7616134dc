// Any bytes as a document in which numbers are looked for. Checked: prose keeps its places, figures
// lie in order within the text and say what stands there, and so do quotes.
#include "measure/markdown_figures.h"
#include "parts.h"

using namespace penstock;
using namespace penstock::measure;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  fuzz::require(markdown_prose(text).size() == text.size());
  const QuoteFinder finder(text);
  size_t last = 0;
  for (const DocumentFigure& figure : markdown_figures(text)) {
    fuzz::require(last <= figure.begin && figure.begin < figure.end && figure.end <= text.size());
    last = figure.begin;
    fuzz::require(text.substr(figure.begin).starts_with(figure.number.text));
    for (const auto& [begin, end] : finder.find(figure.text)) {
      fuzz::require(begin < end && end <= text.size());
    }
  }
  for (const auto& [begin, end] : finder.find(text.substr(0, text.size() / 2))) {
    fuzz::require(begin <= end && end <= text.size());
  }
  return 0;
}
