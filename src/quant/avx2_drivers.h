// The loops around the AVX2 block kernels. A type is described by a policy:
//
// Small (blocks of less than 256 elements, activations Q8_32):
//   kBytes, kParts         block size; groups of 32 elements per block
//   kSigned, kOffset       codes carry signs, or are unsigned and stand for code - kOffset
//   kHasOffset             value = d * q + m (Q4_1, Q5_1)
//   load(block, part)      32 codes in element order
//   pair(a, b, low, high)  in gemv_pairs: codes of elements 0..15 of two blocks and of elements
//                          16..31; signed ones are never -128
//   kMaxCode               unsigned codes: the largest
//   scales8(p, offset)     d of eight rows; with kHasOffset d and m
// Large (256 elements, activations Q8_256):
//   kBytes, kSigned, kOffset as above; kMins: value = d * scale * q - dmin * min
//   kSteps                 products of four codes that an int16 lane can hold (prompt kernels)
//   each32(block, f)       calls f(j, codes) for the eight groups of 32 elements; with kLanePairs
//                          instead elements 0..15 of groups j and j + 1 (j even), then 16..31 of
//                          both
//   sub_scales(block)      16 sub-block numbers as int16, see EvenOdd
//   kSub32                 sub-blocks of 32: the eight mins lie in the upper half
//   d8(p, offset)          f32 d, and with kMins dmin, of eight rows
//
// EvenOdd: the low 128 bits hold the numbers of sub-blocks 0, 2, .. 14, the high bits those of
// 1, 3, .. 15, so that one byte shuffle spreads sub-blocks 2j and 2j+1 over the two halves, just
// where the products of group j's elements lie.
#pragma once

#include "quant/avx2.h"

