// AVX2 kernels of the types with less than 256 elements per block (spec/gguf-quants.md §5, §7.2).

#include "quant/avx2_drivers.h"
#include "quant/codebooks.h"

namespace penstock::quant {
namespace {

// Codes 0..kMaxCode standing for code - kOffset; no signs.
PENSTOCK_INLINE Codes unsigned_codes(__m256i q) noexcept {
  return {q, q};
}
PENSTOCK_INLINE Codes signed_codes(__m256i q) noexcept {
  return {_mm256_abs_epi8(q), q};
}

struct Common {
  static constexpr int kParts = 1;
  static constexpr bool kSigned = false;
  static constexpr bool kHasOffset = false;
  static constexpr int kOffset = 0;
  PENSTOCK_INLINE static Halves scales8(const uint8_t* const* p, size_t at) noexcept {
    return halves8<true, false>(p, at);
  }
};

// 16 bytes of two blocks side by side, and their low and high nibbles.
PENSTOCK_INLINE void nibble_pair(const uint8_t* a, const uint8_t* b, __m256i& low,
                                 __m256i& high) noexcept {
  const __m256i bytes = join(load128(a), load128(b)), mask = _mm256_set1_epi8(15);
  low = _mm256_and_si256(bytes, mask);
  high = _mm256_and_si256(_mm256_srli_epi16(bytes, 4), mask);
}
struct Q8_0 : Common {
  static constexpr size_t kBytes = 34;
  static constexpr bool kSigned = true;
  PENSTOCK_INLINE static Codes load(const uint8_t* x, int) noexcept {
    return signed_codes(load256(x + 2));
  }
};

struct Q4_0 : Common {
  static constexpr size_t kBytes = 18;
  static constexpr int kOffset = 8, kMaxCode = 15;
  PENSTOCK_INLINE static Codes load(const uint8_t* x, int) noexcept {
    return unsigned_codes(nibbles(x + 2));
  }
  PENSTOCK_INLINE static void pair(const uint8_t* a, const uint8_t* b, __m256i& low,
                                   __m256i& high) noexcept {
    nibble_pair(a + 2, b + 2, low, high);
  }
};

struct Q4_1 : Common {
  static constexpr size_t kBytes = 20;
  static constexpr int kMaxCode = 15;
  static constexpr bool kHasOffset = true;
  PENSTOCK_INLINE static Codes load(const uint8_t* x, int) noexcept {
    return unsigned_codes(nibbles(x + 4));
  }
  PENSTOCK_INLINE static void pair(const uint8_t* a, const uint8_t* b, __m256i& low,
                                   __m256i& high) noexcept {
    nibble_pair(a + 4, b + 4, low, high);
  }
  PENSTOCK_INLINE static Halves scales8(const uint8_t* const* p, size_t at) noexcept {
    return halves8<true, true>(p, at);
  }
};

// Byte i is 16 where bit i of the 32 bits at p is set.
PENSTOCK_INLINE __m256i fifth_bits(const uint8_t* p) noexcept {
  const __m256i byte_of = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2,
                                           2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
  const __m256i bit_of = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201u));
  const __m256i bits = _mm256_and_si256(_mm256_shuffle_epi8(broadcast32(p), byte_of), bit_of);
  return _mm256_and_si256(_mm256_cmpeq_epi8(bits, bit_of), _mm256_set1_epi8(16));
}

// Nibbles at q and fifth bits at h of two blocks.
PENSTOCK_INLINE void fifth_bit_pair(const uint8_t* a, const uint8_t* b, size_t h, size_t q,
                                    __m256i& low, __m256i& high) noexcept {
  const __m256i first =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1));
  const __m256i second =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3));
  const __m256i bit_of = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201u));
  const __m256i bits = join(load32(a + h), load32(b + h)), sixteen = _mm256_set1_epi8(16);
  const auto fifth = [&](__m256i byte_of) {
    const __m256i set = _mm256_and_si256(_mm256_shuffle_epi8(bits, byte_of), bit_of);
    return _mm256_and_si256(_mm256_cmpeq_epi8(set, bit_of), sixteen);
  };
  __m256i l, u;
  nibble_pair(a + q, b + q, l, u);
  low = _mm256_or_si256(l, fifth(first));
  high = _mm256_or_si256(u, fifth(second));
}

