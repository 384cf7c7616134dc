// The lookup tables of the IQ and FP4 types, expanded at compile time (spec/gguf-quants.md §6).
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "quant/codebook_data.h"

namespace penstock::quant {

namespace codebook {

// Byte j of an entry is levels[index j], index j being `bits` bits of the packed number.
template <typename Entry, size_t N, size_t L>
constexpr std::array<Entry, N> expand(const uint16_t (&packed)[N], int bits,
                                      const int (&levels)[L]) noexcept {
  std::array<Entry, N> out{};
  for (size_t i = 0; i < N; ++i) {
    Entry entry = 0;
    for (size_t j = 0; j < sizeof(Entry); ++j) {
      const size_t index = (packed[i] >> (bits * static_cast<int>(j))) & ((1u << bits) - 1u);
      entry |= static_cast<Entry>(static_cast<uint8_t>(levels[index])) << (8 * j);
    }
    out[i] = entry;
  }
  return out;
}

// Seven stored sign bits; the eighth makes the number of ones even.
constexpr std::array<uint8_t, 128> even_signs() noexcept {
  std::array<uint8_t, 128> out{};
  for (uint32_t i = 0; i < 128; ++i) {
    out[i] = static_cast<uint8_t>(i | ((static_cast<uint32_t>(std::popcount(i)) & 1u) << 7));
  }
  return out;
}

inline constexpr int kLevels2[3] = {8, 25, 43};
inline constexpr int kLevels3xxs[8] = {4, 12, 20, 28, 36, 44, 52, 62};
inline constexpr int kLevels3s[8] = {1, 3, 5, 7, 9, 11, 13, 15};
// IQ1's grid {-1, 0, 1} times 8, so that its +-1/8 shift becomes +-1 and codes stay whole.
inline constexpr int kLevels1[3] = {-8, 0, 8};

}  // namespace codebook

inline constexpr auto kIq1sGrid8 = codebook::expand<uint64_t>(kIq1sPacked, 2, codebook::kLevels1);
inline constexpr auto kIq2xxsGrid =
    codebook::expand<uint64_t>(kIq2xxsPacked, 2, codebook::kLevels2);
inline constexpr auto kIq2xsGrid = codebook::expand<uint64_t>(kIq2xsPacked, 2, codebook::kLevels2);
inline constexpr auto kIq2sGrid = codebook::expand<uint64_t>(kIq2sPacked, 2, codebook::kLevels2);
inline constexpr auto kIq3xxsGrid =
    codebook::expand<uint32_t>(kIq3xxsPacked, 3, codebook::kLevels3xxs);
inline constexpr auto kIq3sGrid = codebook::expand<uint32_t>(kIq3sPacked, 3, codebook::kLevels3s);
inline constexpr auto kEvenSigns = codebook::even_signs();

inline constexpr int8_t kIq4nlValues[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                            1,    13,   25,  38,  53,  69,  89,  113};
inline constexpr int8_t kMxfp4Values[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                            0, -1, -2, -3, -4, -6, -8, -12};

}  // namespace penstock::quant