namespace penstock::quant {
namespace {

// 32 codes: magnitudes, and for signed types a vector whose signs (or zeros) apply to them.
struct Codes {
  __m256i magnitude;
  __m256i sign;
};

// 16 sums of two products each. Magnitudes reach 128 and activations 127: no int16 overflow.
template <bool kSigned>
PENSTOCK_INLINE __m256i multiply(const Codes& w, __m256i act) noexcept {
  return _mm256_maddubs_epi16(w.magnitude, kSigned ? _mm256_sign_epi8(act, w.sign) : act);
}

template <bool kSigned>
PENSTOCK_INLINE __m256i stored_codes(const Codes& w) noexcept {
  return kSigned ? _mm256_sign_epi8(w.magnitude, w.sign) : w.magnitude;
}

// acc = fma(d * d8, sum, acc), and with an offset acc = fma(m * d8, sum(q8), acc): block k.
template <class P>
PENSTOCK_INLINE __m256 add_block(__m256 acc, __m256i sum, const Halves& scales, const float* d8,
                                 const int32_t* total) noexcept {
  if constexpr (P::kOffset != 0) sum = _mm256_sub_epi32(sum, broadcast_times<P::kOffset>(total));
  const __m256 factor = _mm256_broadcast_ss(d8);
  acc = _mm256_fmadd_ps(_mm256_mul_ps(scales.first, factor), _mm256_cvtepi32_ps(sum), acc);
  if constexpr (P::kHasOffset) {
    const __m256 q8 = _mm256_cvtepi32_ps(_mm256_set1_epi32(*total));
    acc = _mm256_fmadd_ps(_mm256_mul_ps(scales.second, factor), q8, acc);
  }
  return acc;
}

// ---------------------------------------------------------------------------------- GEMV, small

// One block of 32 bytes of codes at a time.
template <class P>
void gemv_single(const MatmulTile& tile) noexcept {
  for (int64_t row = 0; row < tile.n_rows; row += 8) {
    const uint8_t* p[8];
    row_pointers(tile, row, p);
    for (int64_t t = 0; t < tile.n_tokens; ++t) {
      const Act32 act(tile.acts[t], tile.n_in);
      __m256 acc = _mm256_setzero_ps();
      Cursor cursor(tile.row_bytes);
      for (int64_t k = 0; k < tile.n_in / 32; cursor.advance(P::kBytes)) {
        const Halves scales = P::scales8(p, cursor.at());
        for (int part = 0; part < P::kParts; ++part, ++k) {
          const __m256i a = load256(act.codes + 32 * k);
          const __m256i sum = reduce8([&](int r) __attribute__((always_inline)) {
            if (part == 0) cursor.prefetch(p[r], 0);
            return widen(multiply<P::kSigned>(P::load(p[r] + cursor.at(), part), a));
          });
          acc = add_block<P>(acc, sum, scales, act.scales + k, act.sums + k);
        }
      }
      store_lanes(tile.out[t] + row, acc, tile.n_rows - row);
    }
  }
}

// Types of 16 bytes of nibbles per block: two blocks fill a vector, one in each half.
template <class P>
PENSTOCK_INLINE void pair_sums(const uint8_t* const* p, const Cursor& cursor, size_t to_second,
                               __m256i low8, __m256i high8, __m256i* sums) noexcept {
  __m256i quad[2];
  const __m256i low_magnitude = _mm256_abs_epi8(low8), high_magnitude = _mm256_abs_epi8(high8);
  const auto row = [&](int r) __attribute__((always_inline)) {
    cursor.prefetch(p[r], 0);
    __m256i low, high;
    P::pair(p[r] + cursor.at(), p[r] + cursor.at() + to_second, low, high);
    if constexpr (P::kSigned) {
      // No code is -128, so the signs may pass from the activation to the codes: its magnitudes
      // serve eight rows.
      return add32(widen(_mm256_maddubs_epi16(low_magnitude, _mm256_sign_epi8(low, low8))),
                   widen(_mm256_maddubs_epi16(high_magnitude, _mm256_sign_epi8(high, high8))));
    } else {
      return add16(_mm256_maddubs_epi16(low, low8), _mm256_maddubs_epi16(high, high8));
    }
  };
  if constexpr (P::kSigned) {
    fold_halves(row, quad);
  } else {
    fold_halves16<P::kMaxCode * 127 * 2 * 2>(row, quad);
  }
  sums[0] = _mm256_permute2x128_si256(quad[0], quad[1], 0x20);
  sums[1] = _mm256_permute2x128_si256(quad[0], quad[1], 0x31);
}

template <class P>
void gemv_pairs(const MatmulTile& tile) noexcept {
  const int64_t n_blocks = tile.n_in / 32;
  for (int64_t row = 0; row < tile.n_rows; row += 8) {
    const uint8_t* p[8];
    row_pointers(tile, row, p);
    for (int64_t t = 0; t < tile.n_tokens; ++t) {
      const Act32 act(tile.acts[t], tile.n_in);
      __m256 acc = _mm256_setzero_ps();
      __m256i sums[2];
      Cursor cursor(tile.row_bytes);
      int64_t k = 0;
      for (; k + 1 < n_blocks; k += 2, cursor.advance(2 * P::kBytes)) {
        const __m256i a = load256(act.codes + 32 * k), b = load256(act.codes + 32 * k + 32);
        pair_sums<P>(p, cursor, P::kBytes, _mm256_permute2x128_si256(a, b, 0x20),
                     _mm256_permute2x128_si256(a, b, 0x31), sums);
        Halves scales[2];
        if constexpr (P::kBytes == 18) {
          const TwoScales d = halves8_18(p, cursor.at());
          scales[0] = {d.first, d.first};
          scales[1] = {d.second, d.second};
        } else {
          scales[0] = P::scales8(p, cursor.at());
          scales[1] = P::scales8(p, cursor.at() + P::kBytes);
        }
        for (int i = 0; i < 2; ++i) {
          acc = add_block<P>(acc, sums[i], scales[i], act.scales + k + i, act.sums + k + i);
        }
      }
      if (k < n_blocks) {  // an odd last block, beside zeros
        const __m256i a = load256(act.codes + 32 * k);
        pair_sums<P>(p, cursor, 0, _mm256_permute2x128_si256(a, a, 0x80),
                     _mm256_permute2x128_si256(a, a, 0x81), sums);
        acc = add_block<P>(acc, sums[0], P::scales8(p, cursor.at()), act.scales + k, act.sums + k);
      }
      store_lanes(tile.out[t] + row, acc, tile.n_rows - row);
    }
  }
}

// ---------------------------------------------------------------------------------- GEMM, small

// A panel holds eight rows. Per 32 elements: 8 vectors of codes (vector i: elements 4i..4i+3 of
// each row), d of the rows and, with kHasOffset, m.
template <class P>
struct SmallPanel {
  static constexpr size_t kBlock = 256 + 32 + (P::kHasOffset ? 32 : 0);