struct Q5_0 : Common {
  static constexpr size_t kBytes = 22;
  static constexpr int kOffset = 16, kMaxCode = 31;
  PENSTOCK_INLINE static Codes load(const uint8_t* x, int) noexcept {
    return unsigned_codes(_mm256_or_si256(nibbles(x + 6), fifth_bits(x + 2)));
  }
  PENSTOCK_INLINE static void pair(const uint8_t* a, const uint8_t* b, __m256i& low,
                                   __m256i& high) noexcept {
    fifth_bit_pair(a, b, 2, 6, low, high);
  }
};

struct Q5_1 : Common {
  static constexpr size_t kBytes = 24;
  static constexpr int kMaxCode = 31;
  static constexpr bool kHasOffset = true;
  PENSTOCK_INLINE static Codes load(const uint8_t* x, int) noexcept {
    return unsigned_codes(_mm256_or_si256(nibbles(x + 8), fifth_bits(x + 4)));
  }
  PENSTOCK_INLINE static void pair(const uint8_t* a, const uint8_t* b, __m256i& low,
                                   __m256i& high) noexcept {
    fifth_bit_pair(a, b, 4, 8, low, high);
  }
  PENSTOCK_INLINE static Halves scales8(const uint8_t* const* p, size_t at) noexcept {
    return halves8<true, true>(p, at);
  }
};

struct IQ4_NL : Common {
  static constexpr size_t kBytes = 18;
  static constexpr bool kSigned = true;
  PENSTOCK_INLINE static Codes load(const uint8_t* x, int) noexcept {
    return signed_codes(_mm256_shuffle_epi8(broadcast128(kIq4nlValues), nibbles(x + 2)));
  }
  PENSTOCK_INLINE static void pair(const uint8_t* a, const uint8_t* b, __m256i& low,
                                   __m256i& high) noexcept {
    const __m256i values = broadcast128(kIq4nlValues);
    __m256i l, h;
    nibble_pair(a + 2, b + 2, l, h);
    low = _mm256_shuffle_epi8(values, l);
    high = _mm256_shuffle_epi8(values, h);
  }
};

struct MXFP4 : Common {
  static constexpr size_t kBytes = 17;
  static constexpr int kOffset = 12, kMaxCode = 24;
  PENSTOCK_INLINE static Codes load(const uint8_t* x, int) noexcept {
    return unsigned_codes(_mm256_shuffle_epi8(values(), nibbles(x + 1)));
  }
  PENSTOCK_INLINE static void pair(const uint8_t* a, const uint8_t* b, __m256i& low,
                                   __m256i& high) noexcept {
    __m256i l, h;
    nibble_pair(a + 1, b + 1, l, h);
    low = _mm256_shuffle_epi8(values(), l);
    high = _mm256_shuffle_epi8(values(), h);
  }
  PENSTOCK_INLINE static __m256i values() noexcept {
    return _mm256_add_epi8(broadcast128(kMxfp4Values), _mm256_set1_epi8(12));
  }
  // f32 bits of 2^(e - 128); the two smallest are subnormal.
  PENSTOCK_INLINE static Halves scales8(const uint8_t* const* p, size_t at) noexcept {
    const __m256i e = _mm256_setr_epi32(p[0][at], p[1][at], p[2][at], p[3][at], p[4][at], p[5][at],
                                        p[6][at], p[7][at]);
    const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    const __m256i subnormal = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
    const __m256i small = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e);
    const __m256 d = _mm256_castsi256_ps(_mm256_blendv_epi8(normal, subnormal, small));
    return {d, d};
  }
};

// Codes 0 and 2 stand for -1 and 1.
struct Q1_0 : Common {
  static constexpr size_t kBytes = 18;
  static constexpr int kParts = 4, kOffset = 1, kMaxCode = 2;
  PENSTOCK_INLINE static Codes load(const uint8_t* x, int part) noexcept {
    return unsigned_codes(_mm256_srli_epi16(fifth_bits(x + 2 + 4 * part), 3));
  }
};

