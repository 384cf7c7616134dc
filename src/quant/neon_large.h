// Block readers of the types with 256 elements per block (spec/gguf-quants.md §7.3 - §7.8).
#pragma once

#include "quant/codebooks.h"
#include "quant/half.h"
#include "quant/neon_drivers.h"
#include "quant/unpack.h"

namespace penstock::quant {
namespace {

template <TypeId kType, int kScaleGroup, size_t kScaleAt>
struct LargeType {
  static constexpr TypeId kId = kType;
  static constexpr size_t kBytes = gguf::type_info(kType).block_bytes;
  static constexpr int kGroup = kScaleGroup;
  static constexpr bool kMins = false;

  explicit LargeType(const uint8_t* block) noexcept : x(block) {}
  static PENSTOCK_INLINE float32x4_t d4(const uint8_t* const* p, size_t at) noexcept {
    return halves4(p, at + kScaleAt);
  }
  static PENSTOCK_INLINE float32x4_t dmin4(const uint8_t* const* p, size_t at) noexcept {
    return halves4(p, at + kScaleAt + 2);
  }

  const uint8_t* x;
};

PENSTOCK_INLINE int8x16x2_t as_signed(uint8x16_t low, uint8x16_t high) noexcept {
  return {vreinterpretq_s8_u8(low), vreinterpretq_s8_u8(high)};
}

// Bits kShift and kShift + 1 of each byte.
template <int kShift>
PENSTOCK_INLINE uint8x16_t two_bits(uint8x16_t q) noexcept {
  if constexpr (kShift == 0) {
    return vandq_u8(q, vdupq_n_u8(3));
  } else if constexpr (kShift == 6) {
    return vshrq_n_u8(q, 6);
  } else {
    return vandq_u8(vshrq_n_u8(q, kShift), vdupq_n_u8(3));
  }
}

// The nibble of each byte that group kIndex (even: low, odd: high) uses.
template <int kIndex>
PENSTOCK_INLINE uint8x16_t nibble(uint8x16_t q) noexcept {
  if constexpr (kIndex % 2 == 0) {
    return vandq_u8(q, vdupq_n_u8(15));
  } else {
    return vshrq_n_u8(q, 4);
  }
}

// `value` where bit kBit of the byte is set.
template <int kBit>
PENSTOCK_INLINE uint8x16_t if_bit(uint8x16_t q, uint8_t value) noexcept {
  return vandq_u8(vtstq_u8(q, vdupq_n_u8(1 << kBit)), vdupq_n_u8(value));
}

PENSTOCK_INLINE int16x8x2_t widen(uint8x16_t v) noexcept {
  return {vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(v))), vreinterpretq_s16_u16(vmovl_high_u8(v))};
}
PENSTOCK_INLINE int16x8x2_t widen(int8x16_t v) noexcept {
  return {vmovl_s8(vget_low_s8(v)), vmovl_high_s8(v)};
}
PENSTOCK_INLINE int16x8x2_t widen(uint8x8_t v) noexcept {
  return {vreinterpretq_s16_u16(vmovl_u8(v)), vdupq_n_s16(0)};
}

// Sixteen nibbles, the low one of each byte first.
PENSTOCK_INLINE uint8x16_t nibbles_in_order(uint8x8_t q) noexcept {
  const uint8x8_t low = vand_u8(q, vdup_n_u8(15)), high = vshr_n_u8(q, 4);
  return vcombine_u8(vzip1_u8(low, high), vzip2_u8(low, high));
}

PENSTOCK_INLINE uint8x16_t odd(uint8x16_t v) noexcept {  // 2 v + 1
  return vorrq_u8(vshlq_n_u8(v, 1), vdupq_n_u8(1));
}

struct Q2_K : LargeType<TypeId::Q2_K, 16, 80> {
  using LargeType::LargeType;
  static constexpr bool kMins = true;
  template <int g>
  PENSTOCK_INLINE int8x16x2_t codes() const noexcept {
    const uint8_t* q = x + 16 + 32 * (g / 4);
    return as_signed(two_bits<2 * (g % 4)>(vld1q_u8(q)), two_bits<2 * (g % 4)>(vld1q_u8(q + 16)));
  }
  PENSTOCK_INLINE int16x8x2_t scales() const noexcept { return widen(nibble<0>(vld1q_u8(x))); }
  PENSTOCK_INLINE int16x8x2_t mins() const noexcept { return widen(nibble<1>(vld1q_u8(x))); }
};

