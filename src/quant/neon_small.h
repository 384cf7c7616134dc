// Block readers of the types with less than 256 elements per block (spec/gguf-quants.md §7.2, §7.9)
// and the GEMV of Q2_0, the type of the experts that matter most.
#pragma once

#include "quant/codebooks.h"
#include "quant/neon_drivers.h"
#include "quant/unpack.h"

namespace penstock::quant {
namespace {

// Adds 16 where the element's bit of the 32 at p is set.
PENSTOCK_INLINE int8x16x2_t fifth_bits(int8x16x2_t q, const uint8_t* p) noexcept {
  const uint8x16_t sixteen = vdupq_n_u8(16);
  const uint8x16_t low = vandq_u8(bit_mask(p[0], p[1]), sixteen);
  const uint8x16_t high = vandq_u8(bit_mask(p[2], p[3]), sixteen);
  return {vorrq_s8(q.val[0], vreinterpretq_s8_u8(low)),
          vorrq_s8(q.val[1], vreinterpretq_s8_u8(high))};
}

// 16 two-bit codes in the order of the elements, from the four bytes at p.
PENSTOCK_INLINE uint8x16_t two_bit_codes(const uint8_t* p) noexcept {
  const uint8x16_t spread = {0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3};
  const int8x16_t shifts = vreinterpretq_s8_u32(vdupq_n_u32(0xfafcfe00u));  // 0, -2, -4, -6
  const uint8x16_t bytes = vqtbl1q_u8(vreinterpretq_u8_u32(vdupq_n_u32(load_u32(p))), spread);
  return vandq_u8(vshlq_u8(bytes, shifts), vdupq_n_u8(3));
}

template <TypeId kType>
struct SmallType {
  static constexpr TypeId kId = kType;
  static constexpr size_t kBytes = gguf::type_info(kType).block_bytes;
  static constexpr int kWidth = 32;
  static constexpr int kParts = static_cast<int>(gguf::type_info(kType).block_elems / 32);
  static constexpr bool kHasOffset = false;
  static PENSTOCK_INLINE float32x4_t scales4(const uint8_t* const* p, size_t at, int) noexcept {
    return halves4(p, at);
  }
  static PENSTOCK_INLINE float32x4_t offsets4(const uint8_t* const* p, size_t at) noexcept {
    return halves4(p, at + 2);
  }
};

struct Q4_0 : SmallType<TypeId::Q4_0> {
  static PENSTOCK_INLINE int8x16x2_t codes(const uint8_t* x, int) noexcept {
    return add(nibbles(x + 2), -8);
  }
};

struct Q4_1 : SmallType<TypeId::Q4_1> {
  static constexpr bool kHasOffset = true;
  static PENSTOCK_INLINE int8x16x2_t codes(const uint8_t* x, int) noexcept {
    return nibbles(x + 4);
  }
};

struct Q5_0 : SmallType<TypeId::Q5_0> {
  static PENSTOCK_INLINE int8x16x2_t codes(const uint8_t* x, int) noexcept {
    return add(fifth_bits(nibbles(x + 6), x + 2), -16);
  }
};

struct Q5_1 : SmallType<TypeId::Q5_1> {
  static constexpr bool kHasOffset = true;
  static PENSTOCK_INLINE int8x16x2_t codes(const uint8_t* x, int) noexcept {
    return fifth_bits(nibbles(x + 8), x + 4);
  }
};

struct Q8_0 : SmallType<TypeId::Q8_0> {
  static PENSTOCK_INLINE int8x16x2_t codes(const uint8_t* x, int) noexcept {
    return {vreinterpretq_s8_u8(vld1q_u8(x + 2)), vreinterpretq_s8_u8(vld1q_u8(x + 18))};
  }
};

struct Iq4Nl : SmallType<TypeId::IQ4_NL> {
  static PENSTOCK_INLINE int8x16x2_t codes(const uint8_t* x, int) noexcept {
    return look_up(kIq4nlValues, nibbles(x + 2));
  }
};

struct Mxfp4 : SmallType<TypeId::MXFP4> {
  static PENSTOCK_INLINE int8x16x2_t codes(const uint8_t* x, int) noexcept {
    return look_up(kMxfp4Values, nibbles(x + 1));
  }
  static PENSTOCK_INLINE float32x4_t scales4(const uint8_t* const* p, size_t at, int) noexcept {
    uint32_t bits[4];  // of 2^(e - 128)
    for (int r = 0; r < 4; ++r) {
      const uint32_t e = p[r][at];
      bits[r] = e < 2 ? 0x00200000u << e : (e - 1) << 23;
    }
    return vreinterpretq_f32_u32(vld1q_u32(bits));
  }
};

struct Nvfp4 : SmallType<TypeId::NVFP4> {
  static constexpr int kWidth = 16;
  static constexpr int kParts = 4;
  static PENSTOCK_INLINE int8x16x2_t codes(const uint8_t* x, int part) noexcept {
    const uint8x8_t q = vld1_u8(x + 4 + 8 * part);
    const uint8x16_t both = vcombine_u8(vand_u8(q, vdup_n_u8(15)), vshr_n_u8(q, 4));
    return {vqtbl1q_s8(vld1q_s8(kMxfp4Values), both), vdupq_n_s8(0)};
  }
  static PENSTOCK_INLINE float32x4_t scales4(const uint8_t* const* p, size_t at,
                                             int part) noexcept {
    float scales[4];
    for (int r = 0; r < 4; ++r)
      scales[r] = 0.5f * ue4m3_to_float(p[r][at + static_cast<size_t>(part)]);
    return vld1q_f32(scales);
  }
};

struct Q2_0 : SmallType<TypeId::Q2_0> {
  static PENSTOCK_INLINE int8x16x2_t codes(const uint8_t* x, int part) noexcept {
    const uint8_t* q = x + 2 + 8 * part;
    return add({vreinterpretq_s8_u8(two_bit_codes(q)), vreinterpretq_s8_u8(two_bit_codes(q + 4))},
               -1);
  }
};

struct Q1_0 : SmallType<TypeId::Q1_0> {
  static PENSTOCK_INLINE int8x16x2_t codes(const uint8_t* x, int part) noexcept {
    const uint8_t* q = x + 2 + 4 * part;
    const uint8x16_t two = vdupq_n_u8(2);
    return add({vreinterpretq_s8_u8(vandq_u8(bit_mask(q[0], q[1]), two)),
                vreinterpretq_s8_u8(vandq_u8(bit_mask(q[2], q[3]), two))},
               -1);
  }
};

// Lanes 0 and 1 add up to the products of elements 0..31 of a Q2_0 block with unsigned codes, lanes
// 2 and 3 to those of 32..63. a.val[j] holds every fourth activation from j on, just as bits 2j of
// the code bytes hold every fourth code: nothing needs to be put in order.
PENSTOCK_INLINE int32x4_t multiply_q2_0(uint8x16_t q, const int8x16x4_t& a) noexcept {
  const uint8x16_t three = vdupq_n_u8(3);
  const int8x16_t c[4] = {vreinterpretq_s8_u8(vandq_u8(q, three)),
                          vreinterpretq_s8_u8(vandq_u8(vshrq_n_u8(q, 2), three)),
                          vreinterpretq_s8_u8(vandq_u8(vshrq_n_u8(q, 4), three)),
                          vreinterpretq_s8_u8(vshrq_n_u8(q, 6))};
#if PENSTOCK_NEON_DOT
  int32x4_t sum = vdupq_n_s32(0);
  for (int j = 0; j < 4; ++j) sum = vdotq_s32(sum, c[j], a.val[j]);
  return sum;
#else
  // Eight products of at most 3 * 127 fit an int16 lane.
  int16x8_t low = vmull_s8(vget_low_s8(c[0]), vget_low_s8(a.val[0]));
  int16x8_t high = vmull_high_s8(c[0], a.val[0]);
  for (int j = 1; j < 4; ++j) {
    low = vmlal_s8(low, vget_low_s8(c[j]), vget_low_s8(a.val[j]));
    high = vmlal_high_s8(high, c[j], a.val[j]);
  }
  return vpaddlq_s16(vpaddq_s16(low, high));
#endif
}

void gemv_q2_0(const MatmulTile& tile) noexcept {
  for (int64_t row = 0; row < tile.n_rows; row += 4) {
    const uint8_t* p[4];
    row_pointers<4>(tile, row, p);
    for (int64_t t = 0; t < tile.n_tokens; ++t) {
      const Act32 act(tile.acts[t], tile.n_in);
      float32x4_t acc = vdupq_n_f32(0);
      size_t at = 0;
      for (int64_t k = 0; k < tile.n_in / 32; k += 2, at += Q2_0::kBytes) {
        const int8x16x4_t a = vld4q_s8(act.codes + 32 * k);
        int32x4_t v[4];
        for (int r = 0; r < 4; ++r) v[r] = multiply_q2_0(vld1q_u8(p[r] + at + 2), a);
        const int32x4_t first = vpaddq_s32(v[0], v[1]), second = vpaddq_s32(v[2], v[3]);
        const float32x4_t d = halves4(p, at);
        // The codes stand for code - 1.
        const int32x4_t low = vsubq_s32(vuzp1q_s32(first, second), vdupq_n_s32(act.sums[k]));
        acc = vfmaq_f32(acc, vmulq_n_f32(d, act.scales[k]), vcvtq_f32_s32(low));
        const int32x4_t high = vsubq_s32(vuzp2q_s32(first, second), vdupq_n_s32(act.sums[k + 1]));
        acc = vfmaq_f32(acc, vmulq_n_f32(d, act.scales[k + 1]), vcvtq_f32_s32(high));
      }
      store_lanes(tile.out[t] + row, acc, tile.n_rows - row);
    }
  }
}

template <class... P>
void add_small_types(KernelTable& table) noexcept {
  ((table[P::kId] = {gemv_small<P>, gemm<SmallPanel<P>>, 4}), ...);
}

void add_small(KernelTable& table) noexcept {
  add_small_types<Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Iq4Nl, Mxfp4, Nvfp4, Q1_0>(table);
  table[TypeId::Q2_0] = {gemv_q2_0, gemm<SmallPanel<Q2_0>>, 4};
}

}  // namespace
}  // namespace penstock::quant
