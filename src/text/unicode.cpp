#include "text/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

namespace penstock::text {
namespace {

struct ClassRange {
  uint32_t first, last;
  uint8_t bits;
};
struct CodePointRange {
  uint32_t first, last;
};

constexpr uint8_t U = kUpper, D = kLower, O = kOtherLetter, M = kMark, N = kNumber,
                  P = kPunctuation, S = kSymbol, W = kSpace;
#include "text/unicode_table.inc"

constexpr uint32_t kBlockBits = 8;
constexpr uint32_t kBlockSize = 1U << kBlockBits;
constexpr uint32_t kBlocks = 0x110000 >> kBlockBits;

// Two-stage tables, filled once: most of the 4,352 blocks are alike (all letters, all unassigned),
// so the whole fits in the second-level cache.
class Tables {
 public:
  Tables() {
    std::vector<uint8_t> flat(0x110000, 0);
    for (const ClassRange& r : kClassRanges) {
      for (uint32_t c = r.first; c <= r.last; ++c) flat[c] = r.bits;
    }
    build(flat, class_index_, class_blocks_);
    std::fill(flat.begin(), flat.end(), uint8_t{0});
    for (const CodePointRange& r : kNfcActive) {
      for (uint32_t c = r.first; c <= r.last; ++c) flat[c] = 1;
    }
    build(flat, nfc_index_, nfc_blocks_);
  }

  uint8_t bits(char32_t c) const noexcept { return look_up(c, class_index_, class_blocks_); }
  bool nfc_active(char32_t c) const noexcept { return look_up(c, nfc_index_, nfc_blocks_) != 0; }

 private:
  using Index = std::array<uint16_t, kBlocks>;

  static void build(const std::vector<uint8_t>& flat, Index& index, std::vector<uint8_t>& blocks) {
    for (uint32_t b = 0; b < kBlocks; ++b) {
      const auto begin = flat.begin() + b * kBlockSize;
      uint32_t found = 0;
      const auto count = static_cast<uint32_t>(blocks.size() / kBlockSize);
      while (found < count &&
             !std::equal(begin, begin + kBlockSize, blocks.begin() + found * kBlockSize)) {
        ++found;
      }
      if (found == count) blocks.insert(blocks.end(), begin, begin + kBlockSize);
      index[b] = static_cast<uint16_t>(found);
    }
  }

  static uint8_t look_up(char32_t c, const Index& index,
                         const std::vector<uint8_t>& blocks) noexcept {
    if (c >= 0x110000) return 0;
    return blocks[index[c >> kBlockBits] * kBlockSize + (c & (kBlockSize - 1))];
  }

