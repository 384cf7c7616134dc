// AVX2 kernels of the grid types IQ1, IQ2 and IQ3 (spec/gguf-quants.md §7.8). Grid entries are
// looked up with plain loads: a gather is slower than eight of them on the processors at hand.

#include "quant/avx2_drivers.h"
#include "quant/codebooks.h"

namespace penstock::quant {
namespace {

// +1 and -1 bytes for the eight signs that seven stored bits stand for.
constexpr std::array<uint64_t, 128> sign_vectors() noexcept {
  std::array<uint64_t, 128> out{};
  for (size_t i = 0; i < 128; ++i) {
    for (int j = 0; j < 8; ++j) {
      out[i] |= uint64_t{(kEvenSigns[i] >> j) & 1 ? 0xffu : 0x01u} << (8 * j);
    }
  }
  return out;
}
alignas(64) constexpr std::array<uint64_t, 128> kSignVectors = sign_vectors();

template <class T>
PENSTOCK_INLINE T load_as(const uint8_t* p) noexcept {
  T value;
  std::memcpy(&value, p, sizeof(value));
  return value;
}

template <class Table>
PENSTOCK_INLINE __m256i octets(const Table& table, size_t a, size_t b, size_t c,
                               size_t d) noexcept {
  return join(_mm_set_epi64x(static_cast<int64_t>(table[b]), static_cast<int64_t>(table[a])),
              _mm_set_epi64x(static_cast<int64_t>(table[d]), static_cast<int64_t>(table[c])));
}

// The signs of 32 codes from four fields of seven bits.
PENSTOCK_INLINE __m256i even_signs(uint32_t w) noexcept {
  return octets(kSignVectors, w & 127, (w >> 7) & 127, (w >> 14) & 127, (w >> 21) & 127);
}

// The signs of 32 codes from 32 bits: -1 where the bit is set, else 1.
PENSTOCK_INLINE __m256i full_signs(const uint8_t* p) noexcept {
  const __m256i byte_of = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2,
                                           2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
  const __m256i bit_of = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201u));
  const __m256i bits = _mm256_and_si256(_mm256_shuffle_epi8(broadcast32(p), byte_of), bit_of);
  return _mm256_or_si256(_mm256_cmpeq_epi8(bits, bit_of), _mm256_set1_epi8(1));
}

// Indices of a whole block with their high bits, formed as vectors and read back one by one.
template <int kCount>
struct Indices {
  alignas(32) uint16_t at[kCount];
};

// 16 low index bytes, and their high bits in place.
PENSTOCK_INLINE void put_indices(uint16_t* out, const uint8_t* low, __m256i high) noexcept {
  store256(out, _mm256_or_si256(_mm256_cvtepu8_epi16(load128(low)), high));
}

template <class Table>
PENSTOCK_INLINE __m256i octets(const Table& table, const uint16_t* index) noexcept {
  return octets(table, index[0], index[1], index[2], index[3]);
}

// Sub-block scales are 2 s + 1.
PENSTOCK_INLINE SubScales odd_scales(__m256i s) noexcept {
  const __m256i scales = _mm256_or_si256(_mm256_add_epi16(s, s), _mm256_set1_epi16(1));
  return {scales, scales};
}
// Eight int32 numbers of sub-blocks of 32 to EvenOdd, where both halves hold all eight.
PENSTOCK_INLINE __m256i both_halves(__m256i eight) noexcept {
  return _mm256_permute4x64_epi64(_mm256_packus_epi32(eight, eight), 0x88);
}
// Eight bytes of two 4-bit numbers, the even sub-block's in the low nibble.
PENSTOCK_INLINE __m256i nibble_scales(const uint8_t* p) noexcept {
  const __m128i bytes = load64(p);
  const __m128i all = _mm_unpacklo_epi64(bytes, _mm_srli_epi16(bytes, 4));
  return _mm256_cvtepu8_epi16(_mm_and_si128(all, _mm_set1_epi8(15)));
}

struct Common {
  static constexpr bool kSigned = true;
  static constexpr int kOffset = 0;
  static constexpr bool kMins = false;
  [[maybe_unused]] static constexpr bool kSub32 = false;  // matters only with kMins
  static constexpr bool kLanePairs = false;
  static constexpr int kSteps = 2;  // magnitudes up to 62
};

