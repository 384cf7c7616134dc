// Encoders of Q4_K, Q5_K and Q6_K: fit every sub-block in float, quantise the sub-block scales
// against one fp16 scale, then choose the codes anew with the scales as stored (§10.1).

#include "quant/encode.h"

namespace penstock::quant {
namespace {

// Weights of a sub-block's errors: with importance as for all types, else rms + |x|.
void k_weights(const float* x, const float* importance, float block_mean_square,
               float* w) noexcept {
  if (importance) {
    error_weights(x, importance, 32, block_mean_square, 2, w);
  } else {
    const float rms = std::sqrt(mean_square(x, 32));
    for (int i = 0; i < 32; ++i) w[i] = rms + std::abs(x[i]);
  }
}

// Whole steps of `unit` in 0..63.
uint8_t six_bits(float value, float unit) noexcept {
  return unit > 0 ? static_cast<uint8_t>(clamp_to(round_even(value / unit), 0, 63)) : uint8_t{0};
}

// The eight scales and mins in twelve bytes (§7.5).
void put_k_scales(const uint8_t* sc, const uint8_t* mn, uint8_t* s) noexcept {
  for (int j = 0; j < 4; ++j) {
    s[j] = static_cast<uint8_t>(sc[j] | (sc[j + 4] >> 4) << 6);
    s[j + 4] = static_cast<uint8_t>(mn[j] | (mn[j + 4] >> 4) << 6);
    s[j + 8] = static_cast<uint8_t>((sc[j + 4] & 15) | (mn[j + 4] & 15) << 4);
  }
}

// d, dmin and S go to the block's first 16 bytes, the codes to `codes`.
void quantize_with_mins(const float* x, const float* importance, int nmax, uint8_t* head,
                        uint8_t* codes) noexcept {
  const bool q4 = nmax == 15;
  const float square = importance ? mean_square(x, 256) : 0;
  float scales[8], mins[8], max_scale = 0, max_min = 0;
  for (int j = 0; j < 8; ++j) {
    const float* y = x + 32 * j;
    float w[32];
    k_weights(y, importance ? importance + 32 * j : nullptr, square, w);
    const OffsetFit fit =
        importance ? fit_offset<32, true>(y, w, nmax, -0.9f, 0.05f, 37)
                   : fit_offset<32, true>(y, w, nmax, q4 ? -1.0f : -0.5f, 0.1f, q4 ? 21 : 16);
    scales[j] = std::max(fit.scale, 0.0f);
    mins[j] = std::max(-fit.offset, 0.0f);
    max_scale = std::max(max_scale, scales[j]);
    max_min = std::max(max_min, mins[j]);
  }
  const uint16_t d_bits = scale_bits(max_scale / 63), dmin_bits = scale_bits(max_min / 63);
  const float d = half_to_float(d_bits), dmin = half_to_float(dmin_bits);
  uint8_t sc[8], mn[8];
  for (int j = 0; j < 8; ++j) {
    sc[j] = six_bits(scales[j], d);
    mn[j] = six_bits(mins[j], dmin);
    const float step = d * sc[j], offset = dmin * mn[j];
    const float inverse = step > 0 ? 1 / step : 0;
    for (int i = 32 * j; i < 32 * j + 32; ++i) {
      const float q = clamp_to((x[i] + offset) * inverse, 0, static_cast<float>(nmax));
      codes[i] = static_cast<uint8_t>(round_even(q));
    }
  }
  store_u16(head, d_bits);
  store_u16(head + 2, dmin_bits);
  put_k_scales(sc, mn, head + 4);
}

// Elements 64h + l in low and 64h + 32 + l in high nibbles.
void put_k_nibbles(const uint8_t* codes, uint8_t* out) noexcept {
  for (int h = 0; h < 4; ++h) {
    for (int l = 0; l < 32; ++l) {
      out[32 * h + l] =
          static_cast<uint8_t>((codes[64 * h + l] & 15) | (codes[64 * h + 32 + l] & 15) << 4);
    }
  }
}

}  // namespace

void encode_q4_k(const float* in, uint8_t* out, int64_t n, const float* importance) noexcept {
  uint8_t codes[256];
  for (int64_t i = 0; i < n; i += 256, out += 144) {
    quantize_with_mins(in + i, importance ? importance + i : nullptr, 15, out, codes);
    put_k_nibbles(codes, out + 16);
  }
}

void encode_q5_k(const float* in, uint8_t* out, int64_t n, const float* importance) noexcept {
  uint8_t codes[256];
  for (int64_t i = 0; i < n; i += 256, out += 176) {
    quantize_with_mins(in + i, importance ? importance + i : nullptr, 31, out, codes);
    std::memset(out + 16, 0, 32);
    for (int k = 0; k < 256; ++k) {
      out[16 + k % 32] = static_cast<uint8_t>(out[16 + k % 32] | (codes[k] >> 4) << (k / 32));
    }
    put_k_nibbles(codes, out + 48);
  }
}

void encode_q6_k(const float* in, uint8_t* out, int64_t n, const float* importance) noexcept {
  for (int64_t i = 0; i < n; i += 256, in += 256, out += 210) {
    float scales[16];
    for (int j = 0; j < 16; ++j) {
      float w[16];
      float total = 0;
      for (int k = 0; k < 16; ++k) {
        w[k] = importance ? importance[i + 16 * j + k] : 1;
        total += w[k];
      }
      if (!(total > 0)) std::fill(w, w + 16, 1.0f);
      scales[j] = fit_symmetric<16>(in + 16 * j, w, 32);
    }
    // The largest becomes -128, the end with one more step.
    const float largest = extreme(scales, 16);
    const uint16_t d_bits = scale_bits(largest / -128);
    const float d = half_to_float(d_bits);
    std::memset(out, 0, 192);
    for (int j = 0; j < 16; ++j) {
      const float steps = d == 0 ? 0 : clamp_to(round_even(scales[j] / d), -128, 127);
      out[192 + j] = static_cast<uint8_t>(static_cast<int8_t>(steps));
      const float step = d * steps;
      const float inverse = step == 0 ? 0 : 1 / step;
      for (int k = 16 * j; k < 16 * j + 16; ++k) {
        const float q = round_even(clamp_to(in[k] * inverse, -32, 31));
        const int code = static_cast<int>(q) + 32;
        const int h = k / 128, r = k % 128;
        uint8_t& low = out[64 * h + r % 64];
        uint8_t& high = out[128 + 32 * h + r % 32];
        low = static_cast<uint8_t>(low | (code & 15) << (4 * (r / 64)));
        high = static_cast<uint8_t>(high | (code >> 4) << (2 * (r / 32)));
      }
    }
    store_u16(out + 208, d_bits);
  }
}

}  // namespace penstock::quant
