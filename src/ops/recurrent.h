// Causal depthwise convolution and the gated delta rule, both always in recurrent form, so that a
// prompt and a decode step give the same bits.
#pragma once

#include <cstdint>

#include "ops/context.h"
#include "ops/rows.h"

namespace penstock::ops {

// y(t) = silu(sum_i w[i] * x(t - dilation * (n_taps - 1 - i))), channel by channel; rows before the
// first come from `history`, [dilation * (n_taps - 1)][width], oldest first.
struct Convolution {
  const float* weights = nullptr;  // [n_taps][width]
  int n_taps = 0;
  int dilation = 1;
  int history_rows() const noexcept { return dilation * (n_taps - 1); }
};
inline constexpr int kMaxTaps = 16;

void causal_conv(Context& context, const Convolution& conv, const float* history, const Rows& x,
                 const Rows& y);

// The history after `x`: its last rows, older ones moving up.
void push_history(float* history, int64_t n_rows, const Rows& x);

inline constexpr int kMaxBlock = 256;  // tokens of a block of sparse attention

// Means of the complete blocks of `block` consecutive rows that end within x, whose first row is at
// position `first`; rows before it come from `history` ([block - 1][width], oldest first).
void mean_blocks(Context& context, const float* history, const Rows& x, int64_t first,
                 int64_t block, const Rows& y);

// spec/qwen4exp.md §2
struct DeltaShape {
  int64_t n_k_head = 0;
  int64_t n_v_head = 0;
  int64_t dim = 0;    // of a key head and of a value head; a multiple of 8
  bool tiled = true;  // v head h uses k head h mod n_k_head; else h / (n_v_head / n_k_head)
  int64_t channels() const noexcept { return (2 * n_k_head + n_v_head) * dim; }
  int64_t state() const noexcept { return n_v_head * dim * dim; }
  int64_t k_head(int64_t v_head) const noexcept {
    return tiled ? v_head % n_k_head : v_head / (n_v_head / n_k_head);
  }
};

// What the recurrence takes, per row: q, k (normalised), v; decay and beta per value head.
struct DeltaInputs {
  Rows qkv;    // [rows][channels]
  Rows decay;  // [rows][n_v_head]
  Rows beta;
};

// Steps 3 and 4, in place: qkv holds the convolution's output, decay holds a, beta holds b.
void delta_prepare(Context& context, const DeltaShape& shape, const float* ssm_a,
                   const float* dt_bias, const DeltaInputs& inputs);

// Step 6 for the rows in order. state: [n_v_head][dim j][dim i]. With keep, the state advances;
// without, it is left as it was. out may be empty when only the state is wanted.
void delta_rule(Context& context, const DeltaShape& shape, const DeltaInputs& inputs, float* state,
                bool keep, const Rows& out);

// Step 7: y = rms(o; weight) per head * (sigmoid or silu)(z), in place in o.
enum class GateKind { Sigmoid, Silu };
void gated_norm(Context& context, const float* weight, int64_t dim, float eps, GateKind kind,
                const Rows& z, const Rows& o);

// log(1 + exp(x)) in f32, x itself above 20; the same bits on every machine.
float softplus(float x) noexcept;

}  // namespace penstock::ops