template <class P>
PENSTOCK_INLINE Halves scaled_d8(const uint8_t* const* p, size_t at) noexcept {
  const __m256 d = _mm256_mul_ps(first_halves8(p, at), _mm256_set1_ps(P::kFactor));
  return {d, d};
}

struct IQ2_XXS : Common {
  static constexpr size_t kBytes = 66;
  static constexpr float kFactor = 0.125f;
  template <class F>
  PENSTOCK_INLINE static void each32(const uint8_t* x, F f) noexcept {
    for (int g = 0; g < 8; ++g) {
      const auto w = load_as<uint64_t>(x + 2 + 8 * g);
      const __m256i magnitude =
          octets(kIq2xxsGrid, w & 255, (w >> 8) & 255, (w >> 16) & 255, (w >> 24) & 255);
      f(g, Codes{magnitude, even_signs(static_cast<uint32_t>(w >> 32))});
    }
  }
  PENSTOCK_INLINE static SubScales sub_scales(const uint8_t* x) noexcept {
    // The top four bits of eight 64-bit words.
    const __m256i low = _mm256_srli_epi64(load256(x + 2), 60);
    const __m256i high = _mm256_srli_epi64(load256(x + 34), 60);
    const __m256i mixed = _mm256_or_si256(low, _mm256_slli_epi64(high, 32));
    return odd_scales(
        both_halves(_mm256_permutevar8x32_epi32(mixed, _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7))));
  }
  PENSTOCK_INLINE static Halves d8(const uint8_t* const* p, size_t at) noexcept {
    return scaled_d8<IQ2_XXS>(p, at);
  }
};

struct IQ2_XS : Common {
  static constexpr size_t kBytes = 74;
  static constexpr float kFactor = 0.125f;
  template <class F>
  PENSTOCK_INLINE static void each32(const uint8_t* x, F f) noexcept {
    for (int g = 0; g < 8; ++g) {
      const auto w = load_as<uint64_t>(x + 2 + 8 * g);
      const __m256i magnitude =
          octets(kIq2xsGrid, w & 511, (w >> 16) & 511, (w >> 32) & 511, (w >> 48) & 511);
      f(g, Codes{magnitude,
                 octets(kSignVectors, (w >> 9) & 127, (w >> 25) & 127, (w >> 41) & 127, w >> 57)});
    }
  }
  PENSTOCK_INLINE static SubScales sub_scales(const uint8_t* x) noexcept {
    return odd_scales(nibble_scales(x + 66));
  }
  PENSTOCK_INLINE static Halves d8(const uint8_t* const* p, size_t at) noexcept {
    return scaled_d8<IQ2_XS>(p, at);
  }
};

struct IQ2_S : Common {
  static constexpr size_t kBytes = 82;
  static constexpr float kFactor = 0.125f;
  template <class F>
  PENSTOCK_INLINE static void each32(const uint8_t* x, F f) noexcept {
    Indices<32> grid;
    for (int i = 0; i < 32; i += 16) {
      // Each byte of high bits serves four indices, two bits each from the lowest.
      const __m256i four = _mm256_shuffle_epi8(
          broadcast32(x + 66 + i / 4),
          _mm256_setr_epi8(0, -1, 0, -1, 0, -1, 0, -1, 1, -1, 1, -1, 1, -1, 1, -1, 2, -1, 2, -1, 2,
                           -1, 2, -1, 3, -1, 3, -1, 3, -1, 3, -1));
      const __m256i up =
          _mm256_mullo_epi16(four, _mm256_set1_epi64x(0x0004001000400100));  // << 8, 6, 4, 2
      put_indices(grid.at + i, x + 2 + i, _mm256_and_si256(up, _mm256_set1_epi16(0x300)));
    }
    for (int g = 0; g < 8; ++g) {
      f(g, Codes{octets(kIq2sGrid, grid.at + 4 * g), full_signs(x + 34 + 4 * g)});
    }
  }
  PENSTOCK_INLINE static SubScales sub_scales(const uint8_t* x) noexcept {
    return odd_scales(nibble_scales(x + 74));
  }
  PENSTOCK_INLINE static Halves d8(const uint8_t* const* p, size_t at) noexcept {
    return scaled_d8<IQ2_S>(p, at);
  }
};

template <class Table, class Index>
PENSTOCK_INLINE __m256i quads(const Table& table, const Index* index) noexcept {
  const auto entry = [&](int i) { return static_cast<int>(table[index[i]]); };
  return _mm256_setr_epi32(entry(0), entry(1), entry(2), entry(3), entry(4), entry(5), entry(6),
                           entry(7));
}

