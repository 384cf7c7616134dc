#include "text/utf8_stream.h"

#include <span>

#include "text/tokenizer.h"
#include "text/unicode.h"

namespace penstock::text {

std::string Utf8Stream::push(std::string_view bytes) {
  held_.append(bytes);
  std::string out;
  const std::string_view text = held_;
  size_t at = 0;
  while (at < text.size()) {
    bool complete = false;
    const size_t length = utf8_subpart(text.substr(at, 4), &complete);
    if (complete) {
      out.append(text.substr(at, length));
    } else if (at + length == text.size() &&
               utf8_sequence_length(static_cast<unsigned char>(text[at])) != 0) {
      break;  // may still be completed
    } else {
      append_utf8(out, 0xFFFD);
    }
    at += length;
  }
  held_.erase(0, at);
  return out;
}

std::string Utf8Stream::flush() {
  std::string out;
  if (!held_.empty()) append_utf8(out, 0xFFFD);
  held_.clear();
  return out;
}

std::string TokenStream::push(int32_t id) {
  return utf8_.push(tokenizer_.decode(std::span(&id, 1), render_control_));
}

}  // namespace penstock::text
