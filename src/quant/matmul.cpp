#include "quant/matmul.h"

#include <algorithm>
#include <atomic>
#include <iterator>

#include "quant/codec.h"
#include "quant/cpu.h"
#include "quant/kernels.h"

namespace penstock::quant {
namespace {

constexpr KernelTable kNoKernels{};

// The kernels written for an instruction set.
const KernelTable& table_of(Isa isa) noexcept {
  switch (isa) {
    case Isa::Scalar:
      return scalar_table();
#if defined(__x86_64__)
    case Isa::Avx2:
      return avx2_table();
#elif defined(__aarch64__)
    case Isa::Neon:
      return neon_table();
    case Isa::NeonDot:
      return neon_dot_table();
#endif
    default:
      return kNoKernels;
  }
}

std::atomic<Isa>& isa_in_force() noexcept {
  static std::atomic<Isa> isa{best_isa()};
  return isa;
}

const KernelPair& kernels_for(TypeId type) noexcept {
  const KernelPair& native = table_of(current_isa())[type];
  return native.gemv ? native : scalar_table()[type];
}

void run(const KernelPair& kernels, const MatmulTile& tile) noexcept {
  (tile.n_tokens < kernels.gemm_tokens ? kernels.gemv : kernels.gemm)(tile);
}

// Rows decoded to f32 a few at a time at the head of the scratch, then multiplied as floats.
constexpr int64_t kExactRows = 2;

void matmul_exact(TypeId type, const MatmulTile& tile) noexcept {
  const KernelPair& kernels = kernels_for(TypeId::F32);
  const size_t row_bytes = static_cast<size_t>(tile.n_in) * sizeof(float);
  auto* rows = reinterpret_cast<float*>(tile.scratch);
  constexpr int64_t kTokens = 64;  // pointers of the shifted output rows live on the stack
  float* out[kTokens];
  for (int64_t row = 0; row < tile.n_rows; row += kExactRows) {
    const int64_t n_rows = std::min(kExactRows, tile.n_rows - row);
    for (int64_t i = 0; i < n_rows; ++i) {
      decode_row(type, tile.weights + static_cast<size_t>(row + i) * tile.row_bytes,
                 rows + i * tile.n_in, tile.n_in);
    }
    for (int64_t token = 0; token < tile.n_tokens; token += kTokens) {
      const int64_t n_tokens = std::min(kTokens, tile.n_tokens - token);
      for (int64_t t = 0; t < n_tokens; ++t) out[t] = tile.out[token + t] + row;
      run(kernels, {tile.scratch, row_bytes, n_rows, tile.n_in, tile.acts + token, out, n_tokens,
                    tile.scratch + kExactRows * row_bytes});
    }
  }
}

}  // namespace

ActKind act_kind(TypeId weights, Precision precision) noexcept {
  const uint32_t elems = gguf::type_info(weights).block_elems;
  if (precision == Precision::Exact || elems == 1) return ActKind::F32;
  return elems == 256 ? ActKind::Q8_256 : ActKind::Q8_32;
}

size_t act_bytes(ActKind kind, int64_t n) noexcept {
  // Q8_32: n codes, n/32 scales and sums. Q8_256: n codes, n/16 16-bit sums, n/256 scales.
  const int64_t bytes = kind == ActKind::F32     ? 4 * n
                        : kind == ActKind::Q8_32 ? n + n / 4
                                                 : n + n / 8 + n / 64;
  return static_cast<size_t>((bytes + 63) / 64 * 64);
}

void quantize_act(ActKind kind, const float* x, void* out, int64_t n) noexcept {
  const KernelTable& native = table_of(current_isa());
  switch (kind) {
    case ActKind::F32:
      decode_row(TypeId::F32, x, static_cast<float*>(out), n);
      break;
    case ActKind::Q8_32:
      (native.quantize32 ? native : scalar_table()).quantize32(x, out, n);
      break;
    case ActKind::Q8_256:
      (native.quantize256 ? native : scalar_table()).quantize256(x, out, n);
      break;
  }
}

size_t matmul_scratch_bytes(int64_t n_in) noexcept {
  // Exact: decoded rows, and one more for the scalar float kernel. Fast: panels.
  const int64_t exact = (kExactRows + 1) * 4 * n_in;
  const int64_t panels = panels_per_pass(n_in) * kPanelBytesPerElement * n_in;
  return static_cast<size_t>((std::max(exact, panels) + 63) / 64 * 64);
}

void matmul(TypeId type, Precision precision, const MatmulTile& tile) noexcept {
  const bool is_float = gguf::type_info(type).block_elems == 1;
  if (precision == Precision::Exact && !is_float) {
    matmul_exact(type, tile);
  } else {
    run(kernels_for(type), tile);
  }
}

bool has_kernel(TypeId type) noexcept {
  const auto id = static_cast<uint32_t>(type);
  return id < kTypeSlots && scalar_table().types[id].gemv;
}

bool has_native_kernel(TypeId type, Isa isa) noexcept {
  const auto id = static_cast<uint32_t>(type);
  return id < kTypeSlots && cpu_has(isa) && table_of(isa).types[id].gemv;
}

Isa best_isa() noexcept {
  static const Isa best = [] {
    for (const Isa isa : {Isa::Avx2, Isa::NeonDot, Isa::Neon}) {
      if (cpu_has(isa)) return isa;
    }
    return Isa::Scalar;
  }();
  return best;
}

bool isa_available(Isa isa) noexcept {
  return cpu_has(isa);
}

Isa current_isa() noexcept {
  return isa_in_force().load(std::memory_order_relaxed);
}

bool set_isa(Isa isa) noexcept {
  if (!cpu_has(isa)) return false;
  isa_in_force().store(isa, std::memory_order_relaxed);
  return true;
}

namespace {
constexpr const char* kIsaNames[] = {"scalar", "avx2", "neon", "neon-dot"};
}  // namespace

bool parse_isa(std::string_view name, Isa* isa) noexcept {
  for (size_t i = 0; i < std::size(kIsaNames); ++i) {
    if (name == kIsaNames[i]) {
      *isa = static_cast<Isa>(i);
      return true;
    }
  }
  return false;
}

const char* isa_name(Isa isa) noexcept {
  return kIsaNames[static_cast<size_t>(isa)];
}

}  // namespace penstock::quant
