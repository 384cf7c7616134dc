// Q2_0: 64 elements on the grid {-1, 0, 1, 2} * d, d of either sign (spec/gguf-quants.md §10.2).
//
// For a fixed sign the codes change with d only where d passes 2|x| (0 to -1 or 1) and 2x/3 (1 to
// 2), and the best d for given codes is Sxq / Sqq with error Sxx - Sxq^2 / Sqq. The exact search
// sorts all breakpoints; here magnitudes fall into kBins bins, whose edges serve as the candidates
// d/2. Edge j needs the sums of all magnitudes above j and of those of the `2` side above 3j: both
// are suffix sums over the bins. The winner is then refined with its true codes and fp16 scales.
//
// Included by the baseline build and by each instruction set's own file: one text, compiled for
// wider vectors, with the same results. Everything has internal linkage.
#pragma once

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "quant/encode.h"

namespace penstock::quant {
namespace {

constexpr int kBlock = 64;
constexpr int kBins = 64;
// Candidates d/2 = max * j / kBins: d up to 1.06 and from 0.19 times the largest magnitude, or from
// 0.03 where importance may have made the largest elements worthless.
constexpr int kFirstEdge = 6, kFirstWeightedEdge = 1, kLastEdge = 34;

struct Sums {
  float xq = 0;
  float qq = 0;
};

// Codes change where x / d passes -1/2, 1/2 and 3/2.
struct Thresholds {
  float sign;
  float half;
  float three_halves;
  explicit Thresholds(float d) noexcept
      : sign(d < 0 ? -1.0f : 1.0f), half(0.5f * std::abs(d)), three_halves(3 * half) {}
};

#if defined(__AVX2__)
// Masks (-1 or 0): above 1/2, above 3/2, below -1/2.
struct Masks {
  __m256 one, two, minus;
  Masks(__m256 x, const Thresholds& t) noexcept {
    const __m256 y = _mm256_mul_ps(x, _mm256_set1_ps(t.sign));
    one = _mm256_cmp_ps(y, _mm256_set1_ps(t.half), _CMP_GT_OQ);
    two = _mm256_cmp_ps(y, _mm256_set1_ps(t.three_halves), _CMP_GT_OQ);
    minus = _mm256_cmp_ps(y, _mm256_set1_ps(-t.half), _CMP_LT_OQ);
  }
};

inline Sums code_sums(const float* x, const float* w, float d) noexcept {
  const Thresholds t(d);
  const __m256 unit = _mm256_set1_ps(1.0f);
  __m256 xq = _mm256_setzero_ps(), qq = _mm256_setzero_ps();
  for (int i = 0; i < kBlock; i += 8) {
    const __m256 v = _mm256_loadu_ps(x + i);
    const Masks m(v, t);
    const __m256 q =
        _mm256_sub_ps(_mm256_add_ps(_mm256_and_ps(m.one, unit), _mm256_and_ps(m.two, unit)),
                      _mm256_and_ps(m.minus, unit));
    const __m256 wq = _mm256_mul_ps(_mm256_loadu_ps(w + i), q);
    xq = _mm256_add_ps(xq, _mm256_mul_ps(wq, v));  // no fma: the other build has none either
    qq = _mm256_add_ps(qq, _mm256_mul_ps(wq, q));
  }
  alignas(32) float xq_lanes[8], qq_lanes[8];
  _mm256_store_ps(xq_lanes, xq);
  _mm256_store_ps(qq_lanes, qq);
  return {sum_lanes(xq_lanes), sum_lanes(qq_lanes)};
}

// One code per 32-bit lane.
inline __m256i codes8(const float* x, const Thresholds& t) noexcept {
  const Masks m(_mm256_loadu_ps(x), t);
  const __m256i up = _mm256_add_epi32(_mm256_castps_si256(m.one), _mm256_castps_si256(m.two));
  return _mm256_add_epi32(_mm256_sub_epi32(_mm256_set1_epi32(1), up), _mm256_castps_si256(m.minus));
}

inline void put_codes(const float* x, const Thresholds& t, uint8_t* out) noexcept {
  for (int half = 0; half < 2; ++half, x += 32, out += 8) {
    const __m256i packed =
        _mm256_packs_epi16(_mm256_packs_epi32(codes8(x, t), codes8(x + 8, t)),
                           _mm256_packs_epi32(codes8(x + 16, t), codes8(x + 24, t)));
    // Groups of four codes, in the order 0, 2, 4, 6 | 1, 3, 5, 7, to one byte each.
    const __m256i pairs = _mm256_maddubs_epi16(packed, _mm256_set1_epi16(0x0401));
    const __m256i bytes =
        _mm256_permutevar8x32_epi32(_mm256_madd_epi16(pairs, _mm256_set1_epi32(0x00100001)),
                                    _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    const __m128i words =
        _mm_packus_epi32(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(out), _mm_packus_epi16(words, words));
  }
}
#else
// Sums of the codes nearest to x / d.
inline Sums code_sums(const float* x, const float* w, float d) noexcept {
  const Thresholds t(d);
  float xq[8] = {}, qq[8] = {};
  for (int i = 0; i < kBlock; i += 8) {
    for (int k = 0; k < 8; ++k) {
      const float y = t.sign * x[i + k];
      const float q = (y > t.half ? 1.0f : 0.0f) + (y > t.three_halves ? 1.0f : 0.0f) -
                      (y < -t.half ? 1.0f : 0.0f);
      const float wq = w[i + k] * q;
      xq[k] += wq * x[i + k];
      qq[k] += wq * q;
    }
  }
  return {sum_lanes(xq), sum_lanes(qq)};
}

inline void put_codes(const float* x, const Thresholds& t, uint8_t* out) noexcept {
  for (int k = 0; k < kBlock; k += 4) {
    int byte = 0;
    for (int b = 0; b < 4; ++b) {
      const float y = t.sign * x[k + b];
      byte |= (1 + (y > t.half) + (y > t.three_halves) - (y < -t.half)) << (2 * b);
    }
    out[k / 4] = static_cast<uint8_t>(byte);
  }
}
#endif

// fp16 of a scale that must stay finite and not become zero.
inline float usable_half(float d) noexcept {
  const uint16_t bits = scale_bits(d);
  return half_to_float((bits & 0x7fffu) == 0 ? static_cast<uint16_t>(bits | 1u) : bits);
}

// A few rounds of codes from d, d from codes, scored with d as stored. Smaller is better: the error
// less the constant Sxx.
struct Choice {
  float d = 0;
  float error = 0;
};
inline Choice refine(const float* x, const float* w, float d) noexcept {
  Choice best;
  for (int round = 0; round < 3; ++round) {
    d = usable_half(d);
    const Sums s = code_sums(x, w, d);
    const float error = d * (d * s.qq - 2 * s.xq);
    if (!(error < best.error)) break;
    best = {d, error};
    if (s.qq == 0) break;
    d = s.xq / s.qq;
  }
  return best;
}

// Per bin: sums of w |x| and of w, of positive and then of negative elements. Two rows more than
// bins: one stays zero, and the whole is a number of 32-byte vectors.
using Bins = float[kBins + 2][4];

struct Best {  // of d > 0, where the positive side reaches code 2, and of d < 0
  float xq[2] = {};
  float qq[2] = {1, 1};
};

#if defined(__AVX2__)
inline void clear(Bins& bins) noexcept {
  float* p = &bins[0][0];
  for (int i = 0; i < (kBins + 2) * 4; i += 8) _mm256_store_ps(p + i, _mm256_setzero_ps());
}

// Both sums of an element at once.
inline void add_pair(float* sums, float wx, float w) noexcept {
  auto* at = reinterpret_cast<__m64*>(sums);
  const __m128 old = _mm_loadl_pi(_mm_setzero_ps(), at);
  _mm_storel_pi(at, _mm_add_ps(old, _mm_unpacklo_ps(_mm_set_ss(wx), _mm_set_ss(w))));
}

// Lanes xq, qq of d > 0 and then of d < 0: the sums, products and comparisons of the other build.
inline Best best_edge(const Bins& bins, int first_edge) noexcept {
  const __m128 weights = _mm_setr_ps(1, 3, 1, 3);
  __m128 best = _mm_setr_ps(0, 1, 0, 1);
  __m128 best_square = _mm_setzero_ps();
  for (int j = first_edge; j <= kLastEdge; ++j) {
    const __m128 one = _mm_load_ps(bins[j]);
    const __m128 two = _mm_load_ps(bins[3 * j < kBins ? 3 * j : kBins]);
    const __m128 v =
        _mm_add_ps(_mm_add_ps(one, _mm_shuffle_ps(one, one, 0x4e)), _mm_mul_ps(weights, two));
    const __m128 xq = _mm_shuffle_ps(v, v, 0xa0);
    const __m128 square = _mm_mul_ps(xq, xq);
    const __m128 better = _mm_cmpgt_ps(_mm_mul_ps(square, _mm_shuffle_ps(best, best, 0xf5)),
                                       _mm_mul_ps(best_square, _mm_shuffle_ps(v, v, 0xf5)));
    best = _mm_blendv_ps(best, v, better);
    best_square = _mm_blendv_ps(best_square, square, better);
  }
  alignas(16) float out[4];
  _mm_store_ps(out, best);
  return {{out[0], out[2]}, {out[1], out[3]}};
}
#else
inline void clear(Bins& bins) noexcept {
  std::memset(bins, 0, sizeof(bins));
}

inline void add_pair(float* sums, float wx, float w) noexcept {
  sums[0] += wx;
  sums[1] += w;
}

inline Best best_edge(const Bins& bins, int first_edge) noexcept {
  Best best;
  for (int j = first_edge; j <= kLastEdge; ++j) {
    const float* one = bins[j];
    const float* two = bins[3 * j < kBins ? 3 * j : kBins];
    for (int side = 0; side < 2; ++side) {
      const float xq = one[0] + one[2] + two[2 * side];
      const float qq = one[1] + one[3] + 3 * two[2 * side + 1];
      const bool better = xq * xq * best.qq[side] > best.xq[side] * best.xq[side] * qq;
      best.xq[side] = better ? xq : best.xq[side];
      best.qq[side] = better ? qq : best.qq[side];
    }
  }
  return best;
}
#endif

inline float best_scale(const float* x, const float* w, float max, int first_edge,
                        bool positive_only) noexcept {
  alignas(32) Bins bins;
  clear(bins);
  float wx[kBlock];
  int32_t at[kBlock];
  const float to_bin = kBins / max;
  for (int i = 0; i < kBlock; ++i) {
    const float magnitude = std::abs(x[i]);
    wx[i] = w[i] * magnitude;
    const int32_t bin = static_cast<int32_t>(magnitude * to_bin);
    at[i] = (bin < kBins ? bin : kBins - 1) * 4 + (x[i] < 0 ? 2 : 0);
  }
  for (int i = 0; i < kBlock; ++i) add_pair(&bins[0][0] + at[i], wx[i], w[i]);
  for (int j = kBins - 2; j >= first_edge; --j) {
    for (int k = 0; k < 4; ++k) bins[j][k] += bins[j + 1][k];
  }
  const Best best = best_edge(bins, first_edge);
  const float positive_gain = best.xq[0] * best.xq[0] / best.qq[0];
  const float negative_gain = best.xq[1] * best.xq[1] / best.qq[1];
  // Refinement gains far less than 1 % of the explained sum of squares: a side that far behind is
  // out.
  Choice positive, negative;
  if (positive_only) return refine(x, w, best.xq[0] / best.qq[0]).d;
  if (positive_gain >= 0.99f * negative_gain) positive = refine(x, w, best.xq[0] / best.qq[0]);
  if (negative_gain >= 0.99f * positive_gain) negative = refine(x, w, -(best.xq[1] / best.qq[1]));
  if (negative.error != positive.error) {
    return negative.error < positive.error ? negative.d : positive.d;
  }
  return std::abs(negative.d) < std::abs(positive.d) ? negative.d : positive.d;
}

inline void encode_q2_0_row(const float* in, uint8_t* out, int64_t n, const float* importance,
                            bool positive_only) noexcept {
  float ones[kBlock];
  std::fill(ones, ones + kBlock, 1.0f);
  for (int64_t i = 0; i < n; i += kBlock, in += kBlock, out += 18) {
    const float* w = ones;
    int first_edge = kFirstEdge;
    if (importance) {
      float total = 0;
      for (int k = 0; k < kBlock; ++k) total += importance[i + k];
      if (total > 0) {
        w = importance + i;
        first_edge = kFirstWeightedEdge;
      }
    }
    float max_lanes[8] = {};
    for (int k = 0; k < kBlock; k += 8) {
      for (int l = 0; l < 8; ++l) {
        const float magnitude = std::abs(in[k + l]);
        max_lanes[l] = magnitude > max_lanes[l] ? magnitude : max_lanes[l];
      }
    }
    const float max = *std::max_element(max_lanes, max_lanes + 8);
    // Not even the smallest scale, 2^-24, would give any element another code than 0.
    const float d = max <= 0x1p-25f ? 0 : best_scale(in, w, max, first_edge, positive_only);
    store_u16(out, float_to_half(d));
    if (d == 0) {
      std::memset(out + 2, 0x55, 16);
    } else {
      put_codes(in, Thresholds(d), out + 2);
    }
  }
}

}  // namespace
}  // namespace penstock::quant
