// The definition of every product (matmul.h). Written for clarity: one row is unpacked block by
// block and met with each token in turn.

#include <cmath>

#include "quant/activation.h"
#include "quant/codebooks.h"
#include "quant/codec.h"
#include "quant/kernels.h"
#include "quant/unpack.h"

namespace penstock::quant {
namespace {

const uint8_t* row_of(const MatmulTile& tile, int64_t row) noexcept {
  return reinterpret_cast<const uint8_t*>(tile.weights) + static_cast<size_t>(row) * tile.row_bytes;
}

void clear_row(const MatmulTile& tile, int64_t row) noexcept {
  for (int64_t t = 0; t < tile.n_tokens; ++t) tile.out[t][row] = 0;
}

// Types of less than 256 elements per block: per 32 elements acc = fma(d * d8, sum(q * q8), acc),
// and for the types with an offset then acc = fma(m * d8, sum(q8), acc).
template <TypeId kType>
void small_blocks(const MatmulTile& tile) noexcept {
  constexpr gguf::TypeInfo info = gguf::type_info(kType);
  constexpr int parts = static_cast<int>(info.block_elems / 32);
  constexpr bool has_offset = kType == TypeId::Q4_1 || kType == TypeId::Q5_1;
  const Unpack32 unpack = unpack32(kType);
  Codes32 w;
  for (int64_t row = 0; row < tile.n_rows; ++row) {
    const uint8_t* block = row_of(tile, row);
    clear_row(tile, row);
    for (int64_t k = 0; k < tile.n_in / 32; ++k) {
      unpack(block, static_cast<int>(k % parts), w);
      for (int64_t t = 0; t < tile.n_tokens; ++t) {
        const Act32 act(tile.acts[t], tile.n_in);
        int32_t sum = 0;
        for (int i = 0; i < 32; ++i) sum += w.q[i] * act.codes[32 * k + i];
        float acc = std::fma(w.d * act.scales[k], static_cast<float>(sum), tile.out[t][row]);
        if (has_offset) acc = std::fma(w.m * act.scales[k], static_cast<float>(act.sums[k]), acc);
        tile.out[t][row] = acc;
      }
      if (k % parts == parts - 1) block += info.block_bytes;
    }
  }
}

// NVFP4's sub-block scales are no integers: one fma per 16 elements.
void nvfp4(const MatmulTile& tile) noexcept {
  for (int64_t row = 0; row < tile.n_rows; ++row) {
    const uint8_t* block = row_of(tile, row);
    clear_row(tile, row);
    for (int64_t k = 0; k < tile.n_in / 16; ++k) {
      const int part = static_cast<int>(k % 4);
      const float scale = 0.5f * ue4m3_to_float(block[part]);
      const uint8_t* q = block + 4 + 8 * part;
      for (int64_t t = 0; t < tile.n_tokens; ++t) {
        const Act32 act(tile.acts[t], tile.n_in);
        int32_t sum = 0;
        for (int i = 0; i < 16; ++i) {
          sum += kMxfp4Values[(q[i % 8] >> (4 * (i / 8))) & 15] * act.codes[16 * k + i];
        }
        tile.out[t][row] =
            std::fma(scale * act.scales[k / 2], static_cast<float>(sum), tile.out[t][row]);
      }
      if (part == 3) block += 36;
    }
  }
}

// 256 elements per block: acc = fma(d * d8, sum_j scale_j * sum(q * q8), acc), and for the types
// with mins then acc = fma(-(dmin * d8), sum_j min_j * sum(q8), acc). The sums are exact: the
// largest, Q6_K's, stays below 256 * 128 * 32 * 127 < 2^27.
template <TypeId kType>
void large_blocks(const MatmulTile& tile) noexcept {
  constexpr gguf::TypeInfo info = gguf::type_info(kType);
  constexpr bool has_mins = kType == TypeId::Q2_K || kType == TypeId::Q4_K || kType == TypeId::Q5_K;
  const Unpack256 unpack = unpack256(kType);
  Codes256 w;
  for (int64_t row = 0; row < tile.n_rows; ++row) {
    const uint8_t* block = row_of(tile, row);
    clear_row(tile, row);
    for (int64_t k = 0; k < tile.n_in / 256; ++k, block += info.block_bytes) {
      unpack(block, w);
      for (int64_t t = 0; t < tile.n_tokens; ++t) {
        const Act256 act(tile.acts[t], tile.n_in);
        const int8_t* a = act.codes + 256 * k;
        int32_t sum = 0, min_sum = 0;
        for (int j = 0; j < 16; ++j) {
          int32_t part = 0;
          for (int i = 16 * j; i < 16 * j + 16; ++i) part += w.q[i] * a[i];
          sum += w.scale[j] * part;
          min_sum += w.min[j] * act.sums[16 * k + j];
        }
        float acc = std::fma(w.d * act.scales[k], static_cast<float>(sum), tile.out[t][row]);
        if (has_mins) {
          acc = std::fma(-(w.dmin * act.scales[k]), static_cast<float>(min_sum), acc);
        }
        tile.out[t][row] = acc;
      }
    }
  }
}

template <TypeId kType>
void floats(const MatmulTile& tile) noexcept {
  auto* w = reinterpret_cast<float*>(tile.scratch);
  for (int64_t row = 0; row < tile.n_rows; ++row) {
    decode_row(kType, row_of(tile, row), w, tile.n_in);
    for (int64_t t = 0; t < tile.n_tokens; ++t) {
      const auto* a = static_cast<const float*>(tile.acts[t]);
      float l[8] = {};
      for (int64_t i = 0; i < tile.n_in; ++i) l[i % 8] = std::fma(w[i], a[i], l[i % 8]);
      tile.out[t][row] = ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]));
    }
  }
}

