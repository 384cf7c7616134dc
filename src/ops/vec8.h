// Eight float lanes with the same results on every instruction set: each operation is one IEEE
// operation per lane, and the horizontal ones have a fixed order. Included only by the kernels'
// translation units, each of which is one instruction set, in a namespace of its own.
//
// PENSTOCK_OPS_ISA names that namespace and must be defined first.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(PENSTOCK_OPS_AVX2)
#include <immintrin.h>
#elif defined(PENSTOCK_OPS_NEON)
#include <arm_neon.h>
#endif

namespace penstock::ops::PENSTOCK_OPS_ISA {

#if defined(PENSTOCK_OPS_AVX2)

struct Vec8 {
  __m256 v;
};
inline Vec8 load(const float* p) {
  return {_mm256_loadu_ps(p)};
}
inline void store(float* p, Vec8 a) {
  _mm256_storeu_ps(p, a.v);
}
inline Vec8 splat(float x) {
  return {_mm256_set1_ps(x)};
}
inline Vec8 add(Vec8 a, Vec8 b) {
  return {_mm256_add_ps(a.v, b.v)};
}
inline Vec8 sub(Vec8 a, Vec8 b) {
  return {_mm256_sub_ps(a.v, b.v)};
}
inline Vec8 mul(Vec8 a, Vec8 b) {
  return {_mm256_mul_ps(a.v, b.v)};
}
inline Vec8 div(Vec8 a, Vec8 b) {
  return {_mm256_div_ps(a.v, b.v)};
}
inline Vec8 fma(Vec8 a, Vec8 b, Vec8 c) {
  return {_mm256_fmadd_ps(a.v, b.v, c.v)};
}
// a > b ? a : b and a < b ? a : b, so b where either is NaN.
inline Vec8 max(Vec8 a, Vec8 b) {
  return {_mm256_max_ps(a.v, b.v)};
}
inline Vec8 min(Vec8 a, Vec8 b) {
  return {_mm256_min_ps(a.v, b.v)};
}
// a < b ? x : y; false for NaN
inline Vec8 select_less(Vec8 a, Vec8 b, Vec8 x, Vec8 y) {
  return {_mm256_blendv_ps(y.v, x.v, _mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ))};
}
// a is NaN ? a : y
inline Vec8 keep_nan(Vec8 a, Vec8 y) {
  return {_mm256_blendv_ps(y.v, a.v, _mm256_cmp_ps(a.v, a.v, _CMP_UNORD_Q))};
}
// The low bits of t hold an integer n in -126..127: 2^n.
inline Vec8 exp2_of_low_bits(Vec8 t) {
  const __m256i n = _mm256_slli_epi32(_mm256_castps_si256(t.v), 23);
  return {_mm256_castsi256_ps(_mm256_add_epi32(n, _mm256_set1_epi32(0x3f800000)))};
}
// ((l0+l4)+(l2+l6)) + ((l1+l5)+(l3+l7))
inline float sum(Vec8 a) {
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
inline Vec8 load_half(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}

#elif defined(PENSTOCK_OPS_NEON)

struct Vec8 {
  float32x4_t lo, hi;
};
inline Vec8 load(const float* p) {
  return {vld1q_f32(p), vld1q_f32(p + 4)};
}
inline void store(float* p, Vec8 a) {
  vst1q_f32(p, a.lo);
  vst1q_f32(p + 4, a.hi);
}
inline Vec8 splat(float x) {
  return {vdupq_n_f32(x), vdupq_n_f32(x)};
}
inline Vec8 add(Vec8 a, Vec8 b) {
  return {vaddq_f32(a.lo, b.lo), vaddq_f32(a.hi, b.hi)};
}
inline Vec8 sub(Vec8 a, Vec8 b) {
  return {vsubq_f32(a.lo, b.lo), vsubq_f32(a.hi, b.hi)};
}
inline Vec8 mul(Vec8 a, Vec8 b) {
  return {vmulq_f32(a.lo, b.lo), vmulq_f32(a.hi, b.hi)};
}
inline Vec8 div(Vec8 a, Vec8 b) {
  return {vdivq_f32(a.lo, b.lo), vdivq_f32(a.hi, b.hi)};
}
inline Vec8 fma(Vec8 a, Vec8 b, Vec8 c) {
  return {vfmaq_f32(c.lo, a.lo, b.lo), vfmaq_f32(c.hi, a.hi, b.hi)};
}
inline Vec8 max(Vec8 a, Vec8 b) {
  return {vbslq_f32(vcgtq_f32(a.lo, b.lo), a.lo, b.lo),
          vbslq_f32(vcgtq_f32(a.hi, b.hi), a.hi, b.hi)};
}
inline Vec8 min(Vec8 a, Vec8 b) {
  return {vbslq_f32(vcltq_f32(a.lo, b.lo), a.lo, b.lo),
          vbslq_f32(vcltq_f32(a.hi, b.hi), a.hi, b.hi)};
}
inline Vec8 select_less(Vec8 a, Vec8 b, Vec8 x, Vec8 y) {
  return {vbslq_f32(vcltq_f32(a.lo, b.lo), x.lo, y.lo),
          vbslq_f32(vcltq_f32(a.hi, b.hi), x.hi, y.hi)};
}
inline Vec8 keep_nan(Vec8 a, Vec8 y) {
  return {vbslq_f32(vceqq_f32(a.lo, a.lo), y.lo, a.lo),
          vbslq_f32(vceqq_f32(a.hi, a.hi), y.hi, a.hi)};
}
inline Vec8 exp2_of_low_bits(Vec8 t) {
  const int32x4_t one = vdupq_n_s32(0x3f800000);
  const int32x4_t lo = vshlq_n_s32(vreinterpretq_s32_f32(t.lo), 23);
  const int32x4_t hi = vshlq_n_s32(vreinterpretq_s32_f32(t.hi), 23);
  return {vreinterpretq_f32_s32(vaddq_s32(lo, one)), vreinterpretq_f32_s32(vaddq_s32(hi, one))};
}
inline float sum(Vec8 a) {
  const float32x4_t four = vaddq_f32(a.lo, a.hi);
  const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
  return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
inline Vec8 load_half(const uint16_t* p) {
  const uint16x8_t h = vld1q_u16(p);
  return {vcvt_f32_f16(vreinterpret_f16_u16(vget_low_u16(h))),
          vcvt_f32_f16(vreinterpret_f16_u16(vget_high_u16(h)))};
}

#else

struct Vec8 {
  float v[8];
};

template <typename F>
inline Vec8 each(F f) {
  Vec8 r;
  for (int i = 0; i < 8; ++i) r.v[i] = f(i);
  return r;
}
inline uint32_t bits_of(float x) {
  uint32_t u;
  std::memcpy(&u, &x, 4);
  return u;
}
inline float float_of(uint32_t u) {
  float x;
  std::memcpy(&x, &u, 4);
  return x;
}
inline Vec8 load(const float* p) {
  return each([&](int i) { return p[i]; });
}
inline void store(float* p, const Vec8& a) {
  std::memcpy(p, a.v, sizeof a.v);
}
inline Vec8 splat(float x) {
  return each([&](int) { return x; });
}
inline Vec8 add(const Vec8& a, const Vec8& b) {
  return each([&](int i) { return a.v[i] + b.v[i]; });
}
inline Vec8 sub(const Vec8& a, const Vec8& b) {
  return each([&](int i) { return a.v[i] - b.v[i]; });
}
inline Vec8 mul(const Vec8& a, const Vec8& b) {
  return each([&](int i) { return a.v[i] * b.v[i]; });
}
inline Vec8 div(const Vec8& a, const Vec8& b) {
  return each([&](int i) { return a.v[i] / b.v[i]; });
}
inline Vec8 fma(const Vec8& a, const Vec8& b, const Vec8& c) {
  return each([&](int i) { return std::fma(a.v[i], b.v[i], c.v[i]); });
}
inline Vec8 max(const Vec8& a, const Vec8& b) {
  return each([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline Vec8 min(const Vec8& a, const Vec8& b) {
  return each([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
inline Vec8 select_less(const Vec8& a, const Vec8& b, const Vec8& x, const Vec8& y) {
  return each([&](int i) { return a.v[i] < b.v[i] ? x.v[i] : y.v[i]; });
}
inline Vec8 keep_nan(const Vec8& a, const Vec8& y) {
  return each([&](int i) { return std::isnan(a.v[i]) ? a.v[i] : y.v[i]; });
}
inline Vec8 exp2_of_low_bits(const Vec8& t) {
  return each([&](int i) { return float_of((bits_of(t.v[i]) << 23) + 0x3f800000u); });
}
inline float sum(const Vec8& a) {
  return ((a.v[0] + a.v[4]) + (a.v[2] + a.v[6])) + ((a.v[1] + a.v[5]) + (a.v[3] + a.v[7]));
}
inline float half_value(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t exponent = (h >> 10) & 31u;
  const uint32_t fraction = h & 1023u;
  if (exponent == 31) return float_of(sign | 0x7f800000u | (fraction << 13));
  if (exponent == 0) {  // zero and subnormals: fraction * 2^-24 is exact
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return sign ? -magnitude : magnitude;
  }
  return float_of(sign | ((exponent + 112) << 23) | (fraction << 13));
}
inline Vec8 load_half(const uint16_t* p) {
  return each([&](int i) { return half_value(p[i]); });
}

#endif

// The last n < 8 elements, the other lanes zero.
inline Vec8 load_some(const float* p, int64_t n) {
  float t[8] = {};
  std::memcpy(t, p, static_cast<size_t>(n) * sizeof(float));
  return load(t);
}
inline void store_some(float* p, Vec8 a, int64_t n) {
  float t[8];
  store(t, a);
  std::memcpy(p, t, static_cast<size_t>(n) * sizeof(float));
}

// exp to 2 ulp on [-87.3, 88.37]; 0 below, exp(88.37) above, NaN stays. n = round(x log2 e) by the
// magic number 1.5 * 2^23, whose low mantissa bits then hold n; ln 2 in two parts; Taylor to r^7
// (|r| <= 0.3466: the rest is below 6e-9).
inline Vec8 exp(Vec8 x) {
  const Vec8 low = splat(-87.3f);
  const Vec8 clamped = min(max(x, low), splat(88.37f));
  const Vec8 magic = splat(12582912.0f);
  const Vec8 t = fma(clamped, splat(1.44269504f), magic);
  const Vec8 n = sub(t, magic);
  Vec8 r = fma(n, splat(-0.693145752f), clamped);  // 0x1.62e4p-1
  r = fma(n, splat(-1.42860677e-6f), r);
  Vec8 p = splat(1.0f / 5040.0f);
  p = fma(p, r, splat(1.0f / 720.0f));
  p = fma(p, r, splat(1.0f / 120.0f));
  p = fma(p, r, splat(1.0f / 24.0f));
  p = fma(p, r, splat(1.0f / 6.0f));
  p = fma(p, r, splat(0.5f));
  p = fma(p, r, splat(1.0f));
  p = fma(p, r, splat(1.0f));
  const Vec8 value = mul(p, exp2_of_low_bits(t));
  return keep_nan(x, select_less(x, low, splat(0.0f), value));
}

inline Vec8 sigmoid(Vec8 x) {
  const Vec8 one = splat(1.0f);
  return div(one, add(one, exp(sub(splat(0.0f), x))));
}
inline Vec8 silu(Vec8 x) {
  return mul(x, sigmoid(x));
}

}  // namespace penstock::ops::PENSTOCK_OPS_ISA