struct Q3_K : LargeType<TypeId::Q3_K, 16, 108> {
  using LargeType::LargeType;
  template <int g>
  PENSTOCK_INLINE int8x16x2_t codes() const noexcept {
    const uint8_t* q = x + 32 + 32 * (g / 4);
    const uint8x16_t low = two_bits<2 * (g % 4)>(vld1q_u8(q));
    const uint8x16_t high = two_bits<2 * (g % 4)>(vld1q_u8(q + 16));
    return add(as_signed(vorrq_u8(low, if_bit<g>(vld1q_u8(x), 4)),
                         vorrq_u8(high, if_bit<g>(vld1q_u8(x + 16), 4))),
               -4);
  }
  PENSTOCK_INLINE int16x8x2_t scales() const noexcept {
    const uint8x8_t bytes = vld1_u8(x + 96);
    const uint8x16_t low = vcombine_u8(vand_u8(bytes, vdup_n_u8(15)), vshr_n_u8(bytes, 4));
    const int8x16_t shifts = {0, 0, 0, 0, -2, -2, -2, -2, -4, -4, -4, -4, -6, -6, -6, -6};
    const uint8x16_t packed = vreinterpretq_u8_u32(vdupq_n_u32(load_u32(x + 104)));
    const uint8x16_t high = vandq_u8(vshlq_u8(packed, shifts), vdupq_n_u8(3));
    const uint8x16_t six = vorrq_u8(low, vshlq_n_u8(high, 4));
    return widen(vsubq_s8(vreinterpretq_s8_u8(six), vdupq_n_s8(32)));
  }
};

template <TypeId kType>
struct KWithMins : LargeType<kType, 32, 0> {
  static constexpr bool kMins = true;
  explicit KWithMins(const uint8_t* block) noexcept
      : LargeType<kType, 32, 0>(block), numbers(unpack_k_scales(block + 4)) {}
  PENSTOCK_INLINE int16x8x2_t scales() const noexcept { return widen(vcreate_u8(numbers.scales)); }
  PENSTOCK_INLINE int16x8x2_t mins() const noexcept { return widen(vcreate_u8(numbers.mins)); }
  KScales numbers;
};

struct Q4_K : KWithMins<TypeId::Q4_K> {
  using KWithMins::KWithMins;
  template <int g>
  PENSTOCK_INLINE int8x16x2_t codes() const noexcept {
    const uint8_t* q = x + 16 + 32 * (g / 2);
    return as_signed(nibble<g>(vld1q_u8(q)), nibble<g>(vld1q_u8(q + 16)));
  }
};

struct Q5_K : KWithMins<TypeId::Q5_K> {
  using KWithMins::KWithMins;
  template <int g>
  PENSTOCK_INLINE int8x16x2_t codes() const noexcept {
    const uint8_t* q = x + 48 + 32 * (g / 2);
    return as_signed(vorrq_u8(nibble<g>(vld1q_u8(q)), if_bit<g>(vld1q_u8(x + 16), 16)),
                     vorrq_u8(nibble<g>(vld1q_u8(q + 16)), if_bit<g>(vld1q_u8(x + 32), 16)));
  }
};

struct Q6_K : LargeType<TypeId::Q6_K, 16, 208> {
  using LargeType::LargeType;
  template <int g>
  PENSTOCK_INLINE int8x16x2_t codes() const noexcept {
    const uint8_t* low = x + 64 * (g / 4) + 32 * (g % 2);
    const uint8_t* high = x + 128 + 32 * (g / 4);
    return add(as_signed(join<g>(vld1q_u8(low), vld1q_u8(high)),
                         join<g>(vld1q_u8(low + 16), vld1q_u8(high + 16))),
               -32);
  }
  PENSTOCK_INLINE int16x8x2_t scales() const noexcept {
    return widen(vreinterpretq_s8_u8(vld1q_u8(x + 192)));
  }

 private:
  template <int g>
  static PENSTOCK_INLINE uint8x16_t join(uint8x16_t low, uint8x16_t high) noexcept {
    return vorrq_u8(nibble<g % 4 / 2>(low), vshlq_n_u8(two_bits<2 * (g % 4)>(high), 4));
  }
};

