// The loops around the NEON block readers. A type is described by a policy:
//
// Small (blocks of less than 256 elements, activations Q8_32):
//   kBytes                block size
//   kWidth, kParts        elements that share a scale; such groups per block
//   kHasOffset            value = d * q + m (Q4_1, Q5_1)
//   codes(block, part)    the codes of a group in element order; for kWidth 16 the first 16
//   scales4(p, at, part)  d of the blocks at p[0..3] + at; offsets4(p, at) likewise for m
// Large (256 elements, activations Q8_256), constructed from a block's address:
//   kBytes                block size
//   kGroup                elements that share an integer scale: 16 or 32
//   kMins                 value = d * scale * q - dmin * min
//   codes<g>()            the 32 codes of group g in element order
//   scales(), mins()      the 256 / kGroup integers in order
//   d4(p, at), dmin4(p, at)
//
// GEMV takes four rows at a time straight from their blocks. GEMM unpacks eight rows to a panel in
// which four codes of each row lie side by side, so that one instruction serves four rows with
// four elements of a token, and no sum across lanes is needed.
#pragma once

#include "quant/neon.h"

namespace penstock::quant {
namespace {

// ---------------------------------------------------------------------------------- GEMV, small

template <class P>
void gemv_small(const MatmulTile& tile) noexcept {
  for (int64_t row = 0; row < tile.n_rows; row += 4) {
    const uint8_t* p[4];
    row_pointers<4>(tile, row, p);
    for (int64_t t = 0; t < tile.n_tokens; ++t) {
      const Act32 act(tile.acts[t], tile.n_in);
      float32x4_t acc = vdupq_n_f32(0);
      size_t at = 0;
      for (int64_t k = 0; k < tile.n_in / P::kWidth; at += P::kBytes) {
        for (int part = 0; part < P::kParts; ++part, ++k) {
          const int8_t* a = act.codes + P::kWidth * k;
          int32x4_t v[4];
          for (int r = 0; r < 4; ++r) {
            const int8x16x2_t w = P::codes(p[r] + at, part);
            v[r] = dot_total(vdupq_n_s32(0), w.val[0], vld1q_s8(a));
            if constexpr (P::kWidth == 32) v[r] = dot_total(v[r], w.val[1], vld1q_s8(a + 16));
          }
          const int64_t k32 = P::kWidth * k / 32;
          const float d8 = act.scales[k32];
          const float32x4_t d = vmulq_n_f32(P::scales4(p, at, part), d8);
          acc = vfmaq_f32(acc, d, vcvtq_f32_s32(reduce4(v)));
          if constexpr (P::kHasOffset) {
            const float32x4_t m = vmulq_n_f32(P::offsets4(p, at), d8);
            acc = vfmaq_f32(acc, m, vdupq_n_f32(static_cast<float>(act.sums[k32])));
          }
        }
      }
      store_lanes(tile.out[t] + row, acc, tile.n_rows - row);
    }
  }
}

// ---------------------------------------------------------------------------------- GEMV, large

PENSTOCK_INLINE int32x4_t multiply_sums(int16x8_t w, int16x8_t sums) noexcept {
  return vmlal_high_s16(vmull_s16(vget_low_s16(w), vget_low_s16(sums)), w, sums);
}

// The lanes of the result add up to the sum of scale * code * activation over a block.
template <class P>
PENSTOCK_INLINE int32x4_t multiply_block(const P& w, const int8_t* a) noexcept {
  const int16x8x2_t narrow = w.scales();
  int32x4_t scales[4];
  for (int i = 0; i < 256 / P::kGroup / 8; ++i) {
    scales[2 * i] = vmovl_s16(vget_low_s16(narrow.val[i]));
    scales[2 * i + 1] = vmovl_high_s16(narrow.val[i]);
  }
  int32x4_t sum = vdupq_n_s32(0);
  unroll<8>([&](auto g) __attribute__((always_inline)) {
    const int8x16x2_t q = w.template codes<g>();
    int32x4_t part = dot_total(vdupq_n_s32(0), q.val[0], vld1q_s8(a + 32 * g));
    if constexpr (P::kGroup == 32) {
      constexpr int lane = g % 4;
      part = dot_total(part, q.val[1], vld1q_s8(a + 32 * g + 16));
      sum = vmlaq_laneq_s32(sum, part, scales[g / 4], lane);
    } else {
      constexpr int lane = 2 * (g % 2);
      sum = vmlaq_laneq_s32(sum, part, scales[g / 2], lane);
      part = dot_total(vdupq_n_s32(0), q.val[1], vld1q_s8(a + 32 * g + 16));
      sum = vmlaq_laneq_s32(sum, part, scales[g / 2], lane + 1);
    }
  });
  return sum;
}

// The activations' sums of kGroup codes each.
template <class P>
PENSTOCK_INLINE int16x8x2_t group_sums(const int16_t* sums) noexcept {
  const int16x8_t low = vld1q_s16(sums), high = vld1q_s16(sums + 8);
  if constexpr (P::kGroup == 32) {
    return {vpaddq_s16(low, high), vdupq_n_s16(0)};
  } else {
    return {low, high};
  }
}

template <class P>
void gemv_large(const MatmulTile& tile) noexcept {
  for (int64_t row = 0; row < tile.n_rows; row += 4) {
    const uint8_t* p[4];
    row_pointers<4>(tile, row, p);
    for (int64_t t = 0; t < tile.n_tokens; ++t) {
      const Act256 act(tile.acts[t], tile.n_in);
      float32x4_t acc = vdupq_n_f32(0);
      size_t at = 0;
      for (int64_t k = 0; k < tile.n_in / 256; ++k, at += P::kBytes) {
        int32x4_t v[4], min[4];
        for (int r = 0; r < 4; ++r) {
          const P w(p[r] + at);
          v[r] = multiply_block(w, act.codes + 256 * k);
          if constexpr (P::kMins) {
            const int16x8x2_t mins = w.mins(), sums = group_sums<P>(act.sums + 16 * k);
            min[r] = multiply_sums(mins.val[0], sums.val[0]);
            if constexpr (P::kGroup == 16) {
              min[r] = vaddq_s32(min[r], multiply_sums(mins.val[1], sums.val[1]));
            }
          }
        }
        const float d8 = act.scales[k];
        acc = vfmaq_f32(acc, vmulq_n_f32(P::d4(p, at), d8), vcvtq_f32_s32(reduce4(v)));
        if constexpr (P::kMins) {
          acc = vfmsq_f32(acc, vmulq_n_f32(P::dmin4(p, at), d8), vcvtq_f32_s32(reduce4(min)));
        }
      }
      store_lanes(tile.out[t] + row, acc, tile.n_rows - row);
    }
  }
}

// --------------------------------------------------------------------------------------- panels

// Writes four quads of one row; those of the eight rows alternate.
PENSTOCK_INLINE void store_quads(int8_t* out, int8x16_t codes) noexcept {
  const int32x4_t quads = vreinterpretq_s32_s8(codes);
  unroll<4>([&](auto i) __attribute__((always_inline)) {
    constexpr int lane = i;
    const int32_t quad = vgetq_lane_s32(quads, lane);
    std::memcpy(out + 32 * i, &quad, sizeof(quad));
  });
}

// sums[t][h] += products of 16 elements of kTokens tokens with those of rows 4h .. 4h+3.
template <int kTokens>
PENSTOCK_INLINE void multiply_quads(const int8_t* w, const int8_t* const* a, int64_t at,
                                    int32x4_t (*sums)[2]) noexcept {
  int8x16_t act[kTokens];
  for (int t = 0; t < kTokens; ++t) act[t] = vld1q_s8(a[t] + at);
  unroll<4>([&](auto i) __attribute__((always_inline)) {
    for (int h = 0; h < 2; ++h) {
      const int8x16_t q = vld1q_s8(w + 32 * i + 16 * h);
      for (int t = 0; t < kTokens; ++t) sums[t][h] = dot_lane<i>(sums[t][h], q, act[t]);
    }
  });
}

template <int kTokens>
PENSTOCK_INLINE void clear(int32x4_t (*sums)[2]) noexcept {
  for (int t = 0; t < kTokens; ++t) sums[t][0] = sums[t][1] = vdupq_n_s32(0);
}

template <int kTokens>
PENSTOCK_INLINE void store_panel(const MatmulTile& tile, int64_t row, int64_t token,
                                 const float32x4_t (*acc)[2]) noexcept {
  for (int t = 0; t < kTokens; ++t) {
    for (int h = 0; h < 2; ++h) {
      store_lanes(tile.out[token + t] + row + 4 * h, acc[t][h], tile.n_rows - row - 4 * h);
    }
  }
}

// ---------------------------------------------------------------------------------- GEMM, small

template <class P>
struct SmallPanel {
  struct Block {
    int8_t codes[8 * P::kWidth];
    float d[8];
    float m[P::kHasOffset ? 8 : 1];
  };
  static_assert(sizeof(Block) <= static_cast<size_t>(kPanelBytesPerElement * P::kWidth));

