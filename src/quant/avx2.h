// Helpers of the AVX2 kernels. Included only by avx2_*.cpp, which are compiled for AVX2, FMA, F16C
// and BMI2; everything here has internal linkage, so no such code can leak into other objects.
#pragma once

#include <immintrin.h>

#include <cstring>

#include "quant/activation.h"
#include "quant/kernels.h"

namespace penstock::quant {

namespace {

#define PENSTOCK_INLINE inline __attribute__((always_inline))

PENSTOCK_INLINE __m256i load256(const void* p) noexcept {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
PENSTOCK_INLINE __m128i load128(const void* p) noexcept {
  return _mm_loadu_si128(static_cast<const __m128i*>(p));
}
PENSTOCK_INLINE __m128i load64(const void* p) noexcept {
  return _mm_loadl_epi64(static_cast<const __m128i*>(p));
}
PENSTOCK_INLINE __m128i load32(const void* p) noexcept {
  int32_t value;
  std::memcpy(&value, p, sizeof(value));
  return _mm_cvtsi32_si128(value);
}
PENSTOCK_INLINE void store256(void* p, __m256i v) noexcept {
  _mm256_storeu_si256(static_cast<__m256i*>(p), v);
}
PENSTOCK_INLINE __m256i broadcast32(const void* p) noexcept {
  int32_t value;
  std::memcpy(&value, p, sizeof(value));
  return _mm256_set1_epi32(value);
}
PENSTOCK_INLINE __m256i broadcast128(const void* p) noexcept {
  return _mm256_broadcastsi128_si256(load128(p));
}
// Low and high nibbles of 16 bytes as the low and high half: elements (j, j + 16) in order.
PENSTOCK_INLINE __m256i nibbles(const void* p) noexcept {
  const __m128i bytes = load128(p);
  const __m256i both =
      _mm256_inserti128_si256(_mm256_castsi128_si256(bytes), _mm_srli_epi16(bytes, 4), 1);
  return _mm256_and_si256(both, _mm256_set1_epi8(15));
}

// Lane r of the result is the sum of the eight lanes of v[r].
PENSTOCK_INLINE __m256i reduce8(const __m256i* v) noexcept {
  __m256i pair[4], quad[2];
  for (int i = 0; i < 4; ++i) {
    pair[i] = _mm256_add_epi32(_mm256_unpacklo_epi32(v[2 * i], v[2 * i + 1]),
                               _mm256_unpackhi_epi32(v[2 * i], v[2 * i + 1]));
  }
  for (int i = 0; i < 2; ++i) {
    quad[i] = _mm256_add_epi32(_mm256_unpacklo_epi64(pair[2 * i], pair[2 * i + 1]),
                               _mm256_unpackhi_epi64(pair[2 * i], pair[2 * i + 1]));
  }
  return _mm256_add_epi32(_mm256_permute2x128_si256(quad[0], quad[1], 0x20),
                          _mm256_permute2x128_si256(quad[0], quad[1], 0x31));
}

// Lane c of out[r] is lane r of v[c].
PENSTOCK_INLINE void transpose8(const __m256i* v, __m256i* out) noexcept {
  __m256i a[8], b[8];
  for (int i = 0; i < 4; ++i) {
    a[2 * i] = _mm256_unpacklo_epi32(v[2 * i], v[2 * i + 1]);
    a[2 * i + 1] = _mm256_unpackhi_epi32(v[2 * i], v[2 * i + 1]);
  }
  for (int i = 0; i < 2; ++i) {
    b[4 * i] = _mm256_unpacklo_epi64(a[4 * i], a[4 * i + 2]);
    b[4 * i + 1] = _mm256_unpackhi_epi64(a[4 * i], a[4 * i + 2]);
    b[4 * i + 2] = _mm256_unpacklo_epi64(a[4 * i + 1], a[4 * i + 3]);
    b[4 * i + 3] = _mm256_unpackhi_epi64(a[4 * i + 1], a[4 * i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    out[i] = _mm256_permute2x128_si256(b[i], b[4 + i], 0x20);
    out[4 + i] = _mm256_permute2x128_si256(b[i], b[4 + i], 0x31);
  }
}

// The fp16 numbers at p[0..7] + offset as f32 lanes.
PENSTOCK_INLINE __m256 halves8(const uint8_t* const* p, size_t offset) noexcept {
  __m128i w[8];
  for (int i = 0; i < 8; ++i) {
    uint16_t half;
    std::memcpy(&half, p[i] + offset, sizeof(half));
    w[i] = _mm_cvtsi32_si128(half);
  }
  const __m128i low =
      _mm_unpacklo_epi32(_mm_unpacklo_epi16(w[0], w[1]), _mm_unpacklo_epi16(w[2], w[3]));
  const __m128i high =
      _mm_unpacklo_epi32(_mm_unpacklo_epi16(w[4], w[5]), _mm_unpacklo_epi16(w[6], w[7]));
  return _mm256_cvtph_ps(_mm_unpacklo_epi64(low, high));
}

PENSTOCK_INLINE const uint8_t* first_row(const MatmulTile& tile) noexcept {
  return reinterpret_cast<const uint8_t*>(tile.weights);
}

// Pointers to rows row..row+7; beyond the last row they repeat it, and the results are dropped.
PENSTOCK_INLINE void row_pointers(const MatmulTile& tile, int64_t row, const uint8_t** p) noexcept {
  for (int64_t i = 0; i < 8; ++i) {
    const int64_t r = row + i < tile.n_rows ? row + i : tile.n_rows - 1;
    p[i] = first_row(tile) + static_cast<size_t>(r) * tile.row_bytes;
  }
}

// Stores the first `count` lanes.
PENSTOCK_INLINE void store_lanes(float* out, __m256 v, int64_t count) noexcept {
  if (count >= 8) {
    _mm256_storeu_ps(out, v);
  } else {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    _mm256_maskstore_ps(out, _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), lane),
                        v);
  }
}

// Asks for the line that the same code will read in the next group of eight rows. Rows lie one
// after the other, so eight streams that jump by eight rows read memory in order as a whole.
PENSTOCK_INLINE void prefetch(const uint8_t* p, size_t distance) noexcept {
  _mm_prefetch(reinterpret_cast<const char*>(p + distance), _MM_HINT_T0);
}

}  // namespace
}  // namespace penstock::quant
