#include "text/jinja_text.h"

#include <utf8proc.h>

#include <algorithm>

#include "text/unicode.h"

namespace penstock::text::jinja {

void Text::append(std::string_view bytes, Origin origin) {
  if (bytes.empty()) return;
  bytes_.append(bytes);
  if (!runs_.empty() && runs_.back().origin == origin) {
    runs_.back().end = bytes_.size();
  } else {
    runs_.push_back({bytes_.size(), origin});
  }
}

void Text::append(const Text& other, size_t begin, size_t end) {
  if (begin >= end) return;
  auto run = std::upper_bound(other.runs_.begin(), other.runs_.end(), begin,
                              [](size_t at, const Run& r) { return at < r.end; });
  while (begin < end) {
    const size_t stop = std::min(end, run->end);
    append(std::string_view(other.bytes_).substr(begin, stop - begin), run->origin);
    begin = stop;
    ++run;
  }
}

Text Text::slice(size_t begin, size_t end) const {
  Text out;
  out.append(*this, begin, end);
  return out;
}

Origin Text::origin_at(size_t at) const noexcept {
  const auto run = std::upper_bound(runs_.begin(), runs_.end(), at,
                                    [](size_t i, const Run& r) { return i < r.end; });
  return run == runs_.end() ? Origin::Template : run->origin;
}

bool is_python_space(char32_t c) noexcept {
  return (c >= 0x1C && c <= 0x1F) || (c != kInvalid && (char_bits(c) & kSpace) != 0);
}

bool is_python_line_break(char32_t c) noexcept {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

bool is_python_printable(char32_t c) noexcept {
  if (c == ' ') return true;
  if (c == kInvalid) return false;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

std::vector<size_t> char_offsets(std::string_view text) {
  std::vector<size_t> offsets;
  offsets.reserve(text.size() + 1);
  size_t at = 0;
  while (at < text.size()) {
    offsets.push_back(at);
    at += decode_utf8(text, at).length;
  }
  offsets.push_back(at);
  return offsets;
}

size_t char_count(std::string_view text) noexcept {
  size_t count = 0;
  for (size_t at = 0; at < text.size(); ++count) at += decode_utf8(text, at).length;
  return count;
}

namespace {

template <typename Map>
Text map_chars(const Text& text, Map map) {
  Text out;
  out.reserve(text.size());
  const std::string_view view = text.view();
  size_t at = 0;
  std::string buffer;
  for (const Text::Run& run : text.runs()) {
    buffer.clear();
    while (at < run.end) {
      const CodePoint c = decode_utf8(view, at);
      if (c.value == kInvalid) {
        buffer += view[at];
      } else {
        map(c.value, buffer);
      }
      at += c.length;
    }
    out.append(buffer, run.origin);
  }
  return out;
}

}  // namespace

// One character at a time, but for the sharp s, whose capital is two in Python.
Text upper_case(const Text& text) {
  return map_chars(text, [](char32_t c, std::string& out) {
    if (c == 0xDF) {
      out += "SS";
    } else {
      append_utf8(out, static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c))));
    }
  });
}

Text title_case(const Text& text) {
  return map_chars(text, [](char32_t c, std::string& out) {
    if (c == 0xDF) {
      out += "Ss";
    } else {
      append_utf8(out, static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(c))));
    }
  });
}

Text lower_case(const Text& text) {
  return map_chars(text, [](char32_t c, std::string& out) {
    append_utf8(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
  });
}

}  // namespace penstock::text::jinja
