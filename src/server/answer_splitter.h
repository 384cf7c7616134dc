// A chat answer as it streams: first perhaps reasoning in <think>…</think>, then the content. A tag
// inside the content is content. However the text is cut, the parts are the same.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace penstock::server {

class AnswerSplitter {
 public:
  struct Parts {
    std::string reasoning, content;
  };

  // `inside`: the prompt has opened the reasoning.
  explicit AnswerSplitter(bool inside) : state_(inside ? State::Opened : State::Start) {}

  // What is decided so far. The tags and the white space after them are dropped.
  Parts push(std::string_view text);
  Parts flush();
  // Where the content begins, in bytes of all text pushed; none: not yet known.
  std::optional<size_t> content_begin() const noexcept { return content_begin_; }
  bool reasoning() const noexcept {
    return state_ == State::Opened || state_ == State::Reasoning || state_ == State::Closed;
  }

 private:
  enum class State {
    Start,      // nothing but white space, or what may become <think>
    Opened,     // white space after <think>
    Reasoning,  // until </think>
    Closed,     // white space after it
    Content,
  };
  bool step(Parts* parts);  // one change of state; false: more text is needed
  void drop(size_t n);

  State state_;
  std::string held_;   // not yet decided
  size_t before_ = 0;  // bytes of text before held_
  std::optional<size_t> content_begin_;
};

}  // namespace penstock::server