struct IQ3_XXS : Common {
  static constexpr size_t kBytes = 98;
  static constexpr float kFactor = 0.25f;
  template <class F>
  PENSTOCK_INLINE static void each32(const uint8_t* x, F f) noexcept {
    for (int g = 0; g < 8; ++g) {
      f(g, Codes{quads(kIq3xxsGrid, x + 2 + 8 * g), even_signs(load_as<uint32_t>(x + 66 + 4 * g))});
    }
  }
  PENSTOCK_INLINE static SubScales sub_scales(const uint8_t* x) noexcept {
    return odd_scales(both_halves(_mm256_srli_epi32(load256(x + 66), 28)));
  }
  PENSTOCK_INLINE static Halves d8(const uint8_t* const* p, size_t at) noexcept {
    return scaled_d8<IQ3_XXS>(p, at);
  }
};

struct IQ3_S : Common {
  static constexpr size_t kBytes = 110;
  static constexpr int kSteps = 8;  // magnitudes up to 15
  template <class F>
  PENSTOCK_INLINE static void each32(const uint8_t* x, F f) noexcept {
    Indices<64> grid;
    const __m256i bit = _mm256_setr_epi16(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096,
                                          8192, 16384, -32768);
    for (int i = 0; i < 64; i += 16) {
      const __m256i high = _mm256_set1_epi16(load_as<int16_t>(x + 66 + i / 8));
      const __m256i set = _mm256_cmpeq_epi16(_mm256_and_si256(high, bit), bit);
      put_indices(grid.at + i, x + 2 + i, _mm256_and_si256(set, _mm256_set1_epi16(256)));
    }
    for (int g = 0; g < 8; ++g) {
      f(g, Codes{quads(kIq3sGrid, grid.at + 8 * g), full_signs(x + 74 + 4 * g)});
    }
  }
  PENSTOCK_INLINE static SubScales sub_scales(const uint8_t* x) noexcept {
    const __m128i bytes = load32(x + 106);
    const __m128i all =
        _mm_and_si128(_mm_unpacklo_epi8(bytes, _mm_srli_epi16(bytes, 4)), _mm_set1_epi8(15));
    return odd_scales(_mm256_cvtepu8_epi16(_mm_unpacklo_epi64(all, all)));
  }
  PENSTOCK_INLINE static Halves d8(const uint8_t* const* p, size_t at) noexcept {
    return halves8<true, false>(p, at);
  }
};

// IQ1: eight times (grid value +- 1/8) lies in -9..9; with 16 added the codes are unsigned.
struct Iq1Common : Common {
  static constexpr bool kSigned = false;
  static constexpr int kOffset = 16;
  static constexpr int kSteps = 4;
  static constexpr float kFactor = 0.125f;
};

struct IQ1_S : Iq1Common {
  static constexpr size_t kBytes = 50;
  template <class F>
  PENSTOCK_INLINE static void each32(const uint8_t* x, F f) noexcept {
    Indices<32> index;
    for (int i = 0; i < 32; i += 16) {
      // Each 16-bit word serves four indices, three bits each from the lowest.
      const __m256i four =
          _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(load64(x + 34 + i / 2)),
                              _mm256_setr_epi8(0, 1, 0, 1, 0, 1, 0, 1, 2, 3, 2, 3, 2, 3, 2, 3, 4, 5,
                                               4, 5, 4, 5, 4, 5, 6, 7, 6, 7, 6, 7, 6, 7));
      const __m256i up = _mm256_mullo_epi16(four, _mm256_set1_epi64x(0x0000000400200100));
      const __m256i high = _mm256_blend_epi16(up, _mm256_srli_epi16(four, 1), 0x88);
      put_indices(index.at + i, x + 2 + i, _mm256_and_si256(high, _mm256_set1_epi16(0x700)));
    }
    for (int g = 0; g < 8; ++g) {
      const uint32_t w = load_as<uint16_t>(x + 34 + 2 * g);
      const __m256i grid = octets(kIq1sGrid8, index.at + 4 * g);
      const __m256i shift = _mm256_set1_epi8(static_cast<char>(17 - 2 * (w >> 15)));
      const __m256i q = _mm256_add_epi8(grid, shift);
      f(g, Codes{q, q});
    }
  }
  PENSTOCK_INLINE static SubScales sub_scales(const uint8_t* x) noexcept {
    const __m256i w = broadcast128(x + 34);
    return odd_scales(_mm256_and_si256(_mm256_srli_epi16(w, 12), _mm256_set1_epi16(7)));
  }
  PENSTOCK_INLINE static Halves d8(const uint8_t* const* p, size_t at) noexcept {
    return scaled_d8<IQ1_S>(p, at);
  }
};

