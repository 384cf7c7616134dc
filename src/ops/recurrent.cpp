#include "ops/recurrent.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "ops/kernels.h"

namespace penstock::ops {

void causal_conv(Context& context, const Convolution& conv, const float* history, const Rows& x,
                 const Rows& y) {
  constexpr int64_t kPiece = 1024;
  const Kernels& kernel = kernels();
  const int64_t pieces = (x.width + kPiece - 1) / kPiece;
  const int64_t n_history = conv.history_rows();
  for_ranges(context.pool, x.count * pieces, std::min(kPiece, x.width) * (conv.n_taps + 2),
             [&](int64_t begin, int64_t end, int) {
               for (int64_t i = begin; i < end; ++i) {
                 const int64_t t = i / pieces;
                 const int64_t start = (i % pieces) * kPiece;
                 const float* taps[kMaxTaps];
                 for (int tap = 0; tap < conv.n_taps; ++tap) {
                   const int64_t source = t - conv.dilation * (conv.n_taps - 1 - tap);
                   taps[tap] =
                       (source >= 0 ? x[source] : history + (n_history + source) * x.width) + start;
                 }
                 kernel.conv_silu(taps, conv.n_taps, conv.weights + start, x.width, y[t] + start,
                                  std::min(kPiece, x.width - start));
               }
             });
}

void push_history(float* history, int64_t n_rows, const Rows& x) {
  const int64_t fresh = std::min(n_rows, x.count);
  const auto row_bytes = static_cast<size_t>(x.width) * sizeof(float);
  if (n_rows <= 0) return;
  std::memmove(history, history + fresh * x.width, static_cast<size_t>(n_rows - fresh) * row_bytes);
  for (int64_t i = 0; i < fresh; ++i) {
    std::memcpy(history + (n_rows - fresh + i) * x.width, x[x.count - fresh + i], row_bytes);
  }
}

void mean_blocks(Context& context, const float* history, const Rows& x, int64_t first,
                 int64_t block, const Rows& y) {
  const Kernels& kernel = kernels();
  const int64_t first_block = first / block;
  for_ranges(context.pool, y.count, block * x.width, [&](int64_t begin, int64_t end, int) {
    for (int64_t b = begin; b < end; ++b) {
      const float* rows[kMaxBlock];
      for (int64_t i = 0; i < block; ++i) {
        const int64_t row = (first_block + b) * block + i - first;
        rows[i] = row >= 0 ? x[row] : history + (block - 1 + row) * x.width;
      }
      kernel.mean_rows(rows, block, y[b], x.width);
    }
  });
}

// log1p(y) = 2 atanh(y / (2 + y)), y in (0, 1]: the argument is at most 1/3, its series in double.
float softplus(float x) noexcept {
  if (x > 20.0f || std::isnan(x)) return x;
  float e = -std::fabs(x);
  kernels().exp(&e, &e, 1);
  const double y = static_cast<double>(e);
  const double s = y / (2.0 + y);
  const double s2 = s * s;
  double series = 0.0;
  for (int n = 25; n >= 1; n -= 2) series = series * s2 + 1.0 / n;
  return static_cast<float>(std::max(0.0, static_cast<double>(x)) + 2.0 * s * series);
}

void delta_prepare(Context& context, const DeltaShape& shape, const float* ssm_a,
                   const float* dt_bias, const DeltaInputs& inputs) {
  const Kernels& kernel = kernels();
  const int64_t n_heads = 2 * shape.n_k_head;  // q heads, then k heads
  const auto q_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.dim)));
  for_ranges(context.pool, inputs.qkv.count, n_heads * shape.dim + 64 * shape.n_v_head,
             [&](int64_t begin, int64_t end, int) {
               for (int64_t r = begin; r < end; ++r) {
                 for (int64_t h = 0; h < n_heads; ++h) {
                   float* x = inputs.qkv[r] + h * shape.dim;
                   const auto s =
                       static_cast<float>(1.0 / std::sqrt(kernel.sum_squares(x, shape.dim) + 1e-6));
                   kernel.scale(x, s, x, shape.dim);
                   if (h < shape.n_k_head) kernel.scale(x, q_scale, x, shape.dim);
                 }
                 float* decay = inputs.decay[r];
                 for (int64_t h = 0; h < shape.n_v_head; ++h) {
                   decay[h] = ssm_a[h] * softplus(decay[h] + dt_bias[h]);
                 }
                 kernel.exp(decay, decay, shape.n_v_head);
                 kernel.sigmoid(inputs.beta[r], 1.0f, 1.0f, inputs.beta[r], shape.n_v_head);
               }
             });
}

void delta_rule(Context& context, const DeltaShape& shape, const DeltaInputs& inputs, float* state,
                bool keep, const Rows& out) {
  const Kernels& kernel = kernels();
  const int64_t pieces = (shape.dim + kDeltaColumns - 1) / kDeltaColumns;
  context.pool.parallel_for(shape.n_v_head * pieces, [&](int64_t task, int thread) {
    const int64_t head = task / pieces;
    const int64_t column = (task % pieces) * kDeltaColumns;
    const int64_t n_columns = std::min(kDeltaColumns, shape.dim - column);
    float* s = state + (head * shape.dim + column) * shape.dim;
    if (!keep) {
      float* copy = context.workspace.thread(thread).delta;
      std::memcpy(copy, s, static_cast<size_t>(n_columns * shape.dim) * sizeof(float));
      s = copy;
    }
    const float* qkv = inputs.qkv.data;
    const int64_t k_head = shape.k_head(head);
    kernel.delta_rule({.state = s,
                       .q = qkv + k_head * shape.dim,
                       .k = qkv + (shape.n_k_head + k_head) * shape.dim,
                       .v = qkv + (2 * shape.n_k_head + head) * shape.dim + column,
                       .decay = inputs.decay.data + head,
                       .beta = inputs.beta.data + head,
                       .out = out.data == nullptr ? nullptr : out.data + head * shape.dim + column,
                       .qk_stride = inputs.qkv.stride,
                       .v_stride = inputs.qkv.stride,
                       .decay_stride = inputs.decay.stride,
                       .beta_stride = inputs.beta.stride,
                       .out_stride = out.stride,
                       .n_tokens = inputs.qkv.count,
                       .n_columns = n_columns,
                       .key_dim = shape.dim});
  });
}

void gated_norm(Context& context, const float* weight, int64_t dim, float eps, GateKind kind,
                const Rows& z, const Rows& o) {
  const Kernels& kernel = kernels();
  const int64_t heads = o.width / dim;
  for_ranges(context.pool, o.count * heads, 3 * dim, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      float* x = o[i / heads] + (i % heads) * dim;
      const float* gate = z[i / heads] + (i % heads) * dim;
      const double mean = kernel.sum_squares(x, dim) / static_cast<double>(dim);
      const auto s = static_cast<float>(1.0 / std::sqrt(mean + static_cast<double>(eps)));
      kernel.scale_mul(x, s, weight, x, dim);
      if (kind == GateKind::Silu) {
        kernel.silu_mul(gate, x, x, dim);
      } else {
        kernel.sigmoid_mul(gate, x, x, dim);
      }
    }
  });
}

}  // namespace penstock::ops