void quantize32(const float* x, void* out, int64_t n) noexcept {
  const Act32 act(out, n);
  auto* codes = const_cast<int8_t*>(act.codes);
  auto* scales = const_cast<float*>(act.scales);
  auto* sums = const_cast<int32_t*>(act.sums);
  for (int64_t k = 0; k < n / 32; ++k) {
    uint32_t max_bits = 0;
    for (int64_t i = 32 * k; i < 32 * k + 32; ++i) {
      const uint32_t bits = std::bit_cast<uint32_t>(x[i]) & 0x7fffffffu;
      if (bits > max_bits) max_bits = bits;
    }
    const ActScale s = act_scale(max_bits);
    scales[k] = s.scale;
    int32_t sum = 0;
    for (int64_t i = 32 * k; i < 32 * k + 32; ++i) {
      const int value = s.inverse == 0 ? 0 : static_cast<int>(std::nearbyint(x[i] * s.inverse));
      codes[i] = static_cast<int8_t>(value);
      sum += value;
    }
    sums[k] = sum;
  }
}

void quantize256(const float* x, void* out, int64_t n) noexcept {
  const Act256 act(out, n);
  auto* codes = const_cast<int8_t*>(act.codes);
  auto* scales = const_cast<float*>(act.scales);
  auto* sums = const_cast<int16_t*>(act.sums);
  for (int64_t k = 0; k < n / 256; ++k) {
    uint32_t max_bits = 0;
    for (int64_t i = 256 * k; i < 256 * k + 256; ++i) {
      const uint32_t bits = std::bit_cast<uint32_t>(x[i]) & 0x7fffffffu;
      if (bits > max_bits) max_bits = bits;
    }
    const ActScale s = act_scale(max_bits);
    scales[k] = s.scale;
    for (int64_t j = 16 * k; j < 16 * k + 16; ++j) {
      int sum = 0;
      for (int64_t i = 16 * j; i < 16 * j + 16; ++i) {
        const int value = s.inverse == 0 ? 0 : static_cast<int>(std::nearbyint(x[i] * s.inverse));
        codes[i] = static_cast<int8_t>(value);
        sum += value;
      }
      sums[j] = static_cast<int16_t>(sum);
    }
  }
}

KernelTable make_table() noexcept {
  KernelTable table;
  const auto set = [&table](TypeId type, Kernel kernel) { table[type] = {kernel, kernel, 1}; };
  set(TypeId::F32, floats<TypeId::F32>);
  set(TypeId::F16, floats<TypeId::F16>);
  set(TypeId::BF16, floats<TypeId::BF16>);
  set(TypeId::Q4_0, small_blocks<TypeId::Q4_0>);
  set(TypeId::Q4_1, small_blocks<TypeId::Q4_1>);
  set(TypeId::Q5_0, small_blocks<TypeId::Q5_0>);
  set(TypeId::Q5_1, small_blocks<TypeId::Q5_1>);
  set(TypeId::Q8_0, small_blocks<TypeId::Q8_0>);
  set(TypeId::IQ4_NL, small_blocks<TypeId::IQ4_NL>);
  set(TypeId::MXFP4, small_blocks<TypeId::MXFP4>);
  set(TypeId::Q2_0, small_blocks<TypeId::Q2_0>);
  set(TypeId::Q1_0, small_blocks<TypeId::Q1_0>);
  set(TypeId::NVFP4, nvfp4);
  set(TypeId::Q2_K, large_blocks<TypeId::Q2_K>);
  set(TypeId::Q3_K, large_blocks<TypeId::Q3_K>);
  set(TypeId::Q4_K, large_blocks<TypeId::Q4_K>);
  set(TypeId::Q5_K, large_blocks<TypeId::Q5_K>);
  set(TypeId::Q6_K, large_blocks<TypeId::Q6_K>);
  set(TypeId::IQ4_XS, large_blocks<TypeId::IQ4_XS>);
  set(TypeId::TQ2_0, large_blocks<TypeId::TQ2_0>);
  set(TypeId::IQ2_XXS, large_blocks<TypeId::IQ2_XXS>);
  set(TypeId::IQ2_XS, large_blocks<TypeId::IQ2_XS>);
  set(TypeId::IQ2_S, large_blocks<TypeId::IQ2_S>);
  set(TypeId::IQ3_XXS, large_blocks<TypeId::IQ3_XXS>);
  set(TypeId::IQ3_S, large_blocks<TypeId::IQ3_S>);
  set(TypeId::IQ1_S, large_blocks<TypeId::IQ1_S>);
  set(TypeId::IQ1_M, large_blocks<TypeId::IQ1_M>);
  table.quantize32 = quantize32;
  table.quantize256 = quantize256;
  return table;
}

}  // namespace

const KernelTable& scalar_table() noexcept {
  static const KernelTable table = make_table();
  return table;
}

}  // namespace penstock::quant
