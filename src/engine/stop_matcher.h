// Stop strings in a stream of text: what might still become a stop string is held back, a stop
// string itself is never shown.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace penstock::engine {

class StopMatcher {
 public:
  explicit StopMatcher(std::vector<std::string> stops);  // empty strings are ignored

  // Adds text; returns what can be shown now. Once a stop string is complete, stopped() is true,
  // the text before it has been returned, and nothing more will be.
  std::string push(std::string_view text);
  // The end of the stream: what was held back is text after all.
  std::string finish();

  bool stopped() const noexcept { return !matched_.empty(); }
  const std::string& matched() const noexcept { return matched_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  std::string matched_;
};

}  // namespace penstock::engine