struct IQ1_M : Iq1Common {
  static constexpr size_t kBytes = 56;
  template <class F>
  PENSTOCK_INLINE static void each32(const uint8_t* x, F f) noexcept {
    for (int g = 0; g < 8; ++g) {
      const auto low = load_as<uint32_t>(x + 4 * g);
      const uint32_t w = load_as<uint16_t>(x + 32 + 2 * g);
      const __m256i grid = octets(
          kIq1sGrid8, (low & 255) | ((w << 8) & 0x700), ((low >> 8) & 255) | ((w << 4) & 0x700),
          ((low >> 16) & 255) | (w & 0x700), (low >> 24) | ((w >> 4) & 0x700));
      // Bits 3, 7, 11, 15: one shift per octet, 17 or 15.
      const __m256i bits =
          _mm256_srlv_epi64(_mm256_set1_epi64x(w), _mm256_setr_epi64x(3, 7, 11, 15));
      const __m256i first_byte = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 8, 8, 8, 8, 8, 8, 8, 8, 0,
                                                  0, 0, 0, 0, 0, 0, 0, 8, 8, 8, 8, 8, 8, 8, 8);
      const __m256i negative =
          _mm256_and_si256(_mm256_shuffle_epi8(bits, first_byte), _mm256_set1_epi8(1));
      const __m256i shift =
          _mm256_sub_epi8(_mm256_set1_epi8(17), _mm256_add_epi8(negative, negative));
      const __m256i q = _mm256_add_epi8(grid, shift);
      f(g, Codes{q, q});
    }
  }
  PENSTOCK_INLINE static SubScales sub_scales(const uint8_t* x) noexcept {
    // Four 16-bit words of four 3-bit scales, each word twice as int32.
    const __m128i words = load64(x + 48);
    const __m256i twice = _mm256_cvtepu16_epi32(_mm_unpacklo_epi16(words, words));
    const __m256i seven = _mm256_set1_epi32(7);
    const __m256i even = _mm256_and_si256(
        _mm256_srlv_epi32(twice, _mm256_setr_epi32(0, 6, 0, 6, 0, 6, 0, 6)), seven);
    const __m256i odd = _mm256_and_si256(
        _mm256_srlv_epi32(twice, _mm256_setr_epi32(3, 9, 3, 9, 3, 9, 3, 9)), seven);
    return odd_scales(_mm256_permute4x64_epi64(_mm256_packus_epi32(even, odd), 0xd8));
  }
  PENSTOCK_INLINE static Halves d8(const uint8_t* const* p, size_t at) noexcept {
    int16_t bits[8];
    for (int r = 0; r < 8; ++r) {  // the top nibbles of four words
      const auto w = load_as<uint64_t>(p[r] + at + 48);
      bits[r] = static_cast<int16_t>(((w >> 12) & 15) | ((w >> 24) & 0xf0) | ((w >> 36) & 0xf00) |
                                     ((w >> 48) & 0xf000));
    }
    const __m256 d = _mm256_mul_ps(_mm256_cvtph_ps(load128(bits)), _mm256_set1_ps(kFactor));
    return {d, d};
  }
};

template <class P>
KernelPair large_kernels() noexcept {
  return {gemv_large<P>, gemm_panels<LargePanel<P>>, 2};
}

}  // namespace

void add_avx2_iq(KernelTable& table) noexcept {
  table[TypeId::IQ2_XXS] = large_kernels<IQ2_XXS>();
  table[TypeId::IQ2_XS] = large_kernels<IQ2_XS>();
  table[TypeId::IQ2_S] = large_kernels<IQ2_S>();
  table[TypeId::IQ3_XXS] = large_kernels<IQ3_XXS>();
  table[TypeId::IQ3_S] = large_kernels<IQ3_S>();
  table[TypeId::IQ1_S] = large_kernels<IQ1_S>();
  table[TypeId::IQ1_M] = large_kernels<IQ1_M>();
}

}  // namespace penstock::quant