  static void unpack(const MatmulTile& tile, int64_t row) noexcept {
    const uint8_t* p[8];
    row_pointers<8>(tile, row, p);
    auto* out = reinterpret_cast<Block*>(tile.scratch);
    size_t at = 0;
    for (int64_t k = 0; k < tile.n_in / P::kWidth; at += P::kBytes) {
      for (int part = 0; part < P::kParts; ++part, ++k, ++out) {
        for (int r = 0; r < 8; ++r) {
          const int8x16x2_t q = P::codes(p[r] + at, part);
          store_quads(out->codes + 4 * r, q.val[0]);
          if constexpr (P::kWidth == 32) store_quads(out->codes + 128 + 4 * r, q.val[1]);
        }
        for (int h = 0; h < 2; ++h) {
          vst1q_f32(out->d + 4 * h, P::scales4(p + 4 * h, at, part));
          if constexpr (P::kHasOffset) vst1q_f32(out->m + 4 * h, P::offsets4(p + 4 * h, at));
        }
      }
    }
  }

  template <int kTokens>
  static void multiply(const MatmulTile& tile, int64_t row, int64_t token) noexcept {
    const int8_t* codes[kTokens];
    const float* scales[kTokens];
    const int32_t* sums[kTokens];
    float32x4_t acc[kTokens][2];
    for (int t = 0; t < kTokens; ++t) {
      const Act32 act(tile.acts[token + t], tile.n_in);
      codes[t] = act.codes;
      scales[t] = act.scales;
      sums[t] = act.sums;
      acc[t][0] = acc[t][1] = vdupq_n_f32(0);
    }
    const auto* w = reinterpret_cast<const Block*>(tile.scratch);
    for (int64_t k = 0; k < tile.n_in / P::kWidth; ++k, ++w) {
      int32x4_t part[kTokens][2];
      clear<kTokens>(part);
      for (int i = 0; i < P::kWidth; i += 16) {
        multiply_quads<kTokens>(w->codes + 8 * i, codes, P::kWidth * k + i, part);
      }
      const int64_t k32 = P::kWidth * k / 32;
      for (int h = 0; h < 2; ++h) {
        const float32x4_t d = vld1q_f32(w->d + 4 * h);
        for (int t = 0; t < kTokens; ++t) {
          acc[t][h] =
              vfmaq_f32(acc[t][h], vmulq_n_f32(d, scales[t][k32]), vcvtq_f32_s32(part[t][h]));
          if constexpr (P::kHasOffset) {
            const float32x4_t m = vmulq_n_f32(vld1q_f32(w->m + 4 * h), scales[t][k32]);
            acc[t][h] = vfmaq_f32(acc[t][h], m, vdupq_n_f32(static_cast<float>(sums[t][k32])));
          }
        }
      }
    }
    store_panel<kTokens>(tile, row, token, acc);
  }
};

// ---------------------------------------------------------------------------------- GEMM, large

template <class P>
struct LargePanel {
  static constexpr int kGroups = 256 / P::kGroup;
  struct Block {
    int8_t codes[2048];
    int16_t scales[kGroups][8];
    int16_t mins[P::kMins ? kGroups : 1][8];
    float d[8];
    float dmin[P::kMins ? 8 : 1];
  };
  static_assert(sizeof(Block) <= static_cast<size_t>(kPanelBytesPerElement) * 256);