// In element order, for the prompt kernels' panels.
struct Q2_0 : Common {
  static constexpr size_t kBytes = 18;
  static constexpr int kParts = 2, kOffset = 1, kMaxCode = 3;
  PENSTOCK_INLINE static Codes load(const uint8_t* x, int part) noexcept {
    // One byte of four codes per 32 bits; copies shifted by 6, 12, 18 put code k into byte k.
    const __m256i bytes = _mm256_cvtepu8_epi32(load64(x + 2 + 8 * part));
    const __m256i two = _mm256_or_si256(bytes, _mm256_slli_epi32(bytes, 6));
    const __m256i four = _mm256_or_si256(two, _mm256_slli_epi32(two, 12));
    return unsigned_codes(_mm256_and_si256(four, _mm256_set1_epi8(3)));
  }
};

// The activation of a Q2_0 row with every 64 codes split into four planes (elements k, k+4, ..),
// because a byte holds four consecutive elements (§5.3). Two blocks are laid side by side: plane k
// of the first in the low 128 bits, of the second in the high ones.
PENSTOCK_INLINE void split_planes(const int8_t* codes, int64_t n, std::byte* out) noexcept {
  const __m256i gather = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
  for (int64_t k = 0; k < n; k += 128, out += 128) {
    __m256i x[4];
    for (int i = 0; i < 4; ++i) {
      // A last single block has no neighbour: its upper halves stay zero.
      const __m128i low = load128(codes + k + 16 * i);
      const __m128i high = k + 64 < n ? load128(codes + k + 64 + 16 * i) : _mm_setzero_si128();
      x[i] = _mm256_shuffle_epi8(_mm256_set_m128i(high, low), gather);
    }
    // 4 x 4 transposition of 32-bit groups in each half.
    const __m256i a = _mm256_unpacklo_epi32(x[0], x[1]), b = _mm256_unpacklo_epi32(x[2], x[3]);
    const __m256i c = _mm256_unpackhi_epi32(x[0], x[1]), d = _mm256_unpackhi_epi32(x[2], x[3]);
    store256(out, _mm256_unpacklo_epi64(a, b));
    store256(out + 32, _mm256_unpackhi_epi64(a, b));
    store256(out + 64, _mm256_unpacklo_epi64(c, d));
    store256(out + 96, _mm256_unpackhi_epi64(c, d));
  }
}

// Sums of 16 bytes of codes of one block, or of two, against their planes: the 32-bit lanes 0, 1
// and 2, 3 hold int16 pairs of the first and second 32 elements of the first block, 4..7 of the
// second.
PENSTOCK_INLINE __m256i q2_0_sums(__m256i bytes, const std::byte* planes) noexcept {
  const __m256i three = _mm256_set1_epi8(3);
  __m256i lanes = _mm256_maddubs_epi16(_mm256_and_si256(bytes, three), load256(planes));
  for (int k = 1; k < 4; ++k) {
    const __m256i code = _mm256_and_si256(_mm256_srli_epi16(bytes, 2 * k), three);
    lanes = _mm256_add_epi16(lanes, _mm256_maddubs_epi16(code, load256(planes + 32 * k)));
  }
  return lanes;
}

// From row(r) as above, before widening: the sums of all rows for each of the four groups of 32
// elements. Lanes stay below 4 * 3 * 127 * 2, so the first additions fit int16.
template <class Row>
PENSTOCK_INLINE void fold_groups(Row row, __m256i* out) noexcept {
  __m256i pair[4];
  for (int i = 0; i < 4; ++i) {
    const __m256 a = _mm256_castsi256_ps(row(i)), b = _mm256_castsi256_ps(row(i + 4));
    pair[i] = widen(add16(_mm256_castps_si256(_mm256_shuffle_ps(a, b, 0x88)),
                          _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xdd))));
  }
  // pair[i]: groups 0, 1 of row i, groups 0, 1 of row i + 4; in the high half groups 2, 3.
  const __m256i a = _mm256_unpacklo_epi32(pair[0], pair[1]);
  const __m256i b = _mm256_unpackhi_epi32(pair[0], pair[1]);
  const __m256i c = _mm256_unpacklo_epi32(pair[2], pair[3]);
  const __m256i d = _mm256_unpackhi_epi32(pair[2], pair[3]);
  const __m256i even_low = _mm256_unpacklo_epi64(a, c), odd_low = _mm256_unpackhi_epi64(a, c);
  const __m256i even_high = _mm256_unpacklo_epi64(b, d), odd_high = _mm256_unpackhi_epi64(b, d);
  out[0] = _mm256_permute2x128_si256(even_low, even_high, 0x20);
  out[1] = _mm256_permute2x128_si256(odd_low, odd_high, 0x20);
  out[2] = _mm256_permute2x128_si256(even_low, even_high, 0x31);
  out[3] = _mm256_permute2x128_si256(odd_low, odd_high, 0x31);
}

