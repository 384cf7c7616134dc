#include <cstring>

#include "quant/codebooks.h"
#include "quant/codec.h"
#include "quant/half.h"
#include "quant/unpack.h"

namespace penstock::quant {
namespace {

void decode_small(Unpack32 unpack, const gguf::TypeInfo& info, const uint8_t* in, float* out,
                  int64_t n) noexcept {
  const int parts = static_cast<int>(info.block_elems / 32);
  Codes32 codes;
  for (int64_t i = 0; i < n; i += info.block_elems, in += info.block_bytes) {
    for (int part = 0; part < parts; ++part, out += 32) {
      unpack(in, part, codes);
      if (codes.m == 0) {  // keeps the sign of zero products
        for (int k = 0; k < 32; ++k) out[k] = codes.d * codes.q[k];
      } else {
        for (int k = 0; k < 32; ++k) out[k] = codes.d * codes.q[k] + codes.m;
      }
    }
  }
}

void decode_large(Unpack256 unpack, const gguf::TypeInfo& info, const uint8_t* in, float* out,
                  int64_t n) noexcept {
  Codes256 codes;
  for (int64_t i = 0; i < n; i += 256, in += info.block_bytes) {
    unpack(in, codes);
    for (int j = 0; j < 16; ++j, out += 16) {
      const float scale = codes.d * codes.scale[j];
      const float min = codes.dmin * codes.min[j];
      const int8_t* q = codes.q + 16 * j;
      if (codes.dmin == 0) {
        for (int k = 0; k < 16; ++k) out[k] = scale * q[k];
      } else {
        for (int k = 0; k < 16; ++k) out[k] = scale * q[k] - min;
      }
    }
  }
}

void decode_nvfp4(const uint8_t* in, float* out, int64_t n) noexcept {
  for (int64_t i = 0; i < n; i += 64, in += 36, out += 64) {
    for (int k = 0; k < 64; ++k) {
      const int t = k / 16;
      const int code = (in[4 + 8 * t + k % 8] >> (4 * ((k % 16) / 8))) & 15;
      out[k] = 0.5f * ue4m3_to_float(in[t]) * kMxfp4Values[code];
    }
  }
}

// The values that the four codes of a byte stand for, in units of d.
struct Q20Bytes {
  float values[256][4];
  constexpr Q20Bytes() : values() {
    for (int byte = 0; byte < 256; ++byte) {
      for (int k = 0; k < 4; ++k) {
        values[byte][k] = static_cast<float>(((byte >> (2 * k)) & 3) - 1);
      }
    }
  }
};
constexpr Q20Bytes kQ20Bytes;

void decode_q2_0(const uint8_t* in, float* out, int64_t n) noexcept {
  for (int64_t i = 0; i < n; i += 64, in += 18) {
    const float d = half_to_float(load_u16(in));
    for (int j = 0; j < 16; ++j, out += 4) {
      const float* values = kQ20Bytes.values[in[2 + j]];
      for (int k = 0; k < 4; ++k) out[k] = d * values[k];
    }
  }
}

}  // namespace

bool can_decode(TypeId type) noexcept {
  switch (type) {
    case TypeId::F32:
    case TypeId::F16:
    case TypeId::BF16:
    case TypeId::NVFP4:
      return true;
    default:
      return unpack32(type) || unpack256(type);
  }
}

void decode_row(TypeId type, const void* in, float* out, int64_t n) noexcept {
  const auto* bytes = static_cast<const uint8_t*>(in);
  switch (type) {
    case TypeId::F32:
      std::memcpy(out, in, static_cast<size_t>(n) * sizeof(float));
      return;
    case TypeId::F16:
      for (int64_t i = 0; i < n; ++i) out[i] = half_to_float(load_u16(bytes + 2 * i));
      return;
    case TypeId::BF16:
      for (int64_t i = 0; i < n; ++i) out[i] = bf16_to_float(load_u16(bytes + 2 * i));
      return;
    case TypeId::NVFP4:
      decode_nvfp4(bytes, out, n);
      return;
    case TypeId::Q2_0:
      decode_q2_0(bytes, out, n);
      return;
    default:
      break;
  }
  if (const Unpack32 small = unpack32(type)) {
    decode_small(small, gguf::type_info(type), bytes, out, n);
  } else if (const Unpack256 large = unpack256(type)) {
    decode_large(large, gguf::type_info(type), bytes, out, n);
  }
}

}  // namespace penstock::quant