  static void unpack(const MatmulTile& tile, int64_t row) noexcept {
    const uint8_t* p[8];
    row_pointers<8>(tile, row, p);
    auto* out = reinterpret_cast<Block*>(tile.scratch);
    size_t at = 0;
    for (int64_t k = 0; k < tile.n_in / 256; ++k, ++out, at += P::kBytes) {
      for (int r = 0; r < 8; ++r) {
        const P w(p[r] + at);
        unroll<8>([&](auto g) __attribute__((always_inline)) {
          const int8x16x2_t q = w.template codes<g>();
          store_quads(out->codes + 256 * g + 4 * r, q.val[0]);
          store_quads(out->codes + 256 * g + 128 + 4 * r, q.val[1]);
        });
        store_column(w.scales(), r, out->scales);
        if constexpr (P::kMins) store_column(w.mins(), r, out->mins);
      }
      for (int h = 0; h < 2; ++h) {
        vst1q_f32(out->d + 4 * h, P::d4(p + 4 * h, at));
        if constexpr (P::kMins) vst1q_f32(out->dmin + 4 * h, P::dmin4(p + 4 * h, at));
      }
    }
  }

  template <int kTokens>
  static void multiply(const MatmulTile& tile, int64_t row, int64_t token) noexcept {
    const int8_t* codes[kTokens];
    const int16_t* sums[kTokens];
    const float* scales[kTokens];
    float32x4_t acc[kTokens][2];
    for (int t = 0; t < kTokens; ++t) {
      const Act256 act(tile.acts[token + t], tile.n_in);
      codes[t] = act.codes;
      sums[t] = act.sums;
      scales[t] = act.scales;
      acc[t][0] = acc[t][1] = vdupq_n_f32(0);
    }
    const auto* w = reinterpret_cast<const Block*>(tile.scratch);
    for (int64_t k = 0; k < tile.n_in / 256; ++k, ++w) {
      int32x4_t sum[kTokens][2];
      clear<kTokens>(sum);
      for (int g = 0; g < kGroups; ++g) {
        int32x4_t part[kTokens][2];
        clear<kTokens>(part);
        for (int i = P::kGroup * g; i < P::kGroup * (g + 1); i += 16) {
          multiply_quads<kTokens>(w->codes + 8 * i, codes, 256 * k + i, part);
        }
        const int16x8_t scale = vld1q_s16(w->scales[g]);
        const int32x4_t wide[2] = {vmovl_s16(vget_low_s16(scale)), vmovl_high_s16(scale)};
        for (int t = 0; t < kTokens; ++t) {
          for (int h = 0; h < 2; ++h) sum[t][h] = vmlaq_s32(sum[t][h], part[t][h], wide[h]);
        }
      }
      for (int t = 0; t < kTokens; ++t) {
        for (int h = 0; h < 2; ++h) {
          const float32x4_t d = vmulq_n_f32(vld1q_f32(w->d + 4 * h), scales[t][k]);
          acc[t][h] = vfmaq_f32(acc[t][h], d, vcvtq_f32_s32(sum[t][h]));
        }
      }
      if constexpr (P::kMins) {
        clear<kTokens>(sum);
        for (int t = 0; t < kTokens; ++t) {
          const int16x8x2_t totals = group_sums<P>(sums[t] + 16 * k);
          unroll<kGroups>([&](auto g) __attribute__((always_inline)) {
            constexpr int lane = g % 8;
            const int16x8_t min = vld1q_s16(w->mins[g]), total = totals.val[g / 8];
            sum[t][0] = vmlal_laneq_s16(sum[t][0], vget_low_s16(min), total, lane);
            sum[t][1] = vmlal_high_laneq_s16(sum[t][1], min, total, lane);
          });
          for (int h = 0; h < 2; ++h) {
            const float32x4_t dmin = vmulq_n_f32(vld1q_f32(w->dmin + 4 * h), scales[t][k]);
            acc[t][h] = vfmsq_f32(acc[t][h], dmin, vcvtq_f32_s32(sum[t][h]));
          }
        }
      }
    }
    store_panel<kTokens>(tile, row, token, acc);
  }

 private:
  static PENSTOCK_INLINE void store_column(int16x8x2_t numbers, int r, int16_t (*out)[8]) noexcept {
    int16_t flat[16];
    vst1q_s16(flat, numbers.val[0]);
    if constexpr (kGroups == 16) vst1q_s16(flat + 8, numbers.val[1]);
    for (int g = 0; g < kGroups; ++g) out[g][r] = flat[g];
  }
};

// One panel at a time, which stays in the L1 cache, meets all tokens, four by four.
template <class Panel>
void gemm(const MatmulTile& tile) noexcept {
  for (int64_t row = 0; row < tile.n_rows; row += 8) {
    Panel::unpack(tile, row);
    for (int64_t token = 0; token < tile.n_tokens; token += 4) {
      switch (tile.n_tokens - token) {
        case 1:
          Panel::template multiply<1>(tile, row, token);
          break;
        case 2:
          Panel::template multiply<2>(tile, row, token);
          break;
        case 3:
          Panel::template multiply<3>(tile, row, token);
          break;
        default:
          Panel::template multiply<4>(tile, row, token);
          break;
      }
    }
  }
}

}  // namespace
}  // namespace penstock::quant