struct Iq4Xs : LargeType<TypeId::IQ4_XS, 32, 0> {
  using LargeType::LargeType;
  template <int g>
  PENSTOCK_INLINE int8x16x2_t codes() const noexcept {
    return look_up(kIq4nlValues, nibbles(x + 8 + 16 * g));
  }
  PENSTOCK_INLINE int16x8x2_t scales() const noexcept {
    const uint8x8_t low = vget_low_u8(nibbles_in_order(vcreate_u8(load_u32(x + 4))));
    const int16x8_t shifts = {0, -2, -4, -6, -8, -10, -12, -14};
    const uint16x8_t high =
        vandq_u16(vshlq_u16(vdupq_n_u16(load_u16(x + 2)), shifts), vdupq_n_u16(3));
    const uint16x8_t six = vorrq_u16(vmovl_u8(low), vshlq_n_u16(high, 4));
    return {vsubq_s16(vreinterpretq_s16_u16(six), vdupq_n_s16(32)), vdupq_n_s16(0)};
  }
};

struct Tq2_0 : LargeType<TypeId::TQ2_0, 32, 64> {
  using LargeType::LargeType;
  template <int g>
  PENSTOCK_INLINE int8x16x2_t codes() const noexcept {
    const uint8_t* q = x + 32 * (g / 4);
    return add(
        as_signed(two_bits<2 * (g % 4)>(vld1q_u8(q)), two_bits<2 * (g % 4)>(vld1q_u8(q + 16))), -1);
  }
  PENSTOCK_INLINE int16x8x2_t scales() const noexcept { return {vdupq_n_s16(1), vdupq_n_s16(1)}; }
};

// Two grid entries of eight codes, negated where the bits of the sign bytes are set.
PENSTOCK_INLINE int8x16_t octets(uint64_t first, uint64_t second, uint8_t first_signs,
                                 uint8_t second_signs) noexcept {
  const int8x16_t v = vcombine_s8(vcreate_s8(first), vcreate_s8(second));
  const int8x16_t minus = vreinterpretq_s8_u8(bit_mask(first_signs, second_signs));
  return vsubq_s8(veorq_s8(v, minus), minus);
}

PENSTOCK_INLINE uint64_t two_quads(uint32_t first, uint32_t second) noexcept {
  return first | static_cast<uint64_t>(second) << 32;
}

// The sign byte of octet l, of which w stores seven bits.
PENSTOCK_INLINE uint8_t even_signs(uint32_t w, int l) noexcept {
  return kEvenSigns[(w >> (7 * l)) & 127];
}

// 2 (w >> 28) + 1 of eight numbers w.
PENSTOCK_INLINE int16x8x2_t top_nibbles(uint32x4_t low, uint32x4_t high) noexcept {
  const uint16x8_t both =
      vcombine_u16(vmovn_u32(vshrq_n_u32(low, 28)), vmovn_u32(vshrq_n_u32(high, 28)));
  return {vreinterpretq_s16_u16(vorrq_u16(vshlq_n_u16(both, 1), vdupq_n_u16(1))), vdupq_n_s16(0)};
}

PENSTOCK_INLINE uint32x4_t load_words(const uint8_t* p) noexcept {
  return vreinterpretq_u32_u8(vld1q_u8(p));
}

template <TypeId kType, int kScaleGroup, int kFactorBits>
struct GridType : LargeType<kType, kScaleGroup, 0> {
  using LargeType<kType, kScaleGroup, 0>::LargeType;
  static PENSTOCK_INLINE float32x4_t d4(const uint8_t* const* p, size_t at) noexcept {
    return vmulq_n_f32(halves4(p, at), 1.0f / (1 << kFactorBits));  // exact
  }
};

