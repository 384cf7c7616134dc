// AVX2 kernels of the K-quants, IQ4_XS and TQ2_0 (spec/gguf-quants.md §7.3-7.7).

#include "quant/avx2_drivers.h"
#include "quant/codebooks.h"

namespace penstock::quant {
namespace {

struct Common {
  static constexpr bool kSigned = false;
  static constexpr int kOffset = 0;
  static constexpr bool kMins = false;
  static constexpr bool kSub32 = false;
  static constexpr bool kLanePairs = false;
};

PENSTOCK_INLINE __m256i low_bits(__m256i x, int shift, uint8_t mask) noexcept {
  return _mm256_and_si256(_mm256_srli_epi16(x, shift), _mm256_set1_epi8(static_cast<char>(mask)));
}

// 16 bytes, one per sub-block, to EvenOdd int16 numbers.
PENSTOCK_INLINE __m128i evens_then_odds(__m128i bytes) noexcept {
  return _mm_shuffle_epi8(bytes,
                          _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15));
}

PENSTOCK_INLINE SubScales only_scales(__m256i scales) noexcept {
  return {scales, scales};
}

struct Q2_K : Common {
  static constexpr size_t kBytes = 84;
  static constexpr bool kMins = true;
  static constexpr int kSteps = 4;
  template <class F>
  PENSTOCK_INLINE static void each32(const uint8_t* x, F f) noexcept {
    for (int h = 0; h < 2; ++h) {
      const __m256i bytes = load256(x + 16 + 32 * h);
      for (int j = 0; j < 4; ++j) {
        const __m256i q = low_bits(bytes, 2 * j, 3);
        f(4 * h + j, Codes{q, q});
      }
    }
  }
  PENSTOCK_INLINE static SubScales sub_scales(const uint8_t* x) noexcept {
    const __m256i both = _mm256_cvtepu8_epi16(evens_then_odds(load128(x)));
    return {_mm256_and_si256(both, _mm256_set1_epi16(15)), _mm256_srli_epi16(both, 4)};
  }
  PENSTOCK_INLINE static Halves d8(const uint8_t* const* p, size_t at) noexcept {
    return halves8<true, true>(p, at + 80);
  }
};

struct Q3_K : Common {
  static constexpr size_t kBytes = 110;
  static constexpr int kOffset = 4, kSteps = 4;
  template <class F>
  PENSTOCK_INLINE static void each32(const uint8_t* x, F f) noexcept {
    const __m256i high = load256(x);
    for (int h = 0; h < 2; ++h) {
      const __m256i bytes = load256(x + 32 + 32 * h);
      for (int j = 0; j < 4; ++j) {
        const int g = 4 * h + j;
        const __m256i bit = g < 2 ? _mm256_slli_epi16(high, 2 - g) : _mm256_srli_epi16(high, g - 2);
        const __m256i q =
            _mm256_or_si256(low_bits(bytes, 2 * j, 3), _mm256_and_si256(bit, _mm256_set1_epi8(4)));
        f(g, Codes{q, q});
      }
    }
  }
  PENSTOCK_INLINE static SubScales sub_scales(const uint8_t* x) noexcept {
    uint64_t low;
    uint32_t high;
    std::memcpy(&low, x + 96, 8);
    std::memcpy(&high, x + 104, 4);
    constexpr uint64_t kNibbles = 0x0f0f0f0f0f0f0f0fu;
    // Byte j % 4 of `high` holds two bits each of sub-blocks j, j + 4, j + 8, j + 12.
    const uint64_t twice = high | static_cast<uint64_t>(high >> 2) << 32;
    const uint64_t first = (low & kNibbles) | (twice & 0x0303030303030303u) << 4;
    const uint64_t second = ((low >> 4) & kNibbles) | ((twice >> 4) & 0x0303030303030303u) << 4;
    const __m128i bytes = _mm_set_epi64x(static_cast<int64_t>(second), static_cast<int64_t>(first));
    return only_scales(
        _mm256_cvtepi8_epi16(evens_then_odds(_mm_sub_epi8(bytes, _mm_set1_epi8(32)))));
  }
  PENSTOCK_INLINE static Halves d8(const uint8_t* const* p, size_t at) noexcept {
    const __m256 d = last_halves8(p, at + 108);
    return {d, d};
  }
};

// Sub-blocks of 32 (§7.5): the scales fill both halves of EvenOdd, the mins the upper half.
PENSTOCK_INLINE SubScales k_scales(const uint8_t* x) noexcept {
  const __m128i bytes = load128(x);  // d, dmin, then twelve bytes S
  const __m128i first = _mm_shuffle_epi8(
      bytes, _mm_setr_epi8(4, 5, 6, 7, 8, 9, 10, 11, -1, -1, -1, -1, -1, -1, -1, -1));
  const __m128i last = _mm_shuffle_epi8(
      bytes, _mm_setr_epi8(12, 13, 14, 15, 12, 13, 14, 15, -1, -1, -1, -1, -1, -1, -1, -1));
  // Four scales, then four mins, of sub-blocks 0..3 and 4..7.
  const __m128i low = _mm_and_si128(first, _mm_set1_epi8(63));
  const __m128i high = _mm_or_si128(
      _mm_and_si128(_mm_srlv_epi32(last, _mm_setr_epi32(0, 4, 0, 0)), _mm_set1_epi8(15)),
      _mm_and_si128(_mm_srli_epi16(first, 2), _mm_set1_epi8(0x30)));
  const __m256i all = _mm256_cvtepu8_epi16(_mm_unpacklo_epi32(low, high));
  return {_mm256_permute4x64_epi64(all, 0x44), all};
}

struct Q4_K : Common {
  static constexpr size_t kBytes = 144;
  static constexpr bool kSub32 = true;
  static constexpr bool kMins = true;
  static constexpr int kSteps = 8;
  template <class F>
  PENSTOCK_INLINE static void each32(const uint8_t* x, F f) noexcept {
    for (int h = 0; h < 4; ++h) {
      const __m256i bytes = load256(x + 16 + 32 * h);
      const __m256i low = low_bits(bytes, 0, 15), high = low_bits(bytes, 4, 15);
      f(2 * h, Codes{low, low});
      f(2 * h + 1, Codes{high, high});
    }
  }
  PENSTOCK_INLINE static SubScales sub_scales(const uint8_t* x) noexcept { return k_scales(x); }
  PENSTOCK_INLINE static Halves d8(const uint8_t* const* p, size_t at) noexcept {
    return halves8<true, true>(p, at);
  }
};

struct Q5_K : Q4_K {
  static constexpr size_t kBytes = 176;
  static constexpr int kSteps = 4;
  template <class F>
  PENSTOCK_INLINE static void each32(const uint8_t* x, F f) noexcept {
    const __m256i high = load256(x + 16);
    for (int g = 0; g < 8; ++g) {
      const __m256i bytes = load256(x + 48 + 32 * (g / 2));
      const __m256i bit = g < 4 ? _mm256_slli_epi16(high, 4 - g) : _mm256_srli_epi16(high, g - 4);
      const __m256i q = _mm256_or_si256(low_bits(bytes, 4 * (g % 2), 15),
                                        _mm256_and_si256(bit, _mm256_set1_epi8(16)));
      f(g, Codes{q, q});
    }
  }
};

struct Q6_K : Common {
  static constexpr size_t kBytes = 210;
  static constexpr int kOffset = 32, kSteps = 2;
  template <class F>
  PENSTOCK_INLINE static void each32(const uint8_t* x, F f) noexcept {
    for (int h = 0; h < 2; ++h) {
      const __m256i high = load256(x + 128 + 32 * h);
      for (int j = 0; j < 4; ++j) {
        const __m256i low = low_bits(load256(x + 64 * h + 32 * (j % 2)), 4 * (j / 2), 15);
        const __m256i top =
            j < 2 ? _mm256_slli_epi16(high, 4 - 2 * j) : _mm256_srli_epi16(high, 2 * j - 4);
        const __m256i q = _mm256_or_si256(low, _mm256_and_si256(top, _mm256_set1_epi8(48)));
        f(4 * h + j, Codes{q, q});
      }
    }
  }
  PENSTOCK_INLINE static SubScales sub_scales(const uint8_t* x) noexcept {
    return only_scales(_mm256_cvtepi8_epi16(evens_then_odds(load128(x + 192))));
  }
  PENSTOCK_INLINE static Halves d8(const uint8_t* const* p, size_t at) noexcept {
    const __m256 d = last_halves8(p, at + 208);
    return {d, d};
  }
};

struct IQ4_XS : Common {
  static constexpr size_t kBytes = 136;
  static constexpr bool kSigned = true;
  static constexpr bool kLanePairs = true;
  static constexpr int kSteps = 1;
  template <class F>
  PENSTOCK_INLINE static void each32(const uint8_t* x, F f) noexcept {
    const __m256i values = broadcast128(kIq4nlValues);
    for (int g = 0; g < 8; g += 2) {
      const __m256i bytes = load256(x + 8 + 16 * g);
      const __m256i low = _mm256_shuffle_epi8(values, low_bits(bytes, 0, 15));
      const __m256i high = _mm256_shuffle_epi8(values, low_bits(bytes, 4, 15));
      f(g, Codes{_mm256_abs_epi8(low), low});
      f(g + 1, Codes{_mm256_abs_epi8(high), high});
    }
  }
  PENSTOCK_INLINE static SubScales sub_scales(const uint8_t* x) noexcept {
    const __m128i nibble_bytes = load32(x + 4);
    const __m128i low = _mm_and_si128(
        _mm_unpacklo_epi8(nibble_bytes, _mm_srli_epi16(nibble_bytes, 4)), _mm_set1_epi8(15));
    uint16_t top;
    std::memcpy(&top, x + 2, 2);
    // Two bits each: moved to the top of their word, then down.
    const __m128i up = _mm_mullo_epi16(
        _mm_set1_epi16(static_cast<int16_t>(top)),
        _mm_setr_epi16(1 << 14, 1 << 12, 1 << 10, 1 << 8, 1 << 6, 1 << 4, 1 << 2, 1));
    const __m128i high = _mm_slli_epi16(_mm_srli_epi16(up, 14), 4);
    const __m128i scales =
        _mm_sub_epi16(_mm_or_si128(_mm_cvtepu8_epi16(low), high), _mm_set1_epi16(32));
    return only_scales(join(scales, scales));
  }
  PENSTOCK_INLINE static Halves d8(const uint8_t* const* p, size_t at) noexcept {
    return halves8<true, false>(p, at);
  }
};

struct TQ2_0 : Common {
  static constexpr size_t kBytes = 66;
  static constexpr int kOffset = 1, kSteps = 4;
  template <class F>
  PENSTOCK_INLINE static void each32(const uint8_t* x, F f) noexcept {
    Q2_K::each32(x - 16, f);
  }
  PENSTOCK_INLINE static SubScales sub_scales(const uint8_t*) noexcept {
    return only_scales(_mm256_set1_epi16(1));
  }
  PENSTOCK_INLINE static Halves d8(const uint8_t* const* p, size_t at) noexcept {
    const __m256 d = last_halves8(p, at + 64);
    return {d, d};
  }
};

template <class P>
KernelPair large_kernels(int64_t gemm_tokens) noexcept {
  return {gemv_large<P>, gemm_panels<LargePanel<P>>, gemm_tokens};
}

}  // namespace

void add_avx2_k(KernelTable& table) noexcept {
  table[TypeId::Q2_K] = large_kernels<Q2_K>(4);
  table[TypeId::Q3_K] = large_kernels<Q3_K>(3);
  table[TypeId::Q4_K] = large_kernels<Q4_K>(3);
  table[TypeId::Q5_K] = large_kernels<Q5_K>(3);
  table[TypeId::Q6_K] = large_kernels<Q6_K>(3);
  table[TypeId::IQ4_XS] = large_kernels<IQ4_XS>(4);
  table[TypeId::TQ2_0] = large_kernels<TQ2_0>(7);
}

}  // namespace penstock::quant
