// Products of float weights with f32 activations: eight lanes per output (matmul.h), held in two
// vectors.
#pragma once

#include <cmath>

#include "quant/half.h"
#include "quant/neon.h"

namespace penstock::quant {
namespace {

// Four elements from element i of a row on, and one.
struct F32Row {
  static constexpr TypeId kId = TypeId::F32;
  static PENSTOCK_INLINE float32x4_t load4(const uint8_t* row, int64_t i) noexcept {
    return vreinterpretq_f32_u8(vld1q_u8(row + 4 * i));
  }
  static PENSTOCK_INLINE float load(const uint8_t* row, int64_t i) noexcept {
    float value;
    std::memcpy(&value, row + 4 * i, sizeof(value));
    return value;
  }
};

struct F16Row {
  static constexpr TypeId kId = TypeId::F16;
  static PENSTOCK_INLINE float32x4_t load4(const uint8_t* row, int64_t i) noexcept {
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(row + 2 * i)));
  }
  static PENSTOCK_INLINE float load(const uint8_t* row, int64_t i) noexcept {
    uint16_t value;
    std::memcpy(&value, row + 2 * i, sizeof(value));
    return half_to_float(value);
  }
};

struct Bf16Row {
  static constexpr TypeId kId = TypeId::BF16;
  static PENSTOCK_INLINE float32x4_t load4(const uint8_t* row, int64_t i) noexcept {
    const uint16x4_t bits = vreinterpret_u16_u8(vld1_u8(row + 2 * i));
    return vreinterpretq_f32_u32(vshll_n_u16(bits, 16));
  }
  static PENSTOCK_INLINE float load(const uint8_t* row, int64_t i) noexcept {
    uint16_t value;
    std::memcpy(&value, row + 2 * i, sizeof(value));
    return bf16_to_float(value);
  }
};

// The sum of eight lanes, in the order that matmul.h lays down.
PENSTOCK_INLINE float sum_lanes(float32x4_t low, float32x4_t high) noexcept {
  const float32x4_t four = vaddq_f32(low, high);
  const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
  return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}

// kRows rows at w[] with kTokens tokens: out[token + t][row + r].
template <class Row, int kRows, int kTokens>
void multiply_floats(const MatmulTile& tile, const uint8_t* const* w, int64_t row,
                     int64_t token) noexcept {
  const float* a[kTokens];
  for (int t = 0; t < kTokens; ++t) a[t] = static_cast<const float*>(tile.acts[token + t]);
  float32x4_t acc[kRows][kTokens][2];
  for (int r = 0; r < kRows; ++r) {
    for (int t = 0; t < kTokens; ++t) acc[r][t][0] = acc[r][t][1] = vdupq_n_f32(0);
  }
  int64_t i = 0;
  for (; i + 8 <= tile.n_in; i += 8) {
    for (int h = 0; h < 2; ++h) {
      float32x4_t x[kTokens];
      for (int t = 0; t < kTokens; ++t) x[t] = vld1q_f32(a[t] + i + 4 * h);
      for (int r = 0; r < kRows; ++r) {
        const float32x4_t q = Row::load4(w[r], i + 4 * h);
        for (int t = 0; t < kTokens; ++t) acc[r][t][h] = vfmaq_f32(acc[r][t][h], q, x[t]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int t = 0; t < kTokens; ++t) {
      // The lanes beyond the end keep their values: an fma with zeros could lose a -0.
      float lanes[8];
      vst1q_f32(lanes, acc[r][t][0]);
      vst1q_f32(lanes + 4, acc[r][t][1]);
      for (int64_t j = i; j < tile.n_in; ++j) {
        lanes[j - i] = std::fma(Row::load(w[r], j), a[t][j], lanes[j - i]);
      }
      tile.out[token + t][row + r] = sum_lanes(vld1q_f32(lanes), vld1q_f32(lanes + 4));
    }
  }
}

// All tokens, kTokens at a time.
template <class Row, int kRows, int kTokens>
void multiply_tokens(const MatmulTile& tile, const uint8_t* const* w, int64_t row) noexcept {
  int64_t token = 0;
  for (; token + kTokens <= tile.n_tokens; token += kTokens) {
    multiply_floats<Row, kRows, kTokens>(tile, w, row, token);
  }
  for (; token < tile.n_tokens; ++token) multiply_floats<Row, kRows, 1>(tile, w, row, token);
}

// `rows(row, count, w)` gives the rows' addresses. Four rows by three tokens fill the registers.
template <class Row, int kTokens, class Rows>
PENSTOCK_INLINE void by_four_rows(const MatmulTile& tile, Rows rows) noexcept {
  const uint8_t* w[4];
  int64_t row = 0;
  for (; row + 4 <= tile.n_rows; row += 4) {
    rows(row, 4, w);
    multiply_tokens<Row, 4, kTokens>(tile, w, row);
  }
  for (; row < tile.n_rows; ++row) {
    rows(row, 1, w);
    multiply_tokens<Row, 1, kTokens>(tile, w, row);
  }
}

PENSTOCK_INLINE const uint8_t* row_at(const MatmulTile& tile, int64_t row) noexcept {
  return reinterpret_cast<const uint8_t*>(tile.weights) + static_cast<size_t>(row) * tile.row_bytes;
}

template <class Row, int kTokens>
void multiply_stored(const MatmulTile& tile) noexcept {
  by_four_rows<Row, kTokens>(tile, [&](int64_t row, int count, const uint8_t** w) {
    for (int r = 0; r < count; ++r) w[r] = row_at(tile, row + r);
  });
}

// Rows become f32 in the scratch, four at a time, before they meet the tokens.
template <class Row>
void multiply_widened(const MatmulTile& tile) noexcept {
  static_assert(2 * kPanelBytesPerElement >= 4 * sizeof(float));  // there are two panels at least
  auto* wide = reinterpret_cast<float*>(tile.scratch);
  by_four_rows<F32Row, 3>(tile, [&](int64_t row, int count, const uint8_t** w) {
    for (int r = 0; r < count; ++r) {
      const uint8_t* from = row_at(tile, row + r);
      float* to = wide + r * tile.n_in;
      int64_t i = 0;
      for (; i + 4 <= tile.n_in; i += 4) vst1q_f32(to + i, Row::load4(from, i));
      for (; i < tile.n_in; ++i) to[i] = Row::load(from, i);
      w[r] = reinterpret_cast<const uint8_t*>(to);
    }
  });
}

void add_floats(KernelTable& table) noexcept {
  table[TypeId::F32] = {multiply_stored<F32Row, 1>, multiply_stored<F32Row, 3>, 2};
  table[TypeId::F16] = {multiply_stored<F16Row, 1>, multiply_widened<F16Row>, 4};
  table[TypeId::BF16] = {multiply_stored<Bf16Row, 1>, multiply_widened<Bf16Row>, 4};
}

}  // namespace
}  // namespace penstock::quant
