#include "text/unicode.h"

#include <gtest/gtest.h>

#include "fixtures.h"

namespace penstock::text {
namespace {

TEST(Unicode, NfcMatchesTheRecordedLibrary) {
  const Json cases = fixture("nfc_cases.json");
  ASSERT_GT(cases.size(), 100U);
  for (const Json& c : cases) {
    EXPECT_EQ(nfc(c[0].get<std::string>()), c[1].get<std::string>());
  }
}

TEST(Unicode, NfcKeepsInvalidBytesAndNormalisesAroundThem) {
  EXPECT_EQ(nfc("e\xCC\x81\xFF"
                "e\xCC\x81"),
            "\xC3\xA9\xFF\xC3\xA9");
  EXPECT_EQ(nfc("e\xCC"), "e\xCC");
  // A combining mark after an invalid byte has nothing to combine with.
  EXPECT_EQ(nfc("e\xFF\xCC\x81"), "e\xFF\xCC\x81");
}

TEST(Unicode, ClassesOfTelltaleCharacters) {
  EXPECT_EQ(char_bits('A'), kUpper);
  EXPECT_EQ(char_bits('a'), kLower);
  EXPECT_EQ(char_bits(0x4E00), kOtherLetter);
  EXPECT_EQ(char_bits(0x301), kMark);
  EXPECT_EQ(char_bits(0x2167), kNumber);  // Roman numeral eight
  EXPECT_EQ(char_bits('$'), kSymbol);
  EXPECT_EQ(char_bits('_'), kPunctuation);
  EXPECT_EQ(char_bits(0x85), kSpace);
  EXPECT_EQ(char_bits(0x180E), 0);       // once a space, no longer
  EXPECT_EQ(char_bits(0x1C89), kUpper);  // Unicode 16
  EXPECT_EQ(char_bits(0x378), 0);        // unassigned
  EXPECT_EQ(char_bits(0x110000), 0);
}

TEST(Unicode, DecodesAndEncodesEveryCodePoint) {
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string bytes;
    append_utf8(bytes, c);
    const CodePoint back = decode_utf8(bytes, 0);
    ASSERT_EQ(back.value, c);
    ASSERT_EQ(back.length, bytes.size());
  }
}

TEST(Unicode, RefusesOverlongSurrogatesAndBeyond) {
  for (const char* bad : {"\xC0\xAF", "\xE0\x80\xAF", "\xED\xA0\x80", "\xF4\x90\x80\x80",
                          "\xF5\x80", "\x80", "\xC3", "\xE2\x82"}) {
    EXPECT_EQ(decode_utf8(bad, 0).value, kInvalid) << bad;
    EXPECT_EQ(decode_utf8(bad, 0).length, 1U);
  }
}

}  // namespace
}  // namespace penstock::text
