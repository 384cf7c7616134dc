// Helpers of the NEON kernels. Included only by neon_base.cpp and neon_dot.cpp, which give the same
// code two instruction sets; everything here has internal linkage, so that the two cannot mix.
//
// PENSTOCK_NEON_DOT is 1 where the processor's dot product instruction may be used and 0 for base
// NEON, which forms the same sums in two steps.
#pragma once

#include <arm_neon.h>

#include <cstring>
#include <utility>

#include "quant/activation.h"
#include "quant/kernels.h"

namespace penstock::quant {
namespace {

#define PENSTOCK_INLINE inline __attribute__((always_inline))

// acc[i] + the products of elements 4i .. 4i+3. An int16 lane of base NEON holds two products:
// weights reach -128, activations 127.
PENSTOCK_INLINE int32x4_t dot(int32x4_t acc, int8x16_t w, int8x16_t a) noexcept {
#if PENSTOCK_NEON_DOT
  return vdotq_s32(acc, w, a);
#else
  const int16x8_t low = vmull_s8(vget_low_s8(w), vget_low_s8(a));
  return vpadalq_s16(acc, vpaddq_s16(low, vmull_high_s8(w, a)));
#endif
}

// The same sixteen products where only the sum of the lanes counts.
PENSTOCK_INLINE int32x4_t dot_total(int32x4_t acc, int8x16_t w, int8x16_t a) noexcept {
#if PENSTOCK_NEON_DOT
  return vdotq_s32(acc, w, a);
#else
  return vpadalq_s16(acc, vmlal_high_s8(vmull_s8(vget_low_s8(w), vget_low_s8(a)), w, a));
#endif
}

// acc[i] + the products of weights 4i .. 4i+3 (row i's) with elements 4 kLane .. 4 kLane + 3.
template <int kLane>
PENSTOCK_INLINE int32x4_t dot_lane(int32x4_t acc, int8x16_t w, int8x16_t a) noexcept {
#if PENSTOCK_NEON_DOT
  return vdotq_laneq_s32(acc, w, a, kLane);
#else
  return dot(acc, w, vreinterpretq_s8_s32(vdupq_laneq_s32(vreinterpretq_s32_s8(a), kLane)));
#endif
}

// Lane r of the result is the sum of the lanes of v[r].
PENSTOCK_INLINE int32x4_t reduce4(const int32x4_t* v) noexcept {
  return vpaddq_s32(vpaddq_s32(v[0], v[1]), vpaddq_s32(v[2], v[3]));
}

// The fp16 numbers at p[0..3] + offset as f32 lanes.
PENSTOCK_INLINE float32x4_t halves4(const uint8_t* const* p, size_t offset) noexcept {
  uint64_t bits = 0;
  for (int r = 0; r < 4; ++r) {
    uint16_t half;
    std::memcpy(&half, p[r] + offset, sizeof(half));
    bits |= static_cast<uint64_t>(half) << (16 * r);
  }
  return vcvt_f32_f16(vreinterpret_f16_u64(vcreate_u64(bits)));
}

// Pointers to kRows rows from `row` on; beyond the last row they repeat it, and those results are
// dropped.
template <int kRows>
PENSTOCK_INLINE void row_pointers(const MatmulTile& tile, int64_t row, const uint8_t** p) noexcept {
  for (int64_t i = 0; i < kRows; ++i) {
    const int64_t r = row + i < tile.n_rows ? row + i : tile.n_rows - 1;
    p[i] = reinterpret_cast<const uint8_t*>(tile.weights) + static_cast<size_t>(r) * tile.row_bytes;
  }
}

// Stores the first `count` lanes.
PENSTOCK_INLINE void store_lanes(float* out, float32x4_t v, int64_t count) noexcept {
  if (count >= 4) {
    vst1q_f32(out, v);
  } else if (count > 0) {
    float lanes[4];
    vst1q_f32(lanes, v);
    std::memcpy(out, lanes, static_cast<size_t>(count) * sizeof(float));
  }
}

template <class Body, int... kIndex>
PENSTOCK_INLINE void unroll_over(Body& body, std::integer_sequence<int, kIndex...>) noexcept {
  (body(std::integral_constant<int, kIndex>{}), ...);
}
// Calls body(0), body(1), .. body(kCount - 1) with compile-time numbers.
template <int kCount, class Body>
PENSTOCK_INLINE void unroll(Body body) noexcept {
  unroll_over(body, std::make_integer_sequence<int, kCount>{});
}

// Low, then high nibbles of 16 bytes: byte j holds elements j and j + 16.
PENSTOCK_INLINE int8x16x2_t nibbles(const uint8_t* p) noexcept {
  const uint8x16_t q = vld1q_u8(p);
  return {vreinterpretq_s8_u8(vandq_u8(q, vdupq_n_u8(15))), vreinterpretq_s8_u8(vshrq_n_u8(q, 4))};
}

PENSTOCK_INLINE int8x16x2_t add(int8x16x2_t q, int8_t value) noexcept {
  return {vaddq_s8(q.val[0], vdupq_n_s8(value)), vaddq_s8(q.val[1], vdupq_n_s8(value))};
}

PENSTOCK_INLINE int8x16x2_t look_up(const int8_t (&values)[16], int8x16x2_t q) noexcept {
  const int8x16_t table = vld1q_s8(values);
  return {vqtbl1q_s8(table, vreinterpretq_u8_s8(q.val[0])),
          vqtbl1q_s8(table, vreinterpretq_u8_s8(q.val[1]))};
}

// 0xff in lane i where bit i of the 16 is set.
PENSTOCK_INLINE uint8x16_t bit_mask(uint8_t low, uint8_t high) noexcept {
  const uint8x16_t bits = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201u));
  return vtstq_u8(vcombine_u8(vdup_n_u8(low), vdup_n_u8(high)), bits);
}

// Each family adds its kernels to the table.
void add_floats(KernelTable& table) noexcept;
void add_small(KernelTable& table) noexcept;
void add_large(KernelTable& table) noexcept;
void add_activations(KernelTable& table) noexcept;

}  // namespace
}  // namespace penstock::quant