  static void unpack(const MatmulTile& tile, int64_t row, std::byte* out) noexcept {
    const uint8_t* p[8];
    row_pointers(tile, row, p);
    Cursor cursor(tile.row_bytes);
    for (int64_t k = 0; k < tile.n_in / 32; cursor.advance(P::kBytes)) {
      const size_t at = cursor.at();
      for (int r = 0; r < 8; ++r) cursor.prefetch(p[r], 0);
      const Halves scales = P::scales8(p, at);
      for (int part = 0; part < P::kParts; ++part, ++k, out += kBlock) {
        __m256i q[8], columns[8];
        for (int r = 0; r < 8; ++r) q[r] = stored_codes<P::kSigned>(P::load(p[r] + at, part));
        transpose8(q, columns);
        for (int i = 0; i < 8; ++i) store256(out + 32 * i, columns[i]);
        store256(out + 256, _mm256_castps_si256(scales.first));
        if constexpr (P::kHasOffset) store256(out + 288, _mm256_castps_si256(scales.second));
      }
    }
  }

  template <int kTokens>
  static void multiply_panel(const MatmulTile& tile, const std::byte* w, int64_t row,
                             int64_t token) noexcept {
    const __m256i ones = _mm256_set1_epi16(1);
    const int8_t* codes[kTokens];
    const float* scales[kTokens];
    const int32_t* sums[kTokens];
    __m256 acc[kTokens];
    for (int t = 0; t < kTokens; ++t) {
      const Act32 act(tile.acts[token + t], tile.n_in);
      codes[t] = act.codes;
      scales[t] = act.scales;
      sums[t] = act.sums;
      acc[t] = _mm256_setzero_ps();
    }
    for (int64_t k = 0; k < tile.n_in / 32; ++k, w += kBlock) {
      __m256i sum[kTokens];
      if constexpr (P::kSigned) {
        for (int t = 0; t < kTokens; ++t) sum[t] = _mm256_setzero_si256();
        for (int i = 0; i < 8; ++i) {
          const __m256i q = load256(w + 32 * i);
          const __m256i magnitude = _mm256_abs_epi8(q);
          for (int t = 0; t < kTokens; ++t) {
            const __m256i a = broadcast32(codes[t] + 32 * k + 4 * i);
            const __m256i products = _mm256_maddubs_epi16(magnitude, _mm256_sign_epi8(a, q));
            sum[t] = _mm256_add_epi32(sum[t], _mm256_madd_epi16(products, ones));
          }
        }
      } else {
        // Unsigned codes up to 31: two products reach 31 * 127 * 2, and an int16 lane holds four.
        constexpr int kSteps = P::kMaxCode * 127 * 2 * 8 <= 32767 ? 8 : 4;
        static_assert(P::kMaxCode * 127 * 2 * kSteps <= 32767);
        for (int first = 0; first < 8; first += kSteps) {
          __m256i lanes[kTokens];
          for (int i = first; i < first + kSteps; ++i) {
            const __m256i q = load256(w + 32 * i);
            for (int t = 0; t < kTokens; ++t) {
              const __m256i products =
                  _mm256_maddubs_epi16(q, broadcast32(codes[t] + 32 * k + 4 * i));
              lanes[t] = i == first ? products : _mm256_add_epi16(lanes[t], products);
            }
          }
          for (int t = 0; t < kTokens; ++t) {
            const __m256i wide = _mm256_madd_epi16(lanes[t], ones);
            sum[t] = first == 0 ? wide : _mm256_add_epi32(sum[t], wide);
          }
        }
      }
      Halves d;
      d.first = _mm256_loadu_ps(reinterpret_cast<const float*>(w + 256));
      if constexpr (P::kHasOffset) {
        d.second = _mm256_loadu_ps(reinterpret_cast<const float*>(w + 288));
      }
      for (int t = 0; t < kTokens; ++t) {
        acc[t] = add_block<P>(acc[t], sum[t], d, scales[t] + k, sums[t] + k);
      }
    }
    for (int t = 0; t < kTokens; ++t) {
      store_lanes(tile.out[token + t] + row, acc[t], tile.n_rows - row);
    }
  }

