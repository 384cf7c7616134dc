// Strings of the template engine: bytes with their provenance, kept through every operation, so
// that the rendered prompt knows which of its bytes a user wrote.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::text::jinja {

enum class Origin : uint8_t { Template, User };

class Text {
 public:
  struct Run {
    size_t end;
    Origin origin;
  };

  Text() = default;
  Text(std::string_view bytes, Origin origin) { append(bytes, origin); }

  std::string_view view() const noexcept { return bytes_; }
  size_t size() const noexcept { return bytes_.size(); }
  bool empty() const noexcept { return bytes_.empty(); }
  const std::vector<Run>& runs() const noexcept { return runs_; }

  void reserve(size_t bytes) { bytes_.reserve(bytes); }
  void append(std::string_view bytes, Origin origin);
  void append(const Text& other) { append(other, 0, other.size()); }
  void append(const Text& other, size_t begin, size_t end);
  Text slice(size_t begin, size_t end) const;

  // The origin of the byte at `at`; `at` may be the end only of an empty text.
  Origin origin_at(size_t at) const noexcept;

 private:
  std::string bytes_;
  std::vector<Run> runs_;  // consecutive ones differ in origin; the last ends at the size
};

// What Python's str counts as white space: Unicode's, and the four separators U+001C to U+001F.
bool is_python_space(char32_t c) noexcept;
// What str.splitlines() breaks at.
bool is_python_line_break(char32_t c) noexcept;
// What repr() writes as itself.
bool is_python_printable(char32_t c) noexcept;

// Byte offsets of the code points of `text`, and its size as the last entry. A byte that is not
// part of UTF-8 is a character of its own.
std::vector<size_t> char_offsets(std::string_view text);
size_t char_count(std::string_view text) noexcept;

Text upper_case(const Text& text);
Text title_case(const Text& text);  // every character
Text lower_case(const Text& text);

}  // namespace penstock::text::jinja
