#include "surgery/block_fill.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "quant/codec.h"
#include "quant/half.h"

namespace penstock::surgery {
namespace {

using gguf::TypeId;

// 4096 values at the mid-points of equal shares of the normal distribution.
const std::array<float, 4096>& gaussian_table() {
  static const std::array<float, 4096> table = [] {
    std::array<float, 4096> t{};
    for (size_t i = 0; i < t.size(); ++i) {
      const double share = (static_cast<double>(i) + 0.5) / static_cast<double>(t.size());
      // Newton's steps on erfc from a crude start; 40 are plenty for the tails.
      double x = 0;
      for (int step = 0; step < 40; ++step) {
        const double phi = 0.5 * std::erfc(-x / std::sqrt(2.0));
        const double density = std::exp(-0.5 * x * x) / std::sqrt(2 * 3.14159265358979323846);
        x -= std::clamp((phi - share) / density, -0.5, 0.5);
      }
      t[i] = static_cast<float>(x);
    }
    return t;
  }();
  return table;
}

void put_half(std::byte* at, float value) noexcept {
  const uint16_t half = quant::float_to_half(std::clamp(value, -65504.0f, 65504.0f));
  std::memcpy(at, &half, sizeof half);
}

void random_bytes(std::byte* out, size_t n, Random* random) noexcept {
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const uint64_t word = random->next();
    std::memcpy(out + i, &word, 8);
  }
  if (i < n) {
    const uint64_t word = random->next();
    std::memcpy(out + i, &word, n - i);
  }
}

// Q4_K, Q5_K: eight 6-bit scales and eight 6-bit minima; equal pairs keep the mean at zero.
void put_k_scales(std::byte* s, Random* random) noexcept {
  uint64_t word = random->next();
  uint8_t sc[8];
  for (uint8_t& value : sc) {
    value = static_cast<uint8_t>(32 + (word & 31));
    word >>= 5;
  }
  for (int j = 0; j < 4; ++j) {
    const auto low = static_cast<std::byte>(sc[j] | ((sc[j + 4] >> 4) << 6));
    s[j] = s[j + 4] = low;
    s[j + 8] = static_cast<std::byte>((sc[j + 4] & 15) | ((sc[j + 4] & 15) << 4));
  }
}

void flip_nibble_signs(std::byte* codes, size_t n) noexcept {
  for (size_t i = 0; i < n; ++i) codes[i] ^= std::byte{0x88};
}

// MXFP4 has powers of two only: two neighbouring ones, mixed so that the mean square is right.
uint8_t mxfp4_exponent(float magnitude, Random* random) noexcept {
  if (magnitude < 1e-30f) return 0;
  const float power = std::log2(magnitude);
  const float floor = std::floor(power);
  const float excess = std::exp2(2 * (power - floor));  // in [1, 4)
  const float share = (excess - 1) / 3;
  const bool upper = static_cast<float>(random->next() >> 40) * 0x1p-24f < share;
  return static_cast<uint8_t>(std::clamp(128.0f + floor + (upper ? 1.0f : 0.0f), 0.0f, 254.0f));
}

// The nearest unsigned E4M3 value.
uint8_t ue4m3(float value) noexcept {
  if (value < 0x1p-6f) return static_cast<uint8_t>(std::lround(std::min(value, 0x1p-6f) * 512));
  const int exponent = std::min(8, static_cast<int>(std::floor(std::log2(value))));
  const float mantissa = value / std::exp2(static_cast<float>(exponent));
  const long code = (exponent + 7) * 8 + std::lround((mantissa - 1) * 8);
  return static_cast<uint8_t>(std::clamp(code, 0L, 0x7EL));
}

// One block: all bytes are random on entry; scales are put in their places. `scale` is signed.
void put_scales(TypeId type, std::byte* b, float scale, Random* random) noexcept {
  // Types whose codes are not symmetric get a random sign on each block's scale.
  const auto either = [&] { return (random->next() & 1) != 0 ? scale : -scale; };
  switch (type) {
    case TypeId::Q4_1:
      put_half(b, scale);
      put_half(b + 2, -7.5f * scale);
      break;
    case TypeId::Q5_1:
      put_half(b, scale);
      put_half(b + 2, -15.5f * scale);
      break;
    case TypeId::Q8_0:
      put_half(b, scale);
      for (int i = 2; i < 34; ++i) {  // no encoder writes -128
        if (b[i] == std::byte{0x80}) b[i] = std::byte{0x81};
      }
      break;
    case TypeId::Q2_K:
      for (int i = 0; i < 16; ++i) {
        const auto sc = static_cast<uint8_t>(8 + (static_cast<uint8_t>(b[i]) & 7));
        b[i] = static_cast<std::byte>(sc | (sc << 4));
      }
      put_half(b + 80, scale);
      put_half(b + 82, 1.5f * scale);
      break;
    case TypeId::Q3_K:
      put_half(b + 108, either());
      break;
    case TypeId::Q4_K:
    case TypeId::Q5_K:
      put_half(b, scale);
      put_half(b + 2, (type == TypeId::Q4_K ? 7.5f : 15.5f) * scale);
      put_k_scales(b + 4, random);
      break;
    case TypeId::Q6_K:
      put_half(b + 208, either());
      break;
    case TypeId::TQ1_0:
      put_half(b + 52, scale);
      break;
    case TypeId::TQ2_0:
      put_half(b + 64, either());
      break;
    case TypeId::IQ1_M: {
      const uint16_t half = quant::float_to_half(either());
      for (int i = 0; i < 4; ++i) {
        const auto nibble = static_cast<uint8_t>((half >> (4 * i)) & 15);
        std::byte& high = b[49 + 2 * i];
        high = (high & std::byte{0x0F}) | static_cast<std::byte>(nibble << 4);
      }
      break;
    }
    case TypeId::MXFP4:
      b[0] = static_cast<std::byte>(mxfp4_exponent(std::fabs(scale), random));
      if (scale < 0) flip_nibble_signs(b + 1, 16);
      break;
    case TypeId::NVFP4:
      for (int i = 0; i < 4; ++i) b[i] = static_cast<std::byte>(ue4m3(std::fabs(scale)));
      if (scale < 0) flip_nibble_signs(b + 4, 32);
      break;
    default:  // fp16 scale in front, codes or signs behind
      put_half(b, either());
      break;
  }
}

}  // namespace

