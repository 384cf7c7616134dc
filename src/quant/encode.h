// Shared pieces of the encoders (spec/gguf-quants.md §8, §10). Sums run over eight lanes that are
// added in a fixed order, so that the compiler can use vectors and results stay the same
// everywhere.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "quant/half.h"

namespace penstock::quant {

// One row each; n is a multiple of the block, importance may be null.
using Encoder = void (*)(const float* in, uint8_t* out, int64_t n,
                         const float* importance) noexcept;
void encode_q2_0(const float* in, uint8_t* out, int64_t n, const float* importance) noexcept;
void encode_q4_k(const float* in, uint8_t* out, int64_t n, const float* importance) noexcept;
void encode_q5_k(const float* in, uint8_t* out, int64_t n, const float* importance) noexcept;
void encode_q6_k(const float* in, uint8_t* out, int64_t n, const float* importance) noexcept;

// Half to even, for |x| < 2^22.
inline float round_even(float x) noexcept {
  return (x + 12582912.0f) - 12582912.0f;
}

inline float clamp_to(float x, float low, float high) noexcept {
  return std::min(std::max(x, low), high);
}

inline float sum_lanes(const float (&l)[8]) noexcept {
  return ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]));
}

// fp16 of a scale, kept finite.
inline uint16_t scale_bits(float d) noexcept {
  return float_to_half(clamp_to(d, -65504.0f, 65504.0f));
}

inline void store_u16(uint8_t* p, uint16_t value) noexcept {
  std::memcpy(p, &value, sizeof(value));
}

// The element of largest magnitude, with its sign.
inline float extreme(const float* x, int n) noexcept {
  float best = 0;
  for (int i = 0; i < n; ++i) {
    if (std::abs(x[i]) > std::abs(best)) best = x[i];
  }
  return best;
}

// Blocks whose values are all below this hold nothing that an fp16 scale could express.
inline constexpr float kNothing = 0x1p-40f;

// Weights of a block's squared errors: importance_i * sqrt(c * mean(x^2) + x_i^2) (§8), or 1.
// Importance that is zero throughout says nothing and counts as absent.
inline void error_weights(const float* x, const float* importance, int n, float mean_square,
                          float c, float* w) noexcept {
  float total = 0;
  if (importance) {
    for (int i = 0; i < n; ++i) {
      w[i] = importance[i] * std::sqrt(c * mean_square + x[i] * x[i]);
      total += w[i];
    }
  }
  if (!(total > 0)) {
    for (int i = 0; i < n; ++i) w[i] = 1;
  }
}

inline float mean_square(const float* x, int n) noexcept {
  float l[8] = {};
  for (int i = 0; i < n; i += 8) {
    for (int k = 0; k < 8; ++k) l[k] += x[i + k] * x[i + k];
  }
  return sum_lanes(l) / static_cast<float>(n);
}

// The scale s that makes s * q, q in [-nmax, nmax - 1], fit x best (§10.1, symmetric fit). The
// extreme element is tried at and around code -nmax, the end with one more step.
template <int kN>
float fit_symmetric(const float* x, const float* w, int nmax) noexcept {
  const float v = extreme(x, kN);
  if (std::abs(v) < kNothing) return 0;
  float best_xq = 0, best_qq = 1;
  for (int r = -9; r <= 9; ++r) {
    const float inverse = -(static_cast<float>(nmax) + 0.1f * static_cast<float>(r)) / v;
    float xq[8] = {}, qq[8] = {};
    for (int i = 0; i < kN; i += 8) {
      for (int k = 0; k < 8; ++k) {
        const float q = clamp_to(round_even(x[i + k] * inverse), static_cast<float>(-nmax),
                                 static_cast<float>(nmax - 1));
        const float wq = w[i + k] * q;
        xq[k] += wq * x[i + k];
        qq[k] += wq * q;
      }
    }
    const float sum_xq = sum_lanes(xq), sum_qq = sum_lanes(qq);
    if (sum_qq > 0 && sum_xq * sum_xq * best_qq > best_xq * best_xq * sum_qq) {
      best_xq = sum_xq;
      best_qq = sum_qq;
    }
  }
  return best_xq / best_qq;
}

// x ~ scale * q + offset with q in [0, nmax].
struct OffsetFit {
  float scale;
  float offset;
};

// Weighted least squares over trial step counts (§10.1, fit with offset). With kBelowZero the
// offset is forced to be <= 0, as types that store -offset need it.
template <int kN, bool kBelowZero>
OffsetFit fit_offset(const float* x, const float* w, int nmax, float first, float step,
                     int trials) noexcept {
  float low = x[0], high = x[0];
  for (int i = 1; i < kN; ++i) {
    low = std::min(low, x[i]);
    high = std::max(high, x[i]);
  }
  if (kBelowZero) low = std::min(low, 0.0f);
  if (high - low < kNothing) return {0, low};
  float lw[8] = {}, lx[8] = {}, lxx[8] = {};
  for (int i = 0; i < kN; i += 8) {
    for (int k = 0; k < 8; ++k) {
      const float wx = w[i + k] * x[i + k];
      lw[k] += w[i + k];
      lx[k] += wx;
      lxx[k] += wx * x[i + k];
    }
  }
  const double sw = sum_lanes(lw), sx = sum_lanes(lx), sxx = sum_lanes(lxx);
  OffsetFit best{(high - low) / static_cast<float>(nmax), low};
  double best_error = HUGE_VAL;
  for (int trial = -1; trial < trials; ++trial) {  // -1: the plain range
    const float steps =
        static_cast<float>(nmax) + (trial < 0 ? 0 : first + step * static_cast<float>(trial));
    const float inverse = steps / (high - low);
    float lq[8] = {}, lqq[8] = {}, lxq[8] = {};
    for (int i = 0; i < kN; i += 8) {
      for (int k = 0; k < 8; ++k) {
        const float q =
            clamp_to(round_even((x[i + k] - low) * inverse), 0.0f, static_cast<float>(nmax));
        const float wq = w[i + k] * q;
        lq[k] += wq;
        lqq[k] += wq * q;
        lxq[k] += wq * x[i + k];
      }
    }
    const double sq = sum_lanes(lq), sqq = sum_lanes(lqq), sxq = sum_lanes(lxq);
    const double determinant = sw * sqq - sq * sq;
    if (!(determinant > 0) || !(sqq > 0)) continue;
    double scale = (sw * sxq - sx * sq) / determinant;
    double offset = (sqq * sx - sq * sxq) / determinant;
    if (kBelowZero && offset > 0) {
      offset = 0;
      scale = sxq / sqq;
    }
    const double error =
        sxx + scale * (scale * sqq - 2 * sxq) + offset * (offset * sw - 2 * sx + 2 * scale * sq);
    if (error < best_error) {
      best_error = error;
      best = {static_cast<float>(scale), static_cast<float>(offset)};
    }
  }
  return best;
}

}  // namespace penstock::quant
