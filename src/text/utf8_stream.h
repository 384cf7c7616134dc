// Text out of a stream of tokens, cut only between characters.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace penstock::text {

class Tokenizer;

// Bytes in, whole UTF-8 characters out. What can no longer become a valid sequence comes out as
// U+FFFD, one for each maximal part, as browsers and Python's errors="replace" do.
class Utf8Stream {
 public:
  std::string push(std::string_view bytes);
  // The end: an unfinished character becomes U+FFFD.
  std::string flush();
  bool holding() const noexcept { return !held_.empty(); }  // an unfinished character

 private:
  std::string held_;  // at most three bytes of an unfinished character
};

class TokenStream {
 public:
  // With `render_control` control tokens come out by name; otherwise they give nothing.
  explicit TokenStream(const Tokenizer& tokenizer, bool render_control = false)
      : tokenizer_(tokenizer), render_control_(render_control) {}

  std::string push(int32_t id);
  std::string flush() { return utf8_.flush(); }
  bool holding() const noexcept { return utf8_.holding(); }

 private:
  const Tokenizer& tokenizer_;
  bool render_control_;
  Utf8Stream utf8_;
};

}  // namespace penstock::text
