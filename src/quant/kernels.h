// What an instruction set provides: one table of kernels per Isa. A null entry means that the
// scalar kernel serves that type, so a new set can be added one type family at a time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "quant/matmul.h"

namespace penstock::quant {

inline constexpr uint32_t kTypeSlots = 64;  // type ids are below this

// Computes the whole tile. Weights of float types meet activations of ActKind::F32, all others
// those of act_kind(type, Precision::Fast).
using Kernel = void (*)(const MatmulTile& tile) noexcept;

struct KernelPair {
  Kernel gemv = nullptr;    // any number of tokens, meant for few: weights are read once per token
  Kernel gemm = nullptr;    // any number of tokens, meant for many: weights are unpacked once
  int64_t gemm_tokens = 4;  // from this many tokens on gemm is the faster one
};

struct KernelTable {
  KernelPair types[kTypeSlots] = {};
  void (*quantize32)(const float* x, void* out, int64_t n) noexcept = nullptr;
  void (*quantize256)(const float* x, void* out, int64_t n) noexcept = nullptr;

  KernelPair& operator[](TypeId type) noexcept { return types[static_cast<uint32_t>(type)]; }
  const KernelPair& operator[](TypeId type) const noexcept {
    return types[static_cast<uint32_t>(type)];
  }
};

const KernelTable& scalar_table() noexcept;

#if defined(__x86_64__)
const KernelTable& avx2_table() noexcept;
// Each family of types adds its kernels to the table.
void add_avx2_floats(KernelTable& table) noexcept;
void add_avx2_small(KernelTable& table) noexcept;
void add_avx2_k(KernelTable& table) noexcept;
void add_avx2_iq(KernelTable& table) noexcept;
void add_avx2_activations(KernelTable& table) noexcept;
void encode_q2_0_avx2(const float* in, uint8_t* out, int64_t n, const float* importance) noexcept;
#elif defined(__aarch64__)
const KernelTable& neon_table() noexcept;
const KernelTable& neon_dot_table() noexcept;
#endif

// Panels of interleaved rows in MatmulTile::scratch (gemm) take at most this many bytes per element
// of a row: 8 rows of one-byte codes plus their scales (the fullest case is 256-element blocks with
// 16 sub-blocks: 512 B of scales, 256 B of offsets, 64 B of f32 for 2048 codes).
inline constexpr int64_t kPanelRows = 8;
inline constexpr int64_t kPanelBytesPerElement = 12;
// Panels unpacked together: as many as fit the budget (a share of the L2 cache), at least two.
inline constexpr int64_t kPanelBudget = 192 * 1024;
constexpr int64_t panels_per_pass(int64_t n_in) noexcept {
  const int64_t fit = kPanelBudget / (n_in * kPanelBytesPerElement);
  return fit < 2 ? 2 : fit > 8 ? 8 : fit;
}

}  // namespace penstock::quant