  static size_t bytes(int64_t n_in) noexcept { return static_cast<size_t>(n_in / 32) * kBlock; }
};

// ---------------------------------------------------------------------------------- GEMV, large

struct SubScales {
  __m256i scales;
  __m256i mins;
};

// Byte shuffles that repeat one int16 number of each 128-bit half: number j of both halves, or with
// kLanePairs numbers j and j + 1 (j even) of halves that hold the same eight.
struct Spread {
  alignas(32) uint8_t bytes[8][32];
};
template <bool kLanePairs>
constexpr Spread make_spread() noexcept {
  Spread out{};
  for (int j = 0; j < 8; ++j) {
    for (int i = 0; i < 32; ++i) {
      const int number = kLanePairs ? j / 2 * 2 + i / 16 : j;
      out.bytes[j][i] = static_cast<uint8_t>(2 * number + i % 2);
    }
  }
  return out;
}
template <bool kLanePairs>
constexpr Spread kSpread = make_spread<kLanePairs>();

PENSTOCK_INLINE __m256i even_odd(__m256i natural) noexcept {
  const __m256i shuffle = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
  return _mm256_permute4x64_epi64(_mm256_shuffle_epi8(natural, shuffle), 0xd8);
}

constexpr int log2_of(int value) noexcept {
  int bits = 0;
  while ((1 << bits) < value) ++bits;
  return bits;
}

// Sums of the mins times the activation's sums, lane by row. The eight mins of types with
// sub-blocks of 32 fill half a vector, so two rows share one.
template <class P>
PENSTOCK_INLINE __m256i min_sums(const __m256i* mins, __m256i totals) noexcept {
  if constexpr (P::kSub32) {
    const __m128i both =
        _mm_add_epi16(_mm256_castsi256_si128(totals), _mm256_extracti128_si256(totals, 1));
    const __m256i twice = join(both, both);
    __m256i v[4];
    for (int r = 0; r < 4; ++r) {
      v[r] = _mm256_madd_epi16(_mm256_permute2x128_si256(mins[r], mins[r + 4], 0x31), twice);
    }
    return fold4(fold2(v[0], v[1], add32), fold2(v[2], v[3], add32), add32);
  } else {
    return reduce8([&](int r) { return _mm256_madd_epi16(mins[r], totals); });
  }
}

template <class P>
void gemv_large(const MatmulTile& tile) noexcept {
  for (int64_t row = 0; row < tile.n_rows; row += 8) {
    const uint8_t* p[8];
    row_pointers(tile, row, p);
    for (int64_t t = 0; t < tile.n_tokens; ++t) {
      const Act256 act(tile.acts[t], tile.n_in);
      __m256 acc = _mm256_setzero_ps();
      Cursor cursor(tile.row_bytes);
      for (int64_t k = 0; k < tile.n_in / 256; ++k, cursor.advance(P::kBytes)) {
        const int8_t* a = act.codes + 256 * k;
        const __m256i totals = even_odd(load256(act.sums + 16 * k));
        __m256i v[8], mins[8], paired[8];
        for (int j = 0; P::kLanePairs && j < 8; j += 2) {
          const __m256i x = load256(a + 32 * j), y = load256(a + 32 * j + 32);
          paired[j] = _mm256_permute2x128_si256(x, y, 0x20);
          paired[j + 1] = _mm256_permute2x128_si256(x, y, 0x31);
        }
        for (int r = 0; r < 8; ++r) {
          const uint8_t* block = p[r] + cursor.at();
          for (size_t line = 0; line < P::kBytes; line += 64) cursor.prefetch(p[r], line);
          const SubScales sub = P::sub_scales(block);
          __m256i sum = _mm256_setzero_si256();
          P::each32(
              block, [&](int j, const Codes& w) __attribute__((always_inline)) {
                const __m256i x = P::kLanePairs ? paired[j] : load256(a + 32 * j);
                const __m256i products = multiply<P::kSigned>(w, x);
                const __m256i spread =
                    _mm256_shuffle_epi8(sub.scales, load256(kSpread<P::kLanePairs>.bytes[j]));
                sum = _mm256_add_epi32(sum, _mm256_madd_epi16(products, spread));
              });
          if constexpr (P::kOffset != 0) {
            static_assert((P::kOffset & (P::kOffset - 1)) == 0);
            sum = _mm256_sub_epi32(
                sum, _mm256_slli_epi32(_mm256_madd_epi16(sub.scales, totals), log2_of(P::kOffset)));
          }
          v[r] = sum;
          if constexpr (P::kMins) mins[r] = sub.mins;
        }
        const __m256 d8 = _mm256_broadcast_ss(act.scales + k);
        const Halves d = P::d8(p, cursor.at());
        const __m256i total = reduce8([&](int r) { return v[r]; });
        acc = _mm256_fmadd_ps(_mm256_mul_ps(d.first, d8), _mm256_cvtepi32_ps(total), acc);
        if constexpr (P::kMins) {
          acc = _mm256_fnmadd_ps(_mm256_mul_ps(d.second, d8),
                                 _mm256_cvtepi32_ps(min_sums<P>(mins, totals)), acc);
        }
      }
      store_lanes(tile.out[t] + row, acc, tile.n_rows - row);
    }
  }
}

// ---------------------------------------------------------------------------------- GEMM, large

// Per 256 elements of eight rows: 64 vectors of codes as in SmallPanel; 16 vectors of sub-block
// scales, each number twice in the 32 bits of its row; with an offset or mins 8 vectors of pairs
// (sub-blocks 2i, 2i+1) to multiply with the activations' sums; d and dmin.
template <class P>
struct LargePanel {
  static constexpr bool kPairs = P::kOffset != 0 || P::kMins;
  static constexpr size_t kScales = 2048;
  static constexpr size_t kPairsAt = kScales + 512;
  static constexpr size_t kD = kPairsAt + (kPairs ? 256 : 0);
  static constexpr size_t kBlock = kD + 32 + (P::kMins ? 32 : 0);

