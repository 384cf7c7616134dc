// Encoders of the float types and of the types with 32 elements per block.

#include "quant/encode.h"

#include <array>

#include "quant/codebooks.h"
#include "quant/codec.h"

namespace penstock::quant {
namespace {

void encode_f32(const float* in, uint8_t* out, int64_t n, const float*) noexcept {
  std::memcpy(out, in, static_cast<size_t>(n) * sizeof(float));
}

void encode_f16(const float* in, uint8_t* out, int64_t n, const float*) noexcept {
  for (int64_t i = 0; i < n; ++i) store_u16(out + 2 * i, float_to_half(in[i]));
}

void encode_bf16(const float* in, uint8_t* out, int64_t n, const float*) noexcept {
  for (int64_t i = 0; i < n; ++i) store_u16(out + 2 * i, float_to_bf16(in[i]));
}

// Codes from the unrounded scale and half away from zero, as the reference writes such files.
void encode_q8_0(const float* in, uint8_t* out, int64_t n, const float*) noexcept {
  for (int64_t i = 0; i < n; i += 32, in += 32, out += 34) {
    const float max = std::abs(extreme(in, 32));
    const float d = max / 127;
    const float inverse = max < kNothing ? 0 : 1 / d;
    store_u16(out, max < kNothing ? uint16_t{0} : scale_bits(d));
    for (int k = 0; k < 32; ++k) {
      out[2 + k] = static_cast<uint8_t>(static_cast<int8_t>(std::round(in[k] * inverse)));
    }
  }
}

float inverse_of(float d) noexcept {
  return d == 0 ? 0 : 1 / d;
}

// Nibbles of elements k and k + 16 to byte k.
void put_nibbles(const uint8_t* codes, uint8_t* out) noexcept {
  for (int k = 0; k < 16; ++k) {
    out[k] = static_cast<uint8_t>((codes[k] & 15) | (codes[k + 16] & 15) << 4);
  }
}
void put_fifth_bits(const uint8_t* codes, uint8_t* out) noexcept {
  uint32_t bits = 0;
  for (int k = 0; k < 32; ++k) bits |= static_cast<uint32_t>(codes[k] >> 4) << k;
  std::memcpy(out, &bits, sizeof(bits));
}

float row_mean_square(const float* in, int64_t n) noexcept {
  double sum = 0;
  for (int64_t i = 0; i < n; i += 32) sum += mean_square(in + i, 32);
  return static_cast<float>(sum / (static_cast<double>(n) / 32));
}

template <int kNmax, int kBytes>  // 8: Q4_0, 16: Q5_0
void encode_symmetric(const float* in, uint8_t* out, int64_t n, const float* importance) noexcept {
  const float square = importance ? row_mean_square(in, n) : 0;
  for (int64_t i = 0; i < n; i += 32, in += 32, out += kBytes) {
    float w[32];
    error_weights(in, importance ? importance + i : nullptr, 32, square, 1, w);
    const uint16_t d = scale_bits(fit_symmetric<32>(in, w, kNmax));
    const float inverse = inverse_of(half_to_float(d));
    uint8_t codes[32];
    for (int k = 0; k < 32; ++k) {
      const float q =
          clamp_to(round_even(clamp_to(in[k] * inverse, -1e6f, 1e6f)), -kNmax, kNmax - 1);
      codes[k] = static_cast<uint8_t>(static_cast<int>(q) + kNmax);
    }
    store_u16(out, d);
    if (kNmax == 16) put_fifth_bits(codes, out + 2);
    put_nibbles(codes, out + kBytes - 16);
  }
}

template <int kNmax, int kBytes>  // 15: Q4_1, 31: Q5_1
void encode_offset(const float* in, uint8_t* out, int64_t n, const float* importance) noexcept {
  const float square = importance ? row_mean_square(in, n) : 0;
  for (int64_t i = 0; i < n; i += 32, in += 32, out += kBytes) {
    float w[32];
    error_weights(in, importance ? importance + i : nullptr, 32, square, 1, w);
    const OffsetFit fit = fit_offset<32, false>(in, w, kNmax, -1.0f, 0.1f, 21);
    const uint16_t d = scale_bits(fit.scale), m = scale_bits(fit.offset);
    const float inverse = inverse_of(half_to_float(d)), offset = half_to_float(m);
    uint8_t codes[32];
    for (int k = 0; k < 32; ++k) {
      const float q = clamp_to((in[k] - offset) * inverse, 0, kNmax);
      codes[k] = static_cast<uint8_t>(round_even(q));
    }
    store_u16(out, d);
    store_u16(out + 2, m);
    if (kNmax == 31) put_fifth_bits(codes, out + 4);
    put_nibbles(codes, out + kBytes - 16);
  }
}

// The nearest IQ4_NL level of every half-open interval of 1/2: midpoints between levels are
// multiples of 1/2, so floor(2 x) decides.
constexpr int kNearestLow = -256, kNearestHigh = 255;
constexpr std::array<uint8_t, kNearestHigh - kNearestLow + 1> nearest_levels() noexcept {
  std::array<uint8_t, kNearestHigh - kNearestLow + 1> out{};
  for (int twice = kNearestLow; twice <= kNearestHigh; ++twice) {
    size_t level = 0;
    while (level < 15 && kIq4nlValues[level] + kIq4nlValues[level + 1] <= twice) ++level;
    out[static_cast<size_t>(twice - kNearestLow)] = static_cast<uint8_t>(level);
  }
  return out;
}
constexpr auto kNearest = nearest_levels();

uint8_t nearest_level(float x) noexcept {
  const float twice = clamp_to(2 * x - kNearestLow, 0, kNearestHigh - kNearestLow);
  return kNearest[static_cast<size_t>(twice)];
}

void encode_iq4_nl(const float* in, uint8_t* out, int64_t n, const float* importance) noexcept {
  const float square = importance ? row_mean_square(in, n) : 0;
  for (int64_t i = 0; i < n; i += 32, in += 32, out += 18) {
    float w[32];
    error_weights(in, importance ? importance + i : nullptr, 32, square, 2, w);
    const float v = extreme(in, 32);
    float best_xq = 0, best_qq = 1;
    for (int t = -7; t <= 7 && std::abs(v) >= kNothing; ++t) {
      const float inverse = static_cast<float>(kIq4nlValues[0] + t) / v;
      float xq = 0, qq = 0;
      for (int k = 0; k < 32; ++k) {
        const float q = kIq4nlValues[nearest_level(in[k] * inverse)];
        xq += w[k] * q * in[k];
        qq += w[k] * q * q;
      }
      if (qq > 0 && xq * xq * best_qq > best_xq * best_xq * qq) {
        best_xq = xq;
        best_qq = qq;
      }
    }
    const uint16_t d = scale_bits(best_xq / best_qq);
    const float inverse = inverse_of(half_to_float(d));
    uint8_t codes[32];
    for (int k = 0; k < 32; ++k) codes[k] = nearest_level(in[k] * inverse);
    store_u16(out, d);
    put_nibbles(codes, out + 2);
  }
}

Encoder encoder_of(TypeId type) noexcept {
  switch (type) {
    case TypeId::F32:
      return encode_f32;
    case TypeId::F16:
      return encode_f16;
    case TypeId::BF16:
      return encode_bf16;
    case TypeId::Q8_0:
      return encode_q8_0;
    case TypeId::Q4_0:
      return encode_symmetric<8, 18>;
    case TypeId::Q5_0:
      return encode_symmetric<16, 22>;
    case TypeId::Q4_1:
      return encode_offset<15, 20>;
    case TypeId::Q5_1:
      return encode_offset<31, 24>;
    case TypeId::IQ4_NL:
      return encode_iq4_nl;
    case TypeId::Q2_0:
      return encode_q2_0;
    case TypeId::Q4_K:
      return encode_q4_k;
    case TypeId::Q5_K:
      return encode_q5_k;
    case TypeId::Q6_K:
      return encode_q6_k;
    default:
      return nullptr;
  }
}

}  // namespace

bool can_encode(TypeId type) noexcept {
  return encoder_of(type) != nullptr;
}

void encode_row(TypeId type, const float* in, void* out, int64_t n,
                const float* importance) noexcept {
  encoder_of(type)(in, static_cast<uint8_t*>(out), n, importance);
}

}  // namespace penstock::quant
