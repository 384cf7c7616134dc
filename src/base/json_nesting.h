// How deep a JSON text is nested, before anything parses it: printing and comparing what was parsed
// recurse. The parser's own callback could count too, but it makes the parser go through an array
// once for every object in it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace penstock {

// The most brackets that are open at once; of a text that is no JSON, no less than up to the fault.
inline size_t json_nesting(std::string_view text) noexcept {
  size_t open = 0, most = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\') ++i;
      quoted = c != '"';
    } else if (c == '"') {
      quoted = true;
    } else if (c == '[' || c == '{') {
      most = std::max(most, ++open);
    } else if ((c == ']' || c == '}') && open > 0) {
      --open;
    }
  }
  return most;
}

}  // namespace penstock
