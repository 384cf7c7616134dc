#include "server/answer_splitter.h"

#include <algorithm>
#include <utility>

namespace penstock::server {
namespace {

constexpr std::string_view kOpen = "<think>";
constexpr std::string_view kClose = "</think>";

// Length of the longest end of `text` that begins `tag`.
size_t partial_tag(std::string_view text, std::string_view tag) {
  size_t n = std::min(text.size(), tag.size() - 1);
  while (n > 0 && !text.ends_with(tag.substr(0, n))) --n;
  return n;
}

}  // namespace

void AnswerSplitter::drop(size_t n) {
  held_.erase(0, n);
  before_ += n;
}

bool AnswerSplitter::step(Parts* parts) {
  const size_t first = held_.find_first_not_of(" \t\r\n");
  switch (state_) {
    case State::Start: {
      if (first == std::string::npos) return false;
      const std::string_view rest = std::string_view(held_).substr(first);
      if (rest.starts_with(kOpen)) {
        drop(first + kOpen.size());
        state_ = State::Opened;
        return true;
      }
      if (kOpen.starts_with(rest)) return false;
      break;
    }
    case State::Opened:
    case State::Closed:
      drop(std::min(first, held_.size()));
      if (held_.empty()) return false;
      if (state_ == State::Closed) break;
      state_ = State::Reasoning;
      return true;
    case State::Reasoning: {
      const size_t close = held_.find(kClose);
      const size_t n =
          close != std::string::npos ? close : held_.size() - partial_tag(held_, kClose);
      parts->reasoning.append(held_, 0, n);
      drop(n);
      if (close == std::string::npos) return false;
      drop(kClose.size());
      state_ = State::Closed;
      return true;
    }
    case State::Content:
      parts->content += held_;
      drop(held_.size());
      return false;
  }
  state_ = State::Content;
  content_begin_ = before_;
  return true;
}

AnswerSplitter::Parts AnswerSplitter::push(std::string_view text) {
  Parts parts;
  held_ += text;
  while (step(&parts)) {
  }
  return parts;
}

AnswerSplitter::Parts AnswerSplitter::flush() {
  Parts parts;
  if (state_ == State::Start) content_begin_ = before_;
  (reasoning() ? parts.reasoning : parts.content) = std::exchange(held_, {});
  return parts;
}

}  // namespace penstock::server
