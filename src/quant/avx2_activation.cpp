// Rounding of activations to 8-bit blocks, and the AVX2 table itself.

#include "quant/avx2.h"

namespace penstock::quant {
namespace {

PENSTOCK_INLINE __m256i magnitude_bits(const float* x) noexcept {
  return _mm256_and_si256(load256(x), _mm256_set1_epi32(0x7fffffff));
}

PENSTOCK_INLINE uint32_t max_lane(__m256i v) noexcept {
  __m128i m = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(m));
}

// 32 codes in order. A zero inverse (zero blocks and blocks with an infinity or NaN) gives zeros.
PENSTOCK_INLINE __m256i round32(const float* x, float inverse) noexcept {
  const __m256 factor = _mm256_set1_ps(inverse);
  const __m256i keep = _mm256_set1_epi32(inverse == 0 ? 0 : -1);
  __m256i q[4];
  for (int i = 0; i < 4; ++i) {
    q[i] = _mm256_and_si256(_mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), factor)),
                            keep);
  }
  const __m256i packed =
      _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
  return _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

// Sums of groups of four codes as eight int32.
PENSTOCK_INLINE __m256i sum_fours(__m256i codes) noexcept {
  return _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), codes), _mm256_set1_epi16(1));
}

PENSTOCK_INLINE __m128i add_pairs(__m128i v) noexcept {
  return _mm_add_epi32(v, _mm_shuffle_epi32(v, 0xb1));
}

void quantize32(const float* x, void* out, int64_t n) noexcept {
  const Act32 act(out, n);
  auto* codes = const_cast<int8_t*>(act.codes);
  auto* scales = const_cast<float*>(act.scales);
  auto* sums = const_cast<int32_t*>(act.sums);
  for (int64_t k = 0; k < n / 32; ++k, x += 32) {
    const __m256i max =
        _mm256_max_epi32(_mm256_max_epi32(magnitude_bits(x), magnitude_bits(x + 8)),
                         _mm256_max_epi32(magnitude_bits(x + 16), magnitude_bits(x + 24)));
    const ActScale s = act_scale(max_lane(max));
    const __m256i q = round32(x, s.inverse);
    store256(codes + 32 * k, q);
    scales[k] = s.scale;
    const __m256i fours = sum_fours(q);
    const __m128i halves =
        _mm_add_epi32(_mm256_castsi256_si128(fours), _mm256_extracti128_si256(fours, 1));
    const __m128i pairs = add_pairs(halves);
    sums[k] = _mm_cvtsi128_si32(_mm_add_epi32(pairs, _mm_shuffle_epi32(pairs, 0x4e)));
  }
}

void quantize256(const float* x, void* out, int64_t n) noexcept {
  const Act256 act(out, n);
  auto* codes = const_cast<int8_t*>(act.codes);
  auto* sums = const_cast<int16_t*>(act.sums);
  auto* scales = const_cast<float*>(act.scales);
  for (int64_t k = 0; k < n / 256; ++k, x += 256) {
    __m256i max = magnitude_bits(x);
    for (int i = 8; i < 256; i += 8) max = _mm256_max_epi32(max, magnitude_bits(x + i));
    const ActScale s = act_scale(max_lane(max));
    scales[k] = s.scale;
    for (int j = 0; j < 8; ++j) {
      const __m256i q = round32(x + 32 * j, s.inverse);
      store256(codes + 256 * k + 32 * j, q);
      const __m256i fours = sum_fours(q);
      const __m256i pairs = _mm256_add_epi32(fours, _mm256_shuffle_epi32(fours, 0xb1));
      const __m256i total = _mm256_add_epi32(pairs, _mm256_shuffle_epi32(pairs, 0x4e));
      sums[16 * k + 2 * j] = static_cast<int16_t>(_mm256_extract_epi32(total, 0));
      sums[16 * k + 2 * j + 1] = static_cast<int16_t>(_mm256_extract_epi32(total, 4));
    }
  }
}

}  // namespace

void add_avx2_activations(KernelTable& table) noexcept {
  table.quantize32 = quantize32;
  table.quantize256 = quantize256;
}

}  // namespace penstock::quant
