// UTF-8, character classes and NFC as the tokenizers of the supported models see them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace penstock::text {

// Class bits of a code point; every code point has at most one, unassigned and control ones none.
enum CharBits : uint8_t {
  kUpper = 1,         // Lu, Lt
  kLower = 2,         // Ll
  kOtherLetter = 4,   // Lm, Lo
  kMark = 8,          // M
  kNumber = 16,       // N
  kPunctuation = 32,  // P
  kSymbol = 64,       // S
  kSpace = 128,       // \s
  kLetter = kUpper | kLower | kOtherLetter,
};

uint8_t char_bits(char32_t code_point) noexcept;

struct CodePoint {
  char32_t value;   // kInvalid for a byte that is part of no valid sequence
  uint32_t length;  // bytes taken; 1 for an invalid byte
};
inline constexpr char32_t kInvalid = 0xFFFFFFFF;

// Strict UTF-8 (no overlong forms, no surrogates). `at` must be less than text.size().
CodePoint decode_utf8(std::string_view text, size_t at) noexcept;

void append_utf8(std::string& out, char32_t code_point);

// How many bytes the sequence that this byte starts should have; 0 if no sequence starts so.
uint32_t utf8_sequence_length(unsigned char first) noexcept;

// Bytes of the longest prefix of `text` that may begin a valid sequence: the "maximal subpart" that
// one U+FFFD replaces. At least 1. `complete` tells whether it is a whole sequence.
size_t utf8_subpart(std::string_view text, bool* complete) noexcept;

// NFC of every maximal valid UTF-8 run; invalid bytes stay as they are and separate the runs.
std::string nfc(std::string_view text);

// Text that may go out as UTF-8: each invalid part replaced by U+FFFD.
std::string replace_invalid_utf8(std::string_view text);

}  // namespace penstock::text