  Index class_index_{}, nfc_index_{};
  std::vector<uint8_t> class_blocks_, nfc_blocks_;
};

const Tables& tables() {
  static const Tables instance;
  return instance;
}

bool is_continuation(unsigned char byte) noexcept {
  return (byte & 0xC0) == 0x80;
}

// The library's tables are newer than the ones the models' own NFC used: a combining mark that was
// unassigned then is an ordinary character to that NFC and must not be composed or reordered here.
bool later_mark(char32_t c) noexcept {
  return utf8proc_get_property(static_cast<utf8proc_int32_t>(c))->combining_class != 0 &&
         !tables().nfc_active(c);
}

void append_nfc(std::string& out, std::string_view window) {
  utf8proc_uint8_t* result = nullptr;
  const utf8proc_ssize_t length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(window.data()),
                   static_cast<utf8proc_ssize_t>(window.size()), &result,
                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  if (length < 0) throw std::bad_alloc();  // the window is valid UTF-8: nothing else can fail
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(result, &std::free);
  out.append(reinterpret_cast<const char*>(result), static_cast<size_t>(length));
}

}  // namespace

uint8_t char_bits(char32_t code_point) noexcept {
  static const Tables& shared = tables();
  return shared.bits(code_point);
}

uint32_t utf8_sequence_length(unsigned char first) noexcept {
  if (first < 0x80) return 1;
  if (first < 0xC2) return 0;
  if (first < 0xE0) return 2;
  if (first < 0xF0) return 3;
  if (first < 0xF5) return 4;
  return 0;
}

size_t utf8_subpart(std::string_view text, bool* complete) noexcept {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const uint32_t want = utf8_sequence_length(byte(0));
  *complete = false;
  if (want == 0) return 1;
  size_t have = 1;
  while (have < want && have < text.size()) {
    const unsigned char b = byte(have);
    if (!is_continuation(b)) return have;
    if (have == 1) {
      // Second bytes that would make the form overlong, a surrogate, or beyond U+10FFFF.
      const unsigned char first = byte(0);
      if ((first == 0xE0 && b < 0xA0) || (first == 0xED && b > 0x9F) ||
          (first == 0xF0 && b < 0x90) || (first == 0xF4 && b > 0x8F)) {
        return 1;
      }
    }
    ++have;
  }
  *complete = have == want;
  return have;
}

CodePoint decode_utf8(std::string_view text, size_t at) noexcept {
  const auto first = static_cast<unsigned char>(text[at]);
  if (first < 0x80) return {first, 1};
  bool complete = false;
  const size_t length = utf8_subpart(text.substr(at, 4), &complete);
  if (!complete) return {kInvalid, 1};
  char32_t value = first & (0x7FU >> length);
  for (size_t i = 1; i < length; ++i) {
    value = (value << 6) | (static_cast<unsigned char>(text[at + i]) & 0x3FU);
  }
  return {value, static_cast<uint32_t>(length)};
}

void append_utf8(std::string& out, char32_t c) {
  const auto put = [&](char32_t byte) { out += static_cast<char>(byte); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | (c >> 6));
    put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | (c >> 12));
    put(0x80 | ((c >> 6) & 0x3F));
    put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | (c >> 18));
    put(0x80 | ((c >> 12) & 0x3F));
    put(0x80 | ((c >> 6) & 0x3F));
    put(0x80 | (c & 0x3F));
  }
}

// Only windows around active code points go through the library. A code point that is not active
// is a boundary: it neither changes nor composes with what precedes it, so NFC(x·y) = NFC(x)·NFC(y)
// before it. The window therefore starts at the character before the active one.
std::string nfc(std::string_view text) {
  const Tables& table = tables();
  std::string out;
  out.reserve(text.size());
  size_t copied = 0;                         // everything before is in `out`
  size_t previous = std::string_view::npos;  // start of the preceding code point of this run
  size_t at = 0;
  while (at < text.size()) {
    if (static_cast<unsigned char>(text[at]) < 0x80) {
      previous = at++;
      continue;
    }
    const CodePoint c = decode_utf8(text, at);
    if (c.value == kInvalid) {
      previous = std::string_view::npos;
      ++at;
      continue;
    }
    if (!table.nfc_active(c.value)) {
      previous = at;
      at += c.length;
      continue;
    }
    const bool joins =
        previous != std::string_view::npos && !later_mark(decode_utf8(text, previous).value);
    const size_t begin = joins ? previous : at;
    size_t end = at + c.length;
    while (end < text.size()) {
      const CodePoint next = decode_utf8(text, end);
      if (next.value == kInvalid || !table.nfc_active(next.value)) break;
      end += next.length;
    }
    out.append(text.substr(copied, begin - copied));
    append_nfc(out, text.substr(begin, end - begin));
    copied = at = end;
    previous = std::string_view::npos;  // what follows is a boundary or the end
  }
  out.append(text.substr(copied));
  return out;
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    bool complete = false;
    const size_t length = utf8_subpart(text.substr(at, 4), &complete);
    if (complete) {
      out.append(text.substr(at, length));
    } else {
      append_utf8(out, 0xFFFD);
    }
    at += length;
  }
  return out;
}

}  // namespace penstock::text
