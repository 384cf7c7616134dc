// Single-threaded kernels, one table per instruction set, all with the same results (vec8.h). The
// operations of ops.h split work over threads and call these.
#pragma once

#include <cstdint>

#include "quant/matmul.h"

namespace penstock::ops {

// One block of columns of one head's gated delta rule (spec/qwen4exp.md §2 step 6), tokens in
// order. Columns (j) are independent of each other.
struct DeltaRuleBlock {
  float* state;        // [n_columns][key_dim]: row j holds S[.][j]
  const float* q;      // token t at q + t * qk_stride
  const float* k;      // token t at k + t * qk_stride
  const float* v;      // [n_columns] of token t at v + t * v_stride
  const float* decay;  // of token t at decay[t * decay_stride]: alpha
  const float* beta;
  float* out;  // [n_columns] of token t at out + t * out_stride; null: only the state is wanted
  int64_t qk_stride, v_stride, decay_stride, beta_stride, out_stride;
  int64_t n_tokens, n_columns, key_dim;  // key_dim: a multiple of 8
};

struct Kernels {
  float (*dot)(const float* a, const float* b, int64_t n);
  double (*sum_squares)(const float* x, int64_t n);
  float (*max)(const float* x, int64_t n);
  void (*scale)(const float* x, float s, float* y, int64_t n);                        // x s
  void (*scale_mul)(const float* x, float s, const float* w, float* y, int64_t n);    // (x s) w
  void (*add)(const float* x, float* y, int64_t n);                                   // y += x
  void (*axpy)(float a, const float* x, float* y, int64_t n);                         // y += a x
  void (*silu)(const float* x, float divisor, float* y, int64_t n);                   // silu(x/d)
  void (*sigmoid)(const float* x, float divisor, float factor, float* y, int64_t n);  // f s(x/d)
  void (*silu_mul)(const float* g, const float* u, float* y, int64_t n);              // silu(g) u
  void (*sigmoid_mul)(const float* g, const float* u, float* y, int64_t n);           // s(g) u
  // y[e] = (1/n_streams) sum_c sigmoid(gate[c * stride + e]) * x[c * stride + e], c in order
  void (*gated_mean)(const float* gate, const float* x, int64_t n_streams, int64_t stride, float* y,
                     int64_t n);
  // y = silu(sum_i w[i * w_stride + .] * taps[i][.]), i in order
  void (*conv_silu)(const float* const* taps, int64_t n_taps, const float* w, int64_t w_stride,
                    float* y, int64_t n);
  // In place: x = exp(x - m); returns the sum in eight lanes.
  float (*exp_minus)(float* x, float m, int64_t n);
  void (*exp)(const float* x, float* y, int64_t n);
  // Pairs (i, i + half): x_i' = x_i c_i - x_{i+half} s_i, x_{i+half}' = x_{i+half} c_i + x_i s_i
  void (*rotate)(float* x, const float* cosine, const float* sine, int64_t half);
  // y = (rows[0] + rows[1] + ...) / n_rows, in order
  void (*mean_rows)(const float* const* rows, int64_t n_rows, float* y, int64_t n);
  // scores[q * score_stride + p] = scale * <queries[q], keys[p]>; dim a multiple of 8
  void (*scores)(const float* const* queries, int64_t n_queries, const float* keys,
                 int64_t n_positions, int64_t dim, float scale, float* scores,
                 int64_t score_stride);
  // out[q][.] += sum_p weights[q * weight_stride + p] * values[p][.], p in order
  void (*weigh)(const float* weights, int64_t weight_stride, int64_t n_queries, const float* values,
                int64_t n_positions, int64_t dim, float* out, int64_t out_stride);
  void (*delta_rule)(const DeltaRuleBlock& block);
  void (*from_half)(const uint16_t* x, float* y, int64_t n);  // n a multiple of 8
  void (*to_half)(const float* x, uint16_t* y, int64_t n);    // to nearest even; n a multiple of 8
};

// Of the instruction set in force (quant::current_isa()).
const Kernels& kernels() noexcept;
const Kernels* kernels_for(quant::Isa isa) noexcept;  // null: not in this build

}  // namespace penstock::ops
