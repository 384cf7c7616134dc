#include "text/added_tokens.h"

#include <algorithm>

namespace penstock::text {

void AddedTokens::add(std::string_view text, int32_t id, bool control) {
  if (text.empty()) return;
  first_[static_cast<unsigned char>(text[0])] = true;
  uint32_t at = 0;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    auto& children = nodes_[at].children;
    const auto found = std::find_if(children.begin(), children.end(),
                                    [&](const auto& child) { return child.first == byte; });
    if (found != children.end()) {
      at = found->second;
    } else {
      const auto fresh = static_cast<uint32_t>(nodes_.size());
      children.emplace_back(byte, fresh);
      nodes_.emplace_back();  // invalidates `children`
      at = fresh;
    }
  }
  if (nodes_[at].id < 0) {
    nodes_[at].id = id;
    nodes_[at].control = control;
  }
}

AddedTokens::Match AddedTokens::longest(std::string_view text, size_t at) const noexcept {
  Match best;
  uint32_t node = 0;
  for (size_t i = at; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto& children = nodes_[node].children;
    const auto found = std::find_if(children.begin(), children.end(),
                                    [&](const auto& child) { return child.first == byte; });
    if (found == children.end()) break;
    node = found->second;
    if (nodes_[node].id >= 0) best = {nodes_[node].id, i + 1 - at, nodes_[node].control};
  }
  return best;
}

AddedTokens::Match AddedTokens::longest_control(std::string_view text, size_t at,
                                                size_t limit) const noexcept {
  Match best;
  uint32_t node = 0;
  for (size_t i = at; i < limit; ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto& children = nodes_[node].children;
    const auto found = std::find_if(children.begin(), children.end(),
                                    [&](const auto& child) { return child.first == byte; });
    if (found == children.end()) break;
    node = found->second;
    if (nodes_[node].id >= 0 && nodes_[node].control) best = {nodes_[node].id, i + 1 - at, true};
  }
  return best;
}

}  // namespace penstock::text
