// AVX2 kernels of F32, F16 and BF16 weights: eight lane accumulators per output (matmul.h).

#include <cmath>

#include "quant/avx2.h"

namespace penstock::quant {
namespace {

struct F32 {
  static constexpr size_t kBytes = 4;
  PENSTOCK_INLINE static __m256 load8(const uint8_t* p) noexcept {
    return _mm256_loadu_ps(reinterpret_cast<const float*>(p));
  }
  PENSTOCK_INLINE static float load1(const uint8_t* p) noexcept {
    return _mm_cvtss_f32(_mm_castsi128_ps(load32(p)));
  }
};

struct F16 {
  static constexpr size_t kBytes = 2;
  PENSTOCK_INLINE static __m256 load8(const uint8_t* p) noexcept {
    return _mm256_cvtph_ps(load128(p));
  }
  PENSTOCK_INLINE static float load1(const uint8_t* p) noexcept {
    uint16_t half;
    std::memcpy(&half, p, 2);
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(half)));
  }
};

struct BF16 {
  static constexpr size_t kBytes = 2;
  PENSTOCK_INLINE static __m256 load8(const uint8_t* p) noexcept {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load128(p)), 16));
  }
  PENSTOCK_INLINE static float load1(const uint8_t* p) noexcept {
    uint16_t half;
    std::memcpy(&half, p, 2);
    return _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(half << 16)));
  }
};

// ((l0+l4)+(l2+l6)) + ((l1+l5)+(l3+l7))
PENSTOCK_INLINE float reduce_lanes(__m256 l) noexcept {
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(l), _mm256_extractf128_ps(l, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

// kRows rows times kTokens tokens.
template <class W, int kRows, int kTokens>
PENSTOCK_INLINE void float_block(const MatmulTile& tile, int64_t row, int64_t token) noexcept {
  const uint8_t* w[kRows];
  const float* a[kTokens];
  __m256 acc[kTokens][kRows];
  for (int r = 0; r < kRows; ++r) {
    w[r] = first_row(tile) + static_cast<size_t>(row + r) * tile.row_bytes;
  }
  for (int t = 0; t < kTokens; ++t) {
    a[t] = static_cast<const float*>(tile.acts[token + t]);
    for (int r = 0; r < kRows; ++r) acc[t][r] = _mm256_setzero_ps();
  }
  const int64_t whole = tile.n_in / 8 * 8;
  for (int64_t i = 0; i < whole; i += 8) {
    __m256 x[kTokens];
    for (int t = 0; t < kTokens; ++t) x[t] = _mm256_loadu_ps(a[t] + i);
    for (int r = 0; r < kRows; ++r) {
      const __m256 y = W::load8(w[r] + static_cast<size_t>(i) * W::kBytes);
      for (int t = 0; t < kTokens; ++t) acc[t][r] = _mm256_fmadd_ps(y, x[t], acc[t][r]);
    }
  }
  for (int t = 0; t < kTokens; ++t) {
    for (int r = 0; r < kRows; ++r) {
      if (whole != tile.n_in) {
        alignas(32) float lanes[8];
        _mm256_store_ps(lanes, acc[t][r]);
        for (int64_t i = whole; i < tile.n_in; ++i) {
          const float y = W::load1(w[r] + static_cast<size_t>(i) * W::kBytes);
          lanes[i - whole] = std::fma(y, a[t][i], lanes[i - whole]);
        }
        acc[t][r] = _mm256_load_ps(lanes);
      }
      tile.out[token + t][row + r] = reduce_lanes(acc[t][r]);
    }
  }
}

// Tokens token..end for kRows rows.
template <class W, int kRows>
PENSTOCK_INLINE void float_rows(const MatmulTile& tile, int64_t row, int64_t token,
                                int64_t end) noexcept {
  for (; token + 3 <= end; token += 3) float_block<W, kRows, 3>(tile, row, token);
  for (; token < end; ++token) float_block<W, kRows, 1>(tile, row, token);
}

// Four rows by three tokens fill the register file. Tokens come in groups whose activations stay in
// the L2 cache while all rows pass; without that every four rows read all activations from L3.
template <class W>
void gemm_float(const MatmulTile& tile) noexcept {
  constexpr int64_t kGroupBytes = 256 * 1024;
  const int64_t fit = kGroupBytes / (tile.n_in * 4) / 3 * 3;
  const int64_t group = fit < 6 ? 6 : fit;
  for (int64_t token = 0; token < tile.n_tokens; token += group) {
    const int64_t end = token + group < tile.n_tokens ? token + group : tile.n_tokens;
    int64_t row = 0;
    for (; row + 4 <= tile.n_rows; row += 4) float_rows<W, 4>(tile, row, token, end);
    for (; row < tile.n_rows; ++row) float_rows<W, 1>(tile, row, token, end);
  }
}

// Eight rows by one token keep both FMA pipes busy and read memory in eight streams.
template <class W>
void gemv_float(const MatmulTile& tile) noexcept {
  int64_t row = 0;
  for (; row + 8 <= tile.n_rows; row += 8) {
    for (int64_t t = 0; t < tile.n_tokens; ++t) float_block<W, 8, 1>(tile, row, t);
  }
  for (; row < tile.n_rows; ++row) float_rows<W, 1>(tile, row, 0, tile.n_tokens);
}

}  // namespace

void add_avx2_floats(KernelTable& table) noexcept {
  table[TypeId::F32] = {gemv_float<F32>, gemm_float<F32>, 3};
  table[TypeId::F16] = {gemv_float<F16>, gemm_float<F16>, 3};
  table[TypeId::BF16] = {gemv_float<BF16>, gemm_float<BF16>, 3};
}

}  // namespace penstock::quant
