#include "text/reasoning.h"

#include <algorithm>

namespace penstock::text {
namespace {

constexpr std::string_view kOpen = "<think>";
constexpr std::string_view kClose = "</think>";

// Length of the longest end of `text` that begins `tag`.
size_t partial_tag(std::string_view text, std::string_view tag) {
  for (size_t n = std::min(text.size(), tag.size() - 1); n > 0; --n) {
    if (text.ends_with(tag.substr(0, n))) return n;
  }
  return 0;
}

}  // namespace

void ReasoningSplitter::emit(std::vector<Part>& parts, std::string_view text) {
  if (after_tag_) {
    const size_t first = text.find_first_not_of(" \t\r\n");
    if (first == std::string_view::npos) return;
    text.remove_prefix(first);
    after_tag_ = false;
  }
  if (text.empty()) return;
  if (!parts.empty() && parts.back().reasoning == inside_) {
    parts.back().text += text;
  } else {
    parts.push_back({std::string(text), inside_});
  }
}

std::vector<ReasoningSplitter::Part> ReasoningSplitter::push(std::string_view text) {
  std::vector<Part> parts;
  held_ += text;
  std::string_view rest = held_;
  while (true) {
    const std::string_view tag = inside_ ? kClose : kOpen;
    const size_t found = rest.find(tag);
    if (found == std::string_view::npos) {
      const size_t keep = partial_tag(rest, tag);
      emit(parts, rest.substr(0, rest.size() - keep));
      held_ = std::string(rest.substr(rest.size() - keep));
      return parts;
    }
    emit(parts, rest.substr(0, found));
    rest.remove_prefix(found + tag.size());
    inside_ = !inside_;
    after_tag_ = true;
  }
}

std::vector<ReasoningSplitter::Part> ReasoningSplitter::flush() {
  std::vector<Part> parts;
  emit(parts, held_);
  held_.clear();
  return parts;
}

bool ends_in_reasoning(std::string_view prompt) {
  const size_t open = prompt.rfind(kOpen);
  if (open == std::string_view::npos) return false;
  return prompt.find(kClose, open) == std::string_view::npos;
}

}  // namespace penstock::text
