// Activation rounding.
#pragma once

#include "quant/neon.h"

namespace penstock::quant {
namespace {

// The largest magnitude's bits among n elements, a multiple of 4.
PENSTOCK_INLINE ActScale block_scale(const float* x, int64_t n) noexcept {
  uint32x4_t max = vdupq_n_u32(0);
  for (int64_t i = 0; i < n; i += 4) {
    const uint32x4_t bits = vreinterpretq_u32_f32(vld1q_f32(x + i));
    max = vmaxq_u32(max, vandq_u32(bits, vdupq_n_u32(0x7fffffff)));
  }
  return act_scale(vmaxvq_u32(max));
}

// Rounds 16 elements, half to even, and returns the sum of their codes. An inverse of 0 gives codes
// 0: what it makes of an infinity or a NaN is a NaN, and that converts to 0.
PENSTOCK_INLINE int round16(const float* x, float inverse, int8_t* codes) noexcept {
  int16x4_t narrow[4];
  for (int i = 0; i < 4; ++i) {
    narrow[i] = vmovn_s32(vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + 4 * i), inverse)));
  }
  const int16x8_t low = vcombine_s16(narrow[0], narrow[1]);
  const int16x8_t high = vcombine_s16(narrow[2], narrow[3]);
  vst1q_s8(codes, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
  return vaddvq_s16(vaddq_s16(low, high));
}

void quantize32(const float* x, void* out, int64_t n) noexcept {
  const Act32 act(out, n);
  auto* codes = const_cast<int8_t*>(act.codes);
  auto* scales = const_cast<float*>(act.scales);
  auto* sums = const_cast<int32_t*>(act.sums);
  for (int64_t k = 0; k < n / 32; ++k, x += 32, codes += 32) {
    const ActScale s = block_scale(x, 32);
    scales[k] = s.scale;
    sums[k] = round16(x, s.inverse, codes) + round16(x + 16, s.inverse, codes + 16);
  }
}

void quantize256(const float* x, void* out, int64_t n) noexcept {
  const Act256 act(out, n);
  auto* codes = const_cast<int8_t*>(act.codes);
  auto* scales = const_cast<float*>(act.scales);
  auto* sums = const_cast<int16_t*>(act.sums);
  for (int64_t k = 0; k < n / 256; ++k) {
    const ActScale s = block_scale(x, 256);
    scales[k] = s.scale;
    for (int j = 0; j < 16; ++j, x += 16, codes += 16) {
      *sums++ = static_cast<int16_t>(round16(x, s.inverse, codes));
    }
  }
}

void add_activations(KernelTable& table) noexcept {
  table.quantize32 = quantize32;
  table.quantize256 = quantize256;
}

}  // namespace
}  // namespace penstock::quant
