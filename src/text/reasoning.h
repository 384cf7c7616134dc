// Telling the reasoning in <think>…</think> from the answer, while it streams.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace penstock::text {

class ReasoningSplitter {
 public:
  struct Part {
    std::string text;
    bool reasoning;
  };

  // `inside`: the generation starts within the reasoning, as after a prompt that ends in
  // "<think>\n".
  explicit ReasoningSplitter(bool inside = false) : inside_(inside) {}

  // What is decided so far: the tags themselves are dropped, and text that may turn out to be the
  // start of a tag is held back. White space right after a tag is dropped too.
  std::vector<Part> push(std::string_view text);
  std::vector<Part> flush();

  bool inside() const noexcept { return inside_; }

 private:
  void emit(std::vector<Part>& parts, std::string_view text);

  std::string held_;
  bool inside_;
  bool after_tag_ = true;  // nothing but white space since the last change
};

// Does a prompt end inside an open <think>?
bool ends_in_reasoning(std::string_view prompt);

}  // namespace penstock::text
