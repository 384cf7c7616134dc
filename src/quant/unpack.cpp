#include "quant/unpack.h"

#include <bit>

#include "quant/codebooks.h"
#include "quant/half.h"

namespace penstock::quant {
namespace {

float half_at(const uint8_t* p) noexcept {
  return half_to_float(load_u16(p));
}

int8_t code(int value) noexcept {
  return static_cast<int8_t>(value);
}

// The nibble of element i where byte j of 16 holds elements j and j + 16.
int nibble(const uint8_t* q, int i) noexcept {
  return (q[i % 16] >> (4 * (i / 16))) & 15;
}

void q4_0(const uint8_t* x, int, Codes32& out) noexcept {
  out.d = half_at(x);
  out.m = 0;
  for (int i = 0; i < 32; ++i) out.q[i] = code(nibble(x + 2, i) - 8);
}

void q4_1(const uint8_t* x, int, Codes32& out) noexcept {
  out.d = half_at(x);
  out.m = half_at(x + 2);
  for (int i = 0; i < 32; ++i) out.q[i] = code(nibble(x + 4, i));
}

int fifth_bit(uint32_t bits, int i) noexcept {
  return static_cast<int>((bits >> i) & 1u) << 4;
}

void q5_0(const uint8_t* x, int, Codes32& out) noexcept {
  out.d = half_at(x);
  out.m = 0;
  const uint32_t high = load_u32(x + 2);
  for (int i = 0; i < 32; ++i) out.q[i] = code(nibble(x + 6, i) + fifth_bit(high, i) - 16);
}

void q5_1(const uint8_t* x, int, Codes32& out) noexcept {
  out.d = half_at(x);
  out.m = half_at(x + 2);
  const uint32_t high = load_u32(x + 4);
  for (int i = 0; i < 32; ++i) out.q[i] = code(nibble(x + 8, i) + fifth_bit(high, i));
}

void q8_0(const uint8_t* x, int, Codes32& out) noexcept {
  out.d = half_at(x);
  out.m = 0;
  std::memcpy(out.q, x + 2, 32);
}

void iq4_nl(const uint8_t* x, int, Codes32& out) noexcept {
  out.d = half_at(x);
  out.m = 0;
  for (int i = 0; i < 32; ++i) out.q[i] = kIq4nlValues[nibble(x + 2, i)];
}

void mxfp4(const uint8_t* x, int, Codes32& out) noexcept {
  // 2^(e - 128): the table holds doubled values, and the first two exponents are subnormal (§7.2).
  const uint32_t e = x[0];
  out.d = std::bit_cast<float>(e < 2 ? 0x00200000u << e : (e - 1) << 23);
  out.m = 0;
  for (int i = 0; i < 32; ++i) out.q[i] = kMxfp4Values[nibble(x + 1, i)];
}

void q2_0(const uint8_t* x, int part, Codes32& out) noexcept {
  out.d = half_at(x);
  out.m = 0;
  const uint8_t* q = x + 2 + 8 * part;
  for (int i = 0; i < 32; ++i) out.q[i] = code(((q[i / 4] >> (2 * (i % 4))) & 3) - 1);
}

void q1_0(const uint8_t* x, int part, Codes32& out) noexcept {
  out.d = half_at(x);
  out.m = 0;
  const uint8_t* q = x + 2 + 4 * part;
  for (int i = 0; i < 32; ++i) out.q[i] = code(((q[i / 8] >> (i % 8)) & 1) * 2 - 1);
}

// The two-bit code of element i of 256 where 32 bytes hold four planes of 32 elements.
int two_bits(const uint8_t* q, int i) noexcept {
  return (q[32 * (i / 128) + i % 32] >> (2 * ((i % 128) / 32))) & 3;
}

void no_mins(Codes256& out) noexcept {
  out.dmin = 0;
  std::memset(out.min, 0, sizeof(out.min));
}

void q2_k(const uint8_t* x, Codes256& out) noexcept {
  out.d = half_at(x + 80);
  out.dmin = half_at(x + 82);
  for (int j = 0; j < 16; ++j) {
    out.scale[j] = x[j] & 15;
    out.min[j] = x[j] >> 4;
  }
  for (int i = 0; i < 256; ++i) out.q[i] = code(two_bits(x + 16, i));
}

void q3_k(const uint8_t* x, Codes256& out) noexcept {
  out.d = half_at(x + 108);
  no_mins(out);
  for (int j = 0; j < 16; ++j) {
    const int low = (x[96 + j % 8] >> (4 * (j / 8))) & 15;
    const int high = (x[104 + j % 4] >> (2 * (j / 4))) & 3;
    out.scale[j] = static_cast<int16_t>((low | high << 4) - 32);
  }
  for (int i = 0; i < 256; ++i) {
    out.q[i] = code(two_bits(x + 32, i) + 4 * ((x[i % 32] >> (i / 32)) & 1) - 4);
  }
}

void q4_q5_k(const uint8_t* x, const uint8_t* high, const uint8_t* q, Codes256& out) noexcept {
  out.d = half_at(x);
  out.dmin = half_at(x + 2);
  const KScales k = unpack_k_scales(x + 4);
  for (int j = 0; j < 16; ++j) {
    out.scale[j] = static_cast<int16_t>((k.scales >> (8 * (j / 2))) & 63);
    out.min[j] = static_cast<int16_t>((k.mins >> (8 * (j / 2))) & 63);
  }
  for (int i = 0; i < 256; ++i) {
    int value = (q[32 * (i / 64) + i % 32] >> (4 * ((i / 32) % 2))) & 15;
    if (high) value += ((high[i % 32] >> (i / 32)) & 1) << 4;
    out.q[i] = code(value);
  }
}

void q4_k(const uint8_t* x, Codes256& out) noexcept {
  q4_q5_k(x, nullptr, x + 16, out);
}

void q5_k(const uint8_t* x, Codes256& out) noexcept {
  q4_q5_k(x, x + 16, x + 48, out);
}

void q6_k(const uint8_t* x, Codes256& out) noexcept {
  out.d = half_at(x + 208);
  no_mins(out);
  for (int j = 0; j < 16; ++j) out.scale[j] = static_cast<int8_t>(x[192 + j]);
  for (int i = 0; i < 256; ++i) {
    const int h = i / 128, r = i % 128;
    const int low = (x[64 * h + r % 64] >> (4 * (r / 64))) & 15;
    const int high = (x[128 + 32 * h + r % 32] >> (2 * (r / 32))) & 3;
    out.q[i] = code((low | high << 4) - 32);
  }
}

void iq4_xs(const uint8_t* x, Codes256& out) noexcept {
  out.d = half_at(x);
  no_mins(out);
  const uint32_t high = load_u16(x + 2);
  for (int j = 0; j < 16; ++j) {
    const int g = j / 2;
    const uint32_t low = (x[4 + g / 2] >> (4 * (g % 2))) & 15u;
    const uint32_t scale = low | ((high >> (2 * g)) & 3u) << 4;
    out.scale[j] = static_cast<int16_t>(static_cast<int>(scale) - 32);
  }
  for (int i = 0; i < 256; ++i) out.q[i] = kIq4nlValues[nibble(x + 8 + 16 * (i / 32), i % 32)];
}

void tq2_0(const uint8_t* x, Codes256& out) noexcept {
  out.d = half_at(x + 64);
  no_mins(out);
  for (int16_t& scale : out.scale) scale = 1;
  for (int i = 0; i < 256; ++i) out.q[i] = code(two_bits(x, i) - 1);
}

// Eight codes from a grid entry, negated where the sign byte has a one.
void put_octet(int8_t* q, uint64_t entry, uint32_t signs) noexcept {
  for (int j = 0; j < 8; ++j) {
    const int value = static_cast<int>((entry >> (8 * j)) & 255u);
    q[j] = code((signs >> j) & 1u ? -value : value);
  }
}

uint64_t two_quads(uint32_t first, uint32_t second) noexcept {
  return first | static_cast<uint64_t>(second) << 32;
}

int16_t odd_scale(uint32_t four_bits) noexcept {
  return static_cast<int16_t>(2 * four_bits + 1);
}

void iq2_xxs(const uint8_t* x, Codes256& out) noexcept {
  out.d = half_at(x) * 0.125f;
  no_mins(out);
  for (int g = 0; g < 8; ++g) {
    const uint8_t* index = x + 2 + 8 * g;
    const uint32_t w = load_u32(index + 4);
    out.scale[2 * g] = out.scale[2 * g + 1] = odd_scale(w >> 28);
    for (int l = 0; l < 4; ++l) {
      put_octet(out.q + 32 * g + 8 * l, kIq2xxsGrid[index[l]], kEvenSigns[(w >> (7 * l)) & 127]);
    }
  }
}

void iq2_xs(const uint8_t* x, Codes256& out) noexcept {
  out.d = half_at(x) * 0.125f;
  no_mins(out);
  for (int k = 0; k < 32; ++k) {
    const uint32_t w = load_u16(x + 2 + 2 * k);
    put_octet(out.q + 8 * k, kIq2xsGrid[w & 511], kEvenSigns[w >> 9]);
  }
  for (int j = 0; j < 16; ++j) out.scale[j] = odd_scale((x[66 + j / 2] >> (4 * (j % 2))) & 15u);
}

void iq2_s(const uint8_t* x, Codes256& out) noexcept {
  out.d = half_at(x) * 0.125f;
  no_mins(out);
  for (int k = 0; k < 32; ++k) {
    const uint32_t high = (x[66 + k / 4] >> (2 * (k % 4))) & 3u;
    put_octet(out.q + 8 * k, kIq2sGrid[x[2 + k] | high << 8], x[34 + k]);
  }
  for (int j = 0; j < 16; ++j) out.scale[j] = odd_scale((x[74 + j / 2] >> (4 * (j % 2))) & 15u);
}

void iq3_xxs(const uint8_t* x, Codes256& out) noexcept {
  out.d = half_at(x) * 0.25f;
  no_mins(out);
  for (int g = 0; g < 8; ++g) {
    const uint8_t* index = x + 2 + 8 * g;
    const uint32_t w = load_u32(x + 66 + 4 * g);
    out.scale[2 * g] = out.scale[2 * g + 1] = odd_scale(w >> 28);
    for (int l = 0; l < 4; ++l) {
      const uint64_t entry = two_quads(kIq3xxsGrid[index[2 * l]], kIq3xxsGrid[index[2 * l + 1]]);
      put_octet(out.q + 32 * g + 8 * l, entry, kEvenSigns[(w >> (7 * l)) & 127]);
    }
  }
}

void iq3_s(const uint8_t* x, Codes256& out) noexcept {
  out.d = half_at(x);
  no_mins(out);
  for (int g = 0; g < 8; ++g) {
    const uint8_t* index = x + 2 + 8 * g;
    const uint32_t high = x[66 + g];
    out.scale[2 * g] = out.scale[2 * g + 1] = odd_scale((x[106 + g / 2] >> (4 * (g % 2))) & 15u);
    for (int l = 0; l < 4; ++l) {
      const uint32_t first = index[2 * l] | ((high >> (2 * l)) & 1u) << 8;
      const uint32_t second = index[2 * l + 1] | ((high >> (2 * l + 1)) & 1u) << 8;
      put_octet(out.q + 32 * g + 8 * l, two_quads(kIq3sGrid[first], kIq3sGrid[second]),
                x[74 + 4 * g + l]);
    }
  }
}

// Grid value and shift of +-1/8, both times 8: codes -9, -7, -1, 1, 7, 9. The 1/8 is in d.
void put_shifted(int8_t* q, uint64_t entry, bool negative_shift) noexcept {
  for (int j = 0; j < 8; ++j) {
    q[j] = code(static_cast<int8_t>((entry >> (8 * j)) & 255u) + (negative_shift ? -1 : 1));
  }
}

void iq1_s(const uint8_t* x, Codes256& out) noexcept {
  out.d = half_at(x) * 0.125f;
  no_mins(out);
  for (int g = 0; g < 8; ++g) {
    const uint32_t w = load_u16(x + 34 + 2 * g);
    out.scale[2 * g] = out.scale[2 * g + 1] = odd_scale((w >> 12) & 7u);
    for (int l = 0; l < 4; ++l) {
      const uint32_t index = x[2 + 4 * g + l] | ((w >> (3 * l)) & 7u) << 8;
      put_shifted(out.q + 32 * g + 8 * l, kIq1sGrid8[index], (w >> 15) != 0);
    }
  }
}

void iq1_m(const uint8_t* x, Codes256& out) noexcept {
  uint32_t scale_bits = 0;  // the fp16 scale is spread over the top nibbles of four u16 (§7.8)
  for (int k = 0; k < 4; ++k) scale_bits |= static_cast<uint32_t>(x[49 + 2 * k] >> 4) << (4 * k);
  out.d = half_to_float(static_cast<uint16_t>(scale_bits)) * 0.125f;
  no_mins(out);
  for (int j = 0; j < 16; ++j) {
    out.scale[j] = odd_scale((load_u16(x + 48 + 2 * (j / 4)) >> (3 * (j % 4))) & 7u);
  }
  for (int k = 0; k < 32; ++k) {
    const uint32_t high = (x[32 + k / 2] >> (4 * (k % 2))) & 15u;
    put_shifted(out.q + 8 * k, kIq1sGrid8[x[k] | (high & 7u) << 8], (high & 8u) != 0);
  }
}

}  // namespace

Unpack32 unpack32(TypeId type) noexcept {
  switch (type) {
    case TypeId::Q4_0:
      return q4_0;
    case TypeId::Q4_1:
      return q4_1;
    case TypeId::Q5_0:
      return q5_0;
    case TypeId::Q5_1:
      return q5_1;
    case TypeId::Q8_0:
      return q8_0;
    case TypeId::IQ4_NL:
      return iq4_nl;
    case TypeId::MXFP4:
      return mxfp4;
    case TypeId::Q2_0:
      return q2_0;
    case TypeId::Q1_0:
      return q1_0;
    default:
      return nullptr;
  }
}

Unpack256 unpack256(TypeId type) noexcept {
  switch (type) {
    case TypeId::Q2_K:
      return q2_k;
    case TypeId::Q3_K:
      return q3_k;
    case TypeId::Q4_K:
      return q4_k;
    case TypeId::Q5_K:
      return q5_k;
    case TypeId::Q6_K:
      return q6_k;
    case TypeId::IQ4_XS:
      return iq4_xs;
    case TypeId::TQ2_0:
      return tq2_0;
    case TypeId::IQ2_XXS:
      return iq2_xxs;
    case TypeId::IQ2_XS:
      return iq2_xs;
    case TypeId::IQ2_S:
      return iq2_s;
    case TypeId::IQ3_XXS:
      return iq3_xxs;
    case TypeId::IQ3_S:
      return iq3_s;
    case TypeId::IQ1_S:
      return iq1_s;
    case TypeId::IQ1_M:
      return iq1_m;
    default:
      return nullptr;
  }
}

float ue4m3_to_float(uint8_t bits) noexcept {
  if (bits == 0 || bits == 0x7f) return 0;
  const uint32_t exponent = (bits >> 3) & 15u, mantissa = bits & 7u;
  if (exponent == 0) return static_cast<float>(mantissa) * 0x1p-9f;
  return std::bit_cast<float>((exponent + 120) << 23 | mantissa << 20);
}

}  // namespace penstock::quant