  static void unpack(const MatmulTile& tile, int64_t row, std::byte* out) noexcept {
    const uint8_t* p[8];
    row_pointers(tile, row, p);
    Cursor cursor(tile.row_bytes);
    for (int64_t k = 0; k < tile.n_in / 256; ++k, cursor.advance(P::kBytes), out += kBlock) {
      const size_t at = cursor.at();
      alignas(32) __m256i codes[8][8];
      __m256i low[8], high[8], pairs[8], columns[8];
      for (int r = 0; r < 8; ++r) {
        const uint8_t* block = p[r] + at;
        for (size_t line = 0; line < P::kBytes; line += 64) cursor.prefetch(p[r], line);
        P::each32(
            block, [&](int j, const Codes& w) __attribute__((always_inline)) {
              codes[j][r] = stored_codes<P::kSigned>(w);
            });
        for (int j = 0; P::kLanePairs && j < 8; j += 2) {
          const __m256i first16 = codes[j][r], last16 = codes[j + 1][r];
          codes[j][r] = _mm256_permute2x128_si256(first16, last16, 0x20);
          codes[j + 1][r] = _mm256_permute2x128_si256(first16, last16, 0x31);
        }
        // Back to the natural order: halves of eight sub-blocks.
        const auto natural = [](__m256i x) {
          const __m128i even = _mm256_castsi256_si128(x), odd = _mm256_extracti128_si256(x, 1);
          return _mm256_set_m128i(_mm_unpackhi_epi16(even, odd), _mm_unpacklo_epi16(even, odd));
        };
        const SubScales sub = P::sub_scales(block);
        const __m256i scales = natural(sub.scales);
        const __m256i spread = _mm256_permute4x64_epi64(scales, 0xd8);
        low[r] = _mm256_unpacklo_epi16(spread, spread);
        high[r] = _mm256_unpackhi_epi16(spread, spread);
        if constexpr (P::kMins) {
          // Sub-blocks of 32 keep their eight mins in the upper half alone.
          pairs[r] = natural(P::kSub32 ? _mm256_permute4x64_epi64(sub.mins, 0xee) : sub.mins);
        } else if constexpr (kPairs) {
          pairs[r] = _mm256_mullo_epi16(scales, _mm256_set1_epi16(-P::kOffset));
        }
      }
      for (int j = 0; j < 8; ++j) {
        transpose8(codes[j], columns);
        for (int i = 0; i < 8; ++i) store256(out + 256 * j + 32 * i, columns[i]);
      }
      transpose8(low, columns);
      for (int i = 0; i < 8; ++i) store256(out + kScales + 32 * i, columns[i]);
      transpose8(high, columns);
      for (int i = 0; i < 8; ++i) store256(out + kScales + 256 + 32 * i, columns[i]);
      if constexpr (kPairs) {
        transpose8(pairs, columns);
        for (int i = 0; i < 8; ++i) store256(out + kPairsAt + 32 * i, columns[i]);
      }
      const Halves d = P::d8(p, at);
      store256(out + kD, _mm256_castps_si256(d.first));
      if constexpr (P::kMins) store256(out + kD + 32, _mm256_castps_si256(d.second));
    }
  }