float Random::gaussian() noexcept {
  return gaussian_table()[next() >> 52];
}

BlockFill::BlockFill(TypeId type) : type_(type) {
  const bool activation = type == TypeId::Q8_1 || type == TypeId::Q8_K;
  if (activation || !quant::can_decode(type)) {
    fail(ErrorKind::Unsupported, "random weights cannot be made in type {}", gguf::type_name(type));
  }
  if (gguf::type_info(type).block_elems == 1) return;
  constexpr uint64_t kSample = 1 << 16;
  std::vector<std::byte> blocks(gguf::row_bytes(type, kSample));
  std::vector<float> values(kSample);
  fill(blocks.data(), kSample, 1.0f, 1);
  quant::decode_row(type, blocks.data(), values.data(), kSample);
  double sum = 0;
  for (const float v : values) sum += static_cast<double>(v) * static_cast<double>(v);
  unit_ = static_cast<float>(std::sqrt(sum / kSample));
}

void BlockFill::fill(std::byte* out, uint64_t n, float deviation, uint64_t seed) const noexcept {
  const gguf::TypeInfo& info = gguf::type_info(type_);
  const uint64_t bytes = n / info.block_elems * info.block_bytes;
  if (deviation == 0.0f) {
    std::memset(out, 0, bytes);
  } else if (info.block_elems > 1) {
    fill_blocks(out, n / info.block_elems, deviation / unit_, seed);
  } else {
    const std::array<float, 4096>& table = gaussian_table();
    Random random(seed);
    uint64_t word = 0;
    for (uint64_t i = 0; i < n; ++i) {
      if (i % 5 == 0) word = random.next();
      const float value = table[word & 4095] * deviation;
      word >>= 12;
      if (type_ == TypeId::F32) {
        std::memcpy(out + 4 * i, &value, 4);
      } else {
        const uint16_t half =
            type_ == TypeId::F16 ? quant::float_to_half(value) : quant::float_to_bf16(value);
        std::memcpy(out + 2 * i, &half, 2);
      }
    }
  }
}

void BlockFill::fill_blocks(std::byte* out, uint64_t n_blocks, float scale,
                            uint64_t seed) const noexcept {
  const uint32_t block_bytes = gguf::type_info(type_).block_bytes;
  Random random(seed);
  for (uint64_t i = 0; i < n_blocks; ++i) {
    std::byte* block = out + i * block_bytes;
    random_bytes(block, block_bytes, &random);
    put_scales(type_, block, scale, &random);
  }
}

}  // namespace penstock::surgery
