// Products of quantised weight rows with activation rows: the one door to all dot kernels.
//
// Same bits: y depends only on the weight row, the activation row, the type and the precision. It
// does not depend on how many rows or tokens share a call, on GEMV or GEMM, on threads, nor on the
// instruction set: every kernel forms the exact integer sum of each block and then adds
// `scale * sum` to ONE float accumulator per output with a fused multiply-add, block after block
// from the row's start, beginning with 0. The scalar kernels are that definition; the others must
// equal them bit for bit. With d, m the weights' scale and offset and d8 the activation's scale:
//   types of <= 128 elements, per 32: acc = fma(d * d8, sum, acc); Q4_1, Q5_1 then
//                                     acc = fma(m * d8, sum of activation codes, acc)
//   NVFP4, per 16:                    acc = fma(d * d8, sum, acc)
//   types of 256 elements, per block: acc = fma(d * d8, sum of scaled sub-block sums, acc); Q2_K,
//                                     Q4_K, Q5_K then acc = fma(-(dmin * d8), sum of mins, acc)
// (Float types and Precision::Exact: eight lane accumulators by fma, lane i taking elements
// i mod 8, then ((l0+l4)+(l2+l6)) + ((l1+l5)+(l3+l7)).)
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "gguf/types.h"

namespace penstock::quant {

using gguf::TypeId;

enum class Isa : uint8_t { Scalar, Avx2, Neon, NeonDot };
enum class Precision : uint8_t {
  Fast,   // activations rounded to 8-bit blocks for quantised weights, f32 for float weights
  Exact,  // weights decoded, activations f32: what the oracles compare
};

// How an activation row is held for a product with weights of some type.
enum class ActKind : uint8_t {
  F32,     // n floats
  Q8_32,   // per 32 elements: f32 scale, sum of codes, 32 int8 codes (weights with E <= 128)
  Q8_256,  // per 256 elements: f32 scale, 16 sums of 16 codes, 256 int8 codes (K- and IQ-types)
};

ActKind act_kind(TypeId weights, Precision precision) noexcept;
// Bytes of one activation row of n elements, a multiple of 64. Rows start 64-byte aligned.
size_t act_bytes(ActKind kind, int64_t n) noexcept;
// x: n floats. Rounds half to even; the scale is max|x| / 127. All-zero blocks have scale 0, blocks
// with an infinity or NaN have scale NaN, so that the fault shows in every result that uses them.
void quantize_act(ActKind kind, const float* x, void* out, int64_t n) noexcept;

struct MatmulTile {
  const std::byte* weights;  // n_rows rows, any alignment
  size_t row_bytes;          // distance between rows
  int64_t n_rows;
  int64_t n_in;             // elements per row
  const void* const* acts;  // [n_tokens] activation rows of act_kind(type, precision)
  float* const* out;        // [n_tokens] out[t][r] = <weights row r, activation t>
  int64_t n_tokens;
  std::byte* scratch;  // matmul_scratch_bytes(n_in) bytes of the calling thread, 64-aligned
};

size_t matmul_scratch_bytes(int64_t n_in) noexcept;

// Single-threaded. The type must be one of the list that `has_kernel` accepts.
void matmul(TypeId type, Precision precision, const MatmulTile& tile) noexcept;

bool has_kernel(TypeId type) noexcept;                  // at least a scalar one
bool has_native_kernel(TypeId type, Isa isa) noexcept;  // a hand-written one for this ISA

// The best instruction set of this processor, and the one in force (set once at start, by --isa).
Isa best_isa() noexcept;
bool isa_available(Isa isa) noexcept;  // by this processor and this build
Isa current_isa() noexcept;
bool set_isa(Isa isa) noexcept;  // false if the processor or the build lacks it
bool parse_isa(std::string_view name, Isa* isa) noexcept;  // "scalar", "avx2", "neon", "neon-dot"
const char* isa_name(Isa isa) noexcept;

}  // namespace penstock::quant