  template <int kTokens>
  static void multiply_panel(const MatmulTile& tile, const std::byte* w, int64_t row,
                             int64_t token) noexcept {
    const int8_t* codes[kTokens];
    const int16_t* sums[kTokens];
    const float* scales[kTokens];
    __m256 acc[kTokens];
    for (int t = 0; t < kTokens; ++t) {
      const Act256 act(tile.acts[token + t], tile.n_in);
      codes[t] = act.codes;
      sums[t] = act.sums;
      scales[t] = act.scales;
      acc[t] = _mm256_setzero_ps();
    }
    for (int64_t k = 0; k < tile.n_in / 256; ++k, w += kBlock) {
      __m256i sum[kTokens];
      for (int t = 0; t < kTokens; ++t) sum[t] = _mm256_setzero_si256();
      for (int first = 0; first < 64; first += P::kSteps) {
        __m256i lanes[kTokens];
        for (int i = first; i < first + P::kSteps; ++i) {
          const __m256i q = load256(w + 32 * i);
          const __m256i magnitude = P::kSigned ? _mm256_abs_epi8(q) : q;
          for (int t = 0; t < kTokens; ++t) {
            const __m256i a = broadcast32(codes[t] + 256 * k + 4 * i);
            const __m256i products =
                _mm256_maddubs_epi16(magnitude, P::kSigned ? _mm256_sign_epi8(a, q) : a);
            lanes[t] = i == first ? products : _mm256_add_epi16(lanes[t], products);
          }
        }
        const __m256i scale = load256(w + kScales + 32 * (first / 4));
        for (int t = 0; t < kTokens; ++t) {
          sum[t] = _mm256_add_epi32(sum[t], _mm256_madd_epi16(lanes[t], scale));
        }
      }
      const __m256 d = _mm256_loadu_ps(reinterpret_cast<const float*>(w + kD));
      for (int t = 0; t < kTokens; ++t) {
        const __m256 d8 = _mm256_broadcast_ss(scales[t] + k);
        __m256i total = P::kMins ? _mm256_setzero_si256() : sum[t];
        if constexpr (kPairs) {
          for (int i = 0; i < 8; ++i) {
            total =
                _mm256_add_epi32(total, _mm256_madd_epi16(load256(w + kPairsAt + 32 * i),
                                                          broadcast32(sums[t] + 16 * k + 2 * i)));
          }
        }
        acc[t] = _mm256_fmadd_ps(_mm256_mul_ps(d, d8),
                                 _mm256_cvtepi32_ps(P::kMins ? sum[t] : total), acc[t]);
        if constexpr (P::kMins) {
          const __m256 dmin = _mm256_loadu_ps(reinterpret_cast<const float*>(w + kD + 32));
          acc[t] = _mm256_fnmadd_ps(_mm256_mul_ps(dmin, d8), _mm256_cvtepi32_ps(total), acc[t]);
        }
      }
    }
    for (int t = 0; t < kTokens; ++t) {
      store_lanes(tile.out[token + t] + row, acc[t], tile.n_rows - row);
    }
  }

  static size_t bytes(int64_t n_in) noexcept { return static_cast<size_t>(n_in / 256) * kBlock; }
};

// Unpacks a few panels, which then stay in the L2 cache, and runs all tokens past them, four at a
// time, which stay in L1.
template <class Panel>
void gemm_panels(const MatmulTile& tile) noexcept {
  const int64_t n_panels = panels_per_pass(tile.n_in);
  const size_t bytes = Panel::bytes(tile.n_in);
  for (int64_t first = 0; first < tile.n_rows; first += 8 * n_panels) {
    const int64_t end = first + 8 * n_panels < tile.n_rows ? first + 8 * n_panels : tile.n_rows;
    std::byte* out = tile.scratch;
    for (int64_t row = first; row < end; row += 8, out += bytes) Panel::unpack(tile, row, out);
    for (int64_t token = 0; token < tile.n_tokens; token += 4) {
      const std::byte* panel = tile.scratch;
      for (int64_t row = first; row < end; row += 8, panel += bytes) {
        switch (tile.n_tokens - token) {
          case 1:
            Panel::template multiply_panel<1>(tile, panel, row, token);
            break;
          case 2:
            Panel::template multiply_panel<2>(tile, panel, row, token);
            break;
          case 3:
            Panel::template multiply_panel<3>(tile, panel, row, token);
            break;
          default:
            Panel::template multiply_panel<4>(tile, panel, row, token);
            break;
        }
      }
    }
  }
}

}  // namespace
}  // namespace penstock::quant
