#include "engine/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace penstock::engine {

StopMatcher::StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {
  std::erase_if(stops_, [](const std::string& stop) { return stop.empty(); });
}

std::string StopMatcher::push(std::string_view text) {
  if (stopped()) return {};
  held_ += text;

  // The stop string that begins first wins; of two that begin together, the longer one.
  size_t at = std::string::npos;
  for (const std::string& stop : stops_) {
    const size_t found = held_.find(stop);
    if (found < at ||
        (found == at && found != std::string::npos && stop.size() > matched_.size())) {
      at = found;
      matched_ = stop;
    }
  }
  if (at != std::string::npos) {
    std::string shown = held_.substr(0, at);
    held_.clear();
    return shown;
  }

  // Hold back the longest tail that is a proper beginning of some stop string.
  size_t keep = 0;
  for (const std::string& stop : stops_) {
    for (size_t n = std::min(stop.size() - 1, held_.size()); n > keep; --n) {
      if (held_.compare(held_.size() - n, n, stop, 0, n) == 0) {
        keep = n;
        break;
      }
    }
  }
  std::string shown = held_.substr(0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return shown;
}

std::string StopMatcher::finish() {
  return std::exchange(held_, {});
}

}  // namespace penstock::engine