void gemv_q2_0(const MatmulTile& tile) noexcept {
  const int64_t n_blocks = tile.n_in / 64;
  for (int64_t t = 0; t < tile.n_tokens; ++t) {
    const Act32 act(tile.acts[t], tile.n_in);
    split_planes(act.codes, tile.n_in, tile.scratch);
    for (int64_t row = 0; row < tile.n_rows; row += 8) {
      const uint8_t* p[8];
      row_pointers(tile, row, p);
      const std::byte* planes = tile.scratch;
      __m256 acc = _mm256_setzero_ps();
      Cursor cursor(tile.row_bytes);
      const auto add_64 = [&](const __m256i* sums, int64_t k, __m256 d)
          __attribute__((always_inline)) {
        for (int half = 0; half < 2; ++half) {
          acc =
              add_block<Q2_0>(acc, sums[half], {d, d}, act.scales + k + half, act.sums + k + half);
        }
      };
      __m256i sums[4];
      for (int64_t k = 0; k + 1 < n_blocks; k += 2, planes += 128, cursor.advance(36)) {
        fold_groups(
            [&](int r) __attribute__((always_inline)) {
              cursor.prefetch(p[r], 0);
              const uint8_t* x = p[r] + cursor.at();
              return q2_0_sums(join(load128(x + 2), load128(x + 20)), planes);
            },
            sums);
        const TwoScales d = halves8_18(p, cursor.at());
        add_64(sums, 2 * k, d.first);
        add_64(sums + 2, 2 * k + 2, d.second);
      }
      if (n_blocks % 2 != 0) {
        fold_groups(
            [&](int r) __attribute__((always_inline)) {
              return q2_0_sums(join(load128(p[r] + cursor.at() + 2), _mm_setzero_si128()), planes);
            },
            sums);
        add_64(sums, 2 * (n_blocks - 1), first_halves8(p, cursor.at()));
      }
      store_lanes(tile.out[t] + row, acc, tile.n_rows - row);
    }
  }
}

template <class P>
KernelPair single_kernels(int64_t gemm_tokens) noexcept {
  return {gemv_single<P>, gemm_panels<SmallPanel<P>>, gemm_tokens};
}
template <class P>
KernelPair pair_kernels(int64_t gemm_tokens) noexcept {
  return {gemv_pairs<P>, gemm_panels<SmallPanel<P>>, gemm_tokens};
}

}  // namespace

// From how many tokens on unpacking pays was measured on Zen 3 with weights in the L2 cache.
void add_avx2_small(KernelTable& table) noexcept {
  table[TypeId::Q8_0] = single_kernels<Q8_0>(3);
  table[TypeId::Q4_0] = pair_kernels<Q4_0>(4);
  table[TypeId::Q4_1] = pair_kernels<Q4_1>(3);
  table[TypeId::Q5_0] = pair_kernels<Q5_0>(2);
  table[TypeId::Q5_1] = pair_kernels<Q5_1>(2);
  table[TypeId::IQ4_NL] = pair_kernels<IQ4_NL>(3);
  table[TypeId::MXFP4] = pair_kernels<MXFP4>(3);
  table[TypeId::Q1_0] = single_kernels<Q1_0>(2);
  table[TypeId::Q2_0] = {gemv_q2_0, gemm_panels<SmallPanel<Q2_0>>, 7};
}

}  // namespace penstock::quant
