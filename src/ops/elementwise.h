// Norms, rotary embedding and the small operations between products. Each row's result is the same
// sequence of float operations whatever the number of rows and threads.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/context.h"
#include "ops/rows.h"

namespace penstock::ops {

struct Norm {
  const float* weight = nullptr;
  int64_t weight_len = 0;  // the row's width, or `group`: the same weights for every group
  int64_t group = 0;       // elements that share one mean square
  float eps = 0.0f;
};

// y = x / sqrt(mean(x^2) + eps) * weight per group (spec/qwen4exp.md §0.1). x and y may be one.
void rms_norm(Context& context, const Norm& norm, const Rows& x, const Rows& y);

// Where the heads of a row lie: head h is `dim` floats at offset + h * stride.
struct Heads {
  int64_t offset = 0;
  int64_t stride = 0;
  int64_t count = 0;
  int64_t dim = 0;
};

// Inverse frequencies (f32, as the models' authors form them) with linear or YaRN scaling.
struct RopeScaling {
  enum class Type { None, Linear, Yarn } type = Type::None;
  double factor = 1.0;
  double original_context = 0.0;
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  double attention_factor = 1.0;
};

class Rope {
 public:
  Rope() = default;
  Rope(int n_rot, double base, const RopeScaling& scaling);
  int64_t half() const noexcept { return static_cast<int64_t>(inverse_.size()); }
  std::span<const float> inverse_frequencies() const noexcept { return inverse_; }
  // Row i: cos and sin of the angles of position first + i * step: the f32 product of inverse
  // frequency and position.
  void angles(Context& context, int64_t first, int64_t step, const Rows& cosine,
              const Rows& sine) const;

 private:
  std::vector<float> inverse_;
  double magnitude_ = 1.0;
};

struct Angles {
  Rows cosine, sine;  // [rows][half]
};

// Per head: RMS norm over the head (weight may be null: none), then rotation of the first 2 half
// dims (angles may be null: none). y holds the heads one after the other.
void norm_rotate(Context& context, const Norm& norm, const Angles* angles, const Heads& heads,
                 const Rows& x, const Rows& y);

void silu_mul(Context& context, const Rows& gate, const Rows& up, const Rows& y);
// y = sigmoid(gate) * y, the gates being heads inside wider rows
void sigmoid_gate(Context& context, const Rows& gates, const Heads& heads, const Rows& y);
void silu_scaled(Context& context, const Rows& x, float divisor, const Rows& y);
void sigmoid_scaled(Context& context, const Rows& x, float divisor, float factor, const Rows& y);
void add(Context& context, const Rows& x, const Rows& y);                             // y += x
void add_bias(Context& context, const float* bias, const Rows& y);                    // y += bias
void add_scaled(Context& context, const Rows& factor, const Rows& x, const Rows& y);  // y += f_r x
void copy(Context& context, const Rows& x, const Rows& y);

// Hyper-connections (spec/qwen4exp.md §1): streams lie one after the other in a row.
// y[e] = mean over streams of sigmoid(gate) * x
void gated_mean(Context& context, const Rows& gate, const Rows& x, int n_streams, const Rows& y);
// wide[c] += inject[c] * y
void inject(Context& context, const Rows& weights, const Rows& y, int n_streams, const Rows& wide);
// Every stream becomes x.
void spread(Context& context, const Rows& x, int n_streams, const Rows& wide);

// N-gram embedding gates (spec/qwen4exp.md §4.2 step 3): per stream c of E floats,
// s = <k_c, q_c> / sqrt(E), m = sign(s) sqrt(max(|s|, 1e-6)), y_c = sigmoid(m) * v.
void signed_root_gate(Context& context, const Rows& k, const Rows& q, const Rows& v, int n_streams,
                      const Rows& y);

// Sum over ranks of weights[rank] * outputs[rank], in rank order: y of row r from the rows
// r * n_ranks .. of `outputs`.
void weighted_sum(Context& context, std::span<const float> weights, int n_ranks,
                  const Rows& outputs, const Rows& y);

}  // namespace penstock::ops