struct Iq2Xxs : GridType<TypeId::IQ2_XXS, 32, 3> {
  using GridType::GridType;
  template <int g>
  PENSTOCK_INLINE int8x16x2_t codes() const noexcept {
    const uint8_t* i = x + 2 + 8 * g;
    const uint32_t w = load_u32(i + 4);
    return {octets(kIq2xxsGrid[i[0]], kIq2xxsGrid[i[1]], even_signs(w, 0), even_signs(w, 1)),
            octets(kIq2xxsGrid[i[2]], kIq2xxsGrid[i[3]], even_signs(w, 2), even_signs(w, 3))};
  }
  PENSTOCK_INLINE int16x8x2_t scales() const noexcept {
    return top_nibbles(vuzp2q_u32(load_words(x + 2), load_words(x + 18)),
                       vuzp2q_u32(load_words(x + 34), load_words(x + 50)));
  }
};

struct Iq2Xs : GridType<TypeId::IQ2_XS, 16, 3> {
  using GridType::GridType;
  template <int g>
  PENSTOCK_INLINE int8x16x2_t codes() const noexcept {
    return {two<0>(x + 2 + 8 * g), two<2>(x + 2 + 8 * g)};
  }
  PENSTOCK_INLINE int16x8x2_t scales() const noexcept {
    return widen(odd(nibbles_in_order(vld1_u8(x + 66))));
  }

 private:
  template <int l>
  static PENSTOCK_INLINE int8x16_t two(const uint8_t* p) noexcept {
    const uint32_t first = load_u16(p + 2 * l), second = load_u16(p + 2 * l + 2);
    return octets(kIq2xsGrid[first & 511], kIq2xsGrid[second & 511], kEvenSigns[first >> 9],
                  kEvenSigns[second >> 9]);
  }
};

struct Iq2S : GridType<TypeId::IQ2_S, 16, 3> {
  using GridType::GridType;
  template <int g>
  PENSTOCK_INLINE int8x16x2_t codes() const noexcept {
    return {two<g, 0>(), two<g, 2>()};
  }
  PENSTOCK_INLINE int16x8x2_t scales() const noexcept {
    return widen(odd(nibbles_in_order(vld1_u8(x + 74))));
  }

 private:
  template <int g, int l>
  PENSTOCK_INLINE int8x16_t two() const noexcept {
    const uint32_t high = x[66 + g];
    const uint8_t* low = x + 2 + 4 * g + l;
    return octets(kIq2sGrid[low[0] | (high << (8 - 2 * l) & 0x300)],
                  kIq2sGrid[low[1] | (high << (6 - 2 * l) & 0x300)], low[32], low[33]);
  }
};

struct Iq3Xxs : GridType<TypeId::IQ3_XXS, 32, 2> {
  using GridType::GridType;
  template <int g>
  PENSTOCK_INLINE int8x16x2_t codes() const noexcept {
    const uint8_t* i = x + 2 + 8 * g;
    const uint32_t w = load_u32(x + 66 + 4 * g);
    const auto entry = [i](int l) {
      return two_quads(kIq3xxsGrid[i[2 * l]], kIq3xxsGrid[i[2 * l + 1]]);
    };
    return {octets(entry(0), entry(1), even_signs(w, 0), even_signs(w, 1)),
            octets(entry(2), entry(3), even_signs(w, 2), even_signs(w, 3))};
  }
  PENSTOCK_INLINE int16x8x2_t scales() const noexcept {
    return top_nibbles(load_words(x + 66), load_words(x + 82));
  }
};

struct Iq3S : LargeType<TypeId::IQ3_S, 32, 0> {
  using LargeType::LargeType;
  template <int g>
  PENSTOCK_INLINE int8x16x2_t codes() const noexcept {
    const uint8_t* i = x + 2 + 8 * g;
    const uint8_t* signs = x + 74 + 4 * g;
    const uint32_t high = x[66 + g];
    const auto entry = [i, high](int l) {
      return two_quads(kIq3sGrid[i[2 * l] | (high << (8 - 2 * l) & 256)],
                       kIq3sGrid[i[2 * l + 1] | (high << (7 - 2 * l) & 256)]);
    };
    return {octets(entry(0), entry(1), signs[0], signs[1]),
            octets(entry(2), entry(3), signs[2], signs[3])};
  }
  PENSTOCK_INLINE int16x8x2_t scales() const noexcept {
    return widen(vget_low_u8(odd(nibbles_in_order(vcreate_u8(load_u32(x + 106))))));
  }
};

