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
PENSTOCK_INLINE __m256i join(__m128i low, __m128i high) noexcept {
  return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
}
// Low and high nibbles of 16 bytes as the low and high half: elements (j, j + 16) in order.
PENSTOCK_INLINE __m256i nibbles(const void* p) noexcept {
  const __m128i bytes = load128(p);
  return _mm256_and_si256(join(bytes, _mm_srli_epi16(bytes, 4)), _mm256_set1_epi8(15));
}

PENSTOCK_INLINE __m256i add16(__m256i a, __m256i b) noexcept {
  return _mm256_add_epi16(a, b);
}
PENSTOCK_INLINE __m256i add32(__m256i a, __m256i b) noexcept {
  return _mm256_add_epi32(a, b);
}
PENSTOCK_INLINE __m256i widen(__m256i v) noexcept {  // sums of int16 pairs
  return _mm256_madd_epi16(v, _mm256_set1_epi16(1));
}

// The steps of summing lanes across vectors. `add` works on 32-bit lanes or on pairs of int16.
// Two vectors to one with half as many summands of each per 128 bits.
template <class Add>
PENSTOCK_INLINE __m256i fold2(__m256i a, __m256i b, Add add) noexcept {
  return add(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
}
template <class Add>
PENSTOCK_INLINE __m256i fold4(__m256i a, __m256i b, Add add) noexcept {
  return add(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
}

// Sums of the int32 lanes that row(r) returns, per 128 bits: lanes 0..3 of out[0] are the sums of
// the low halves of rows 0..3, lanes 4..7 those of the high halves; out[1] is rows 4..7. Rows are
// folded as they come, so that few registers are alive.
template <class Row>
PENSTOCK_INLINE void fold_halves(Row row, __m256i* out) noexcept {
  for (int i = 0; i < 2; ++i) {
    const __m256i a = fold2(row(4 * i), row(4 * i + 1), add32);
    const __m256i b = fold2(row(4 * i + 2), row(4 * i + 3), add32);
    out[i] = fold4(a, b, add32);
  }
}

// The same from 16 int16 lanes per row that do not exceed `kMax` in magnitude: they are added as
// int16 as long as that cannot overflow.
template <int kMax, class Row>
PENSTOCK_INLINE void fold_halves16(Row row, __m256i* out) noexcept {
  static_assert(2 * kMax <= 32767);
  for (int i = 0; i < 2; ++i) {
    const __m256i a = fold2(row(4 * i), row(4 * i + 1), add16);
    const __m256i b = fold2(row(4 * i + 2), row(4 * i + 3), add16);
    if constexpr (4 * kMax <= 32767) {
      out[i] = widen(fold4(a, b, add16));
    } else {
      out[i] = fold4(widen(a), widen(b), add32);
    }
  }
}

// Lane r of the result is the sum of the eight int32 lanes of row(r).
template <class Row>
PENSTOCK_INLINE __m256i reduce8(Row row) noexcept {
  __m256i quad[2];
  fold_halves(row, quad);
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

// The fp16 numbers at p[0..7] + offset as f32 lanes, and with kSecond those two bytes further on.
// Four bytes are loaded per row, so the number must not be the last two bytes of the weights; for
// those that are, kSecond is read from two bytes before.
struct Halves {
  __m256 first;
  __m256 second;
};
template <bool kFirst, bool kSecond>
PENSTOCK_INLINE Halves halves8(const uint8_t* const* p, size_t offset) noexcept {
  __m128i w[4];
  for (int i = 0; i < 4; ++i) {  // (row 2i, row 2i+1) firsts, then seconds
    w[i] = _mm_unpacklo_epi16(load32(p[2 * i] + offset), load32(p[2 * i + 1] + offset));
  }
  const __m128i low = _mm_unpacklo_epi32(w[0], w[1]), high = _mm_unpacklo_epi32(w[2], w[3]);
  Halves out{_mm256_setzero_ps(), _mm256_setzero_ps()};
  if constexpr (kFirst) out.first = _mm256_cvtph_ps(_mm_unpacklo_epi64(low, high));
  if constexpr (kSecond) out.second = _mm256_cvtph_ps(_mm_unpackhi_epi64(low, high));
  return out;
}
// The numbers at p[0..7] + offset and 18 bytes further: the scales of two 18-byte blocks. One load
// per row catches both; the second lands in the high 128 bits, two bytes later than the first in
// its own.
struct TwoScales {
  __m256 first;
  __m256 second;
};
PENSTOCK_INLINE TwoScales halves8_18(const uint8_t* const* p, size_t offset) noexcept {
  __m256i w[4];
  for (int i = 0; i < 4; ++i) {
    w[i] = _mm256_unpacklo_epi16(load256(p[2 * i] + offset), load256(p[2 * i + 1] + offset));
  }
  const __m256d low = _mm256_castsi256_pd(_mm256_unpacklo_epi32(w[0], w[1]));
  const __m256d high = _mm256_castsi256_pd(_mm256_unpacklo_epi32(w[2], w[3]));
  const __m256i both = _mm256_castpd_si256(_mm256_shuffle_pd(low, high, 12));
  return {_mm256_cvtph_ps(_mm256_castsi256_si128(both)),
          _mm256_cvtph_ps(_mm256_extracti128_si256(both, 1))};
}

PENSTOCK_INLINE __m256 first_halves8(const uint8_t* const* p, size_t offset) noexcept {
  return halves8<true, false>(p, offset).first;
}
// For a number at the very end of a block.
PENSTOCK_INLINE __m256 last_halves8(const uint8_t* const* p, size_t offset) noexcept {
  return halves8<false, true>(p, offset - 2).second;
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

// kFactor * *p in all lanes.
template <int kFactor>
PENSTOCK_INLINE __m256i broadcast_times(const int32_t* p) noexcept {
  const __m256i value = _mm256_set1_epi32(*p);
  switch (kFactor) {
    case 1:
      return value;
    case 8:
      return _mm256_slli_epi32(value, 3);
    case 16:
      return _mm256_slli_epi32(value, 4);
    default:
      return _mm256_mullo_epi32(value, _mm256_set1_epi32(kFactor));
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

// Where a kernel stands in its eight rows, and the place twelve rows on that it asks for: half of
// the next eight rows and half of the eight after them. Without these prefetches memory is read at
// a third of its rate, the rows of a matrix being too short for the hardware to follow; distances
// of 12 to 16 rows were a little better than 8 and 24.
class Cursor {
 public:
  explicit Cursor(size_t row_bytes) noexcept : ahead_(12 * row_bytes) {
    __asm__("" : "+r"(ahead_));  // a second index beside `at`, not eight more pointers
  }
  PENSTOCK_INLINE size_t at() const noexcept { return at_; }
  PENSTOCK_INLINE void prefetch(const uint8_t* row, size_t offset) const noexcept {
    _mm_prefetch(reinterpret_cast<const char*>(row + ahead_ + offset), _MM_HINT_T0);
  }
  PENSTOCK_INLINE void advance(size_t bytes) noexcept {
    at_ += bytes;
    ahead_ += bytes;
  }

 private:
  size_t at_ = 0;
  size_t ahead_;
};

}  // namespace
}  // namespace penstock::quant
