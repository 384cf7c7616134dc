// The loops around the AVX2 block kernels. A type is described by a policy:
//
// Small (blocks of less than 256 elements, activations Q8_32):
//   kBytes, kParts         block size; groups of 32 elements per block
//   kSigned, kOffset       codes carry signs, or are unsigned and stand for code - kOffset
//   kHasOffset             value = d * q + m (Q4_1, Q5_1)
//   load(block, part)      32 codes in element order
//   scales8(p, offset)     d of eight rows; offsets8 likewise for m
// Large (256 elements, activations Q8_256):
//   kBytes, kSigned, kOffset as above; kMins: value = d * scale * q - dmin * min
//   kSteps                 products of four codes that an int16 lane can hold (prompt kernels)
//   each32(block, f)       calls f(j, codes) for the eight groups of 32 elements
//   scales(block), mins(block)  16 sub-block numbers as int16, see EvenOdd
//   d8(p, offset), dmin8(p, offset)  f32 scales of eight rows
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

// ---------------------------------------------------------------------------------- GEMV, small

template <class P>
void gemv_small(const MatmulTile& tile) noexcept {
  const __m256i ones = _mm256_set1_epi16(1);
  const size_t ahead = 8 * tile.row_bytes;
  for (int64_t row = 0; row < tile.n_rows; row += 8) {
    const uint8_t* p[8];
    row_pointers(tile, row, p);
    for (int64_t t = 0; t < tile.n_tokens; ++t) {
      const Act32 act(tile.acts[t], tile.n_in);
      __m256 acc = _mm256_setzero_ps();
      size_t at = 0;
      for (int64_t k = 0; k < tile.n_in / 32; at += P::kBytes) {
        const __m256 d = P::scales8(p, at);
        for (int part = 0; part < P::kParts; ++part, ++k) {
          const __m256i a = load256(act.codes + 32 * k);
          __m256i v[8];
          for (int r = 0; r < 8; ++r) {
            if (part == 0) prefetch(p[r] + at, ahead);
            v[r] = _mm256_madd_epi16(multiply<P::kSigned>(P::load(p[r] + at, part), a), ones);
          }
          __m256i sum = reduce8(v);
          if (P::kOffset != 0) {
            sum = _mm256_sub_epi32(sum, _mm256_set1_epi32(P::kOffset * act.sums[k]));
          }
          const __m256 d8 = _mm256_broadcast_ss(act.scales + k);
          acc = _mm256_fmadd_ps(_mm256_mul_ps(d, d8), _mm256_cvtepi32_ps(sum), acc);
          if constexpr (P::kHasOffset) {
            const __m256 total = _mm256_set1_ps(static_cast<float>(act.sums[k]));
            acc = _mm256_fmadd_ps(_mm256_mul_ps(P::offsets8(p, at), d8), total, acc);
          }
        }
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
    size_t at = 0;
    for (int64_t k = 0; k < tile.n_in / 32; at += P::kBytes) {
      const __m256 d = P::scales8(p, at);
      for (int part = 0; part < P::kParts; ++part, ++k, out += kBlock) {
        __m256i q[8], columns[8];
        for (int r = 0; r < 8; ++r) q[r] = stored_codes<P::kSigned>(P::load(p[r] + at, part));
        transpose8(q, columns);
        for (int i = 0; i < 8; ++i) store256(out + 32 * i, columns[i]);
        store256(out + 256, _mm256_castps_si256(d));
        if constexpr (P::kHasOffset) {
          store256(out + 288, _mm256_castps_si256(P::offsets8(p, at)));
        }
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
      const __m256 d = _mm256_loadu_ps(reinterpret_cast<const float*>(w + 256));
      for (int t = 0; t < kTokens; ++t) {
        if (P::kOffset != 0) {
          sum[t] = _mm256_sub_epi32(sum[t], _mm256_set1_epi32(P::kOffset * sums[t][k]));
        }
        const __m256 d8 = _mm256_broadcast_ss(scales[t] + k);
        acc[t] = _mm256_fmadd_ps(_mm256_mul_ps(d, d8), _mm256_cvtepi32_ps(sum[t]), acc[t]);
        if constexpr (P::kHasOffset) {
          const __m256 m = _mm256_loadu_ps(reinterpret_cast<const float*>(w + 288));
          const __m256 total = _mm256_set1_ps(static_cast<float>(sums[t][k]));
          acc[t] = _mm256_fmadd_ps(_mm256_mul_ps(m, d8), total, acc[t]);
        }
      }
    }
    for (int t = 0; t < kTokens; ++t) {
      store_lanes(tile.out[token + t] + row, acc[t], tile.n_rows - row);
    }
  }

  static size_t bytes(int64_t n_in) noexcept { return static_cast<size_t>(n_in / 32) * kBlock; }
};

// ---------------------------------------------------------------------------------- GEMV, large

// Byte shuffles that repeat int16 number j of each 128-bit half.
alignas(32) constexpr uint8_t kSpread[8][32] = {
#define PENSTOCK_SPREAD_HALF(j)                                                                    \
  2 * j, 2 * j + 1, 2 * j, 2 * j + 1, 2 * j, 2 * j + 1, 2 * j, 2 * j + 1, 2 * j, 2 * j + 1, 2 * j, \
      2 * j + 1, 2 * j, 2 * j + 1, 2 * j, 2 * j + 1
#define PENSTOCK_SPREAD(j) \
  { PENSTOCK_SPREAD_HALF(j), PENSTOCK_SPREAD_HALF(j) }
    PENSTOCK_SPREAD(0), PENSTOCK_SPREAD(1), PENSTOCK_SPREAD(2),
    PENSTOCK_SPREAD(3), PENSTOCK_SPREAD(4), PENSTOCK_SPREAD(5),
    PENSTOCK_SPREAD(6), PENSTOCK_SPREAD(7)
#undef PENSTOCK_SPREAD
#undef PENSTOCK_SPREAD_HALF
};

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

template <class P>
void gemv_large(const MatmulTile& tile) noexcept {
  const size_t ahead = 8 * tile.row_bytes;
  for (int64_t row = 0; row < tile.n_rows; row += 8) {
    const uint8_t* p[8];
    row_pointers(tile, row, p);
    for (int64_t t = 0; t < tile.n_tokens; ++t) {
      const Act256 act(tile.acts[t], tile.n_in);
      __m256 acc = _mm256_setzero_ps();
      size_t at = 0;
      for (int64_t k = 0; k < tile.n_in / 256; ++k, at += P::kBytes) {
        const int8_t* a = act.codes + 256 * k;
        const __m256i totals = even_odd(load256(act.sums + 16 * k));
        __m256i v[8], min[8];
        for (int r = 0; r < 8; ++r) {
          const uint8_t* block = p[r] + at;
          for (size_t line = 0; line < P::kBytes; line += 64) prefetch(block + line, ahead);
          const __m256i scales = P::scales(block);
          __m256i sum = _mm256_setzero_si256();
          P::each32(
              block, [&](int j, const Codes& w) __attribute__((always_inline)) {
                const __m256i products = multiply<P::kSigned>(w, load256(a + 32 * j));
                const __m256i spread = _mm256_shuffle_epi8(scales, load256(kSpread[j]));
                sum = _mm256_add_epi32(sum, _mm256_madd_epi16(products, spread));
              });
          if constexpr (P::kOffset != 0) {
            static_assert((P::kOffset & (P::kOffset - 1)) == 0);
            sum = _mm256_sub_epi32(
                sum, _mm256_slli_epi32(_mm256_madd_epi16(scales, totals), log2_of(P::kOffset)));
          }
          v[r] = sum;
          if constexpr (P::kMins) min[r] = _mm256_madd_epi16(P::mins(block), totals);
        }
        const __m256 d8 = _mm256_broadcast_ss(act.scales + k);
        acc = _mm256_fmadd_ps(_mm256_mul_ps(P::d8(p, at), d8), _mm256_cvtepi32_ps(reduce8(v)), acc);
        if constexpr (P::kMins) {
          acc = _mm256_fnmadd_ps(_mm256_mul_ps(P::dmin8(p, at), d8),
                                 _mm256_cvtepi32_ps(reduce8(min)), acc);
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
    size_t at = 0;
    for (int64_t k = 0; k < tile.n_in / 256; ++k, at += P::kBytes, out += kBlock) {
      alignas(32) __m256i codes[8][8];
      __m256i low[8], high[8], pairs[8], columns[8];
      for (int r = 0; r < 8; ++r) {
        const uint8_t* block = p[r] + at;
        P::each32(
            block, [&](int j, const Codes& w) __attribute__((always_inline)) {
              codes[j][r] = stored_codes<P::kSigned>(w);
            });
        // Back to the natural order: halves of eight sub-blocks.
        const auto natural = [](__m256i x) {
          const __m128i even = _mm256_castsi256_si128(x), odd = _mm256_extracti128_si256(x, 1);
          return _mm256_set_m128i(_mm_unpackhi_epi16(even, odd), _mm_unpacklo_epi16(even, odd));
        };
        const __m256i scales = natural(P::scales(block));
        const __m256i spread = _mm256_permute4x64_epi64(scales, 0xd8);
        low[r] = _mm256_unpacklo_epi16(spread, spread);
        high[r] = _mm256_unpackhi_epi16(spread, spread);
        if constexpr (P::kMins) {
          pairs[r] = natural(P::mins(block));
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
      store256(out + kD, _mm256_castps_si256(P::d8(p, at)));
      if constexpr (P::kMins) store256(out + kD + 32, _mm256_castps_si256(P::dmin8(p, at)));
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