// Two entries of the IQ1 grid times 8, and their shifts of +-1.
PENSTOCK_INLINE int8x16_t shifted(uint64_t first, uint64_t second, int first_shift,
                                  int second_shift) noexcept {
  return vaddq_s8(vcombine_s8(vcreate_s8(first), vcreate_s8(second)),
                  vcombine_s8(vdup_n_s8(static_cast<int8_t>(first_shift)),
                              vdup_n_s8(static_cast<int8_t>(second_shift))));
}

struct Iq1S : GridType<TypeId::IQ1_S, 32, 3> {
  using GridType::GridType;
  template <int g>
  PENSTOCK_INLINE int8x16x2_t codes() const noexcept {
    const uint8_t* low = x + 2 + 4 * g;
    const uint32_t w = load_u16(x + 34 + 2 * g);
    const int shift = (w >> 15) != 0 ? -1 : 1;
    const auto entry = [low, w](int l) { return kIq1sGrid8[low[l] | ((w >> (3 * l)) & 7u) << 8]; };
    return {shifted(entry(0), entry(1), shift, shift), shifted(entry(2), entry(3), shift, shift)};
  }
  PENSTOCK_INLINE int16x8x2_t scales() const noexcept {
    const uint16x8_t w = vreinterpretq_u16_u8(vld1q_u8(x + 34));
    const uint16x8_t twice = vandq_u16(vshrq_n_u16(w, 11), vdupq_n_u16(14));
    return {vreinterpretq_s16_u16(vorrq_u16(twice, vdupq_n_u16(1))), vdupq_n_s16(0)};
  }
};

struct Iq1M : LargeType<TypeId::IQ1_M, 16, 0> {
  using LargeType::LargeType;
  template <int g>
  PENSTOCK_INLINE int8x16x2_t codes() const noexcept {
    return {two(x + 4 * g, x[32 + 2 * g]), two(x + 4 * g + 2, x[33 + 2 * g])};
  }
  PENSTOCK_INLINE int16x8x2_t scales() const noexcept {
    // Four three-bit numbers in each of four u16.
    const uint16x4_t w = vreinterpret_u16_u8(vld1_u8(x + 48));
    const uint16x8_t pairs[2] = {vcombine_u16(vdup_lane_u16(w, 0), vdup_lane_u16(w, 1)),
                                 vcombine_u16(vdup_lane_u16(w, 2), vdup_lane_u16(w, 3))};
    const int16x8_t shifts = {0, -3, -6, -9, 0, -3, -6, -9};
    int16x8x2_t out;
    for (int i = 0; i < 2; ++i) {
      const uint16x8_t three = vandq_u16(vshlq_u16(pairs[i], shifts), vdupq_n_u16(7));
      out.val[i] = vreinterpretq_s16_u16(vorrq_u16(vshlq_n_u16(three, 1), vdupq_n_u16(1)));
    }
    return out;
  }
  static PENSTOCK_INLINE float32x4_t d4(const uint8_t* const* p, size_t at) noexcept {
    float d[4];
    for (int r = 0; r < 4; ++r) {
      const uint64_t w = load_u64(p[r] + at + 48);  // the fp16 scale is in the top nibbles (§7.8)
      const uint64_t bits =
          (w >> 12 & 0xf) | (w >> 24 & 0xf0) | (w >> 36 & 0xf00) | (w >> 48 & 0xf000);
      d[r] = half_to_float(static_cast<uint16_t>(bits));
    }
    return vmulq_n_f32(vld1q_f32(d), 0.125f);
  }

 private:
  static PENSTOCK_INLINE int8x16_t two(const uint8_t* low, uint32_t high) noexcept {
    return shifted(kIq1sGrid8[low[0] | (high & 7u) << 8], kIq1sGrid8[low[1] | (high & 0x70u) << 4],
                   (high & 8u) != 0 ? -1 : 1, (high & 0x80u) != 0 ? -1 : 1);
  }
};

template <class... P>
void add_large_types(KernelTable& table) noexcept {
  ((table[P::kId] = {gemv_large<P>, gemm<LargePanel<P>>, 4}), ...);
}

void add_large(KernelTable& table) noexcept {
  add_large_types<Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, Iq4Xs, Tq2_0>(table);
  add_large_types<Iq3S, Iq3Xxs, Iq2S, Iq2Xs, Iq2Xxs, Iq1S, Iq1M>(table);
}

}  // namespace
}  // namespace penstock::quant
