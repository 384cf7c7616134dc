#include "ops/elementwise.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "ops/kernels.h"

namespace penstock::ops {
namespace {

float inverse_root(double sum_squares, int64_t n, float eps) noexcept {
  return static_cast<float>(
      1.0 / std::sqrt(sum_squares / static_cast<double>(n) + static_cast<double>(eps)));
}

template <typename Body>
void each_row(Context& context, const Rows& rows, Body body) {
  for_ranges(context.pool, rows.count, rows.width, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) body(r);
  });
}

// Splits rows into pieces of columns too, for operations whose elements are independent: one long
// row can then use all threads.
template <typename Body>
void each_piece(Context& context, const Rows& rows, int64_t cost, Body body) {
  constexpr int64_t kPiece = 1024;
  const int64_t pieces = (rows.width + kPiece - 1) / kPiece;
  for_ranges(context.pool, rows.count * pieces, std::min(kPiece, rows.width) * cost,
             [&](int64_t begin, int64_t end, int) {
               for (int64_t i = begin; i < end; ++i) {
                 const int64_t start = (i % pieces) * kPiece;
                 body(i / pieces, start, std::min(kPiece, rows.width - start));
               }
             });
}

}  // namespace

void rms_norm(Context& context, const Norm& norm, const Rows& x, const Rows& y) {
  const Kernels& kernel = kernels();
  const int64_t groups = x.width / norm.group;
  for_ranges(context.pool, x.count * groups, norm.group, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t start = (i % groups) * norm.group;
      const float* in = x[i / groups] + start;
      const float s = inverse_root(kernel.sum_squares(in, norm.group), norm.group, norm.eps);
      kernel.scale_mul(in, s, norm.weight + start % norm.weight_len, y[i / groups] + start,
                       norm.group);
    }
  });
}

// spec/moe-architectures.md §1.3
Rope::Rope(int n_rot, double base, const RopeScaling& scaling) {
  const int half = n_rot / 2;
  const double d = n_rot;
  double low = 0.0, high = 0.0;
  if (scaling.type == RopeScaling::Type::Yarn) {
    const auto correction = [&](double beta) {
      return d * std::log(scaling.original_context / (2.0 * M_PI * beta)) / (2.0 * std::log(base));
    };
    low = std::max(0.0, std::floor(correction(scaling.beta_fast)));
    high = std::min(d - 1.0, std::ceil(correction(scaling.beta_slow)));
    magnitude_ = (scaling.factor > 1.0 ? 1.0 + 0.1 * std::log(scaling.factor) : 1.0) *
                 scaling.attention_factor;
  }
  for (int i = 0; i < half; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(n_rot);
    const float inverse = 1.0f / static_cast<float>(std::pow(base, static_cast<double>(exponent)));
    switch (scaling.type) {
      case RopeScaling::Type::None:
        inverse_.push_back(inverse);
        break;
      case RopeScaling::Type::Linear:
        inverse_.push_back(inverse / static_cast<float>(scaling.factor));
        break;
      case RopeScaling::Type::Yarn: {
        const double ramp = std::clamp((i - low) / std::max(0.001, high - low), 0.0, 1.0);
        inverse_.push_back(static_cast<float>(static_cast<double>(inverse) *
                                              (ramp / scaling.factor + 1.0 - ramp)));
        break;
      }
    }
  }
}

void Rope::angles(Context& context, int64_t first, int64_t step, const Rows& cosine,
                  const Rows& sine) const {
  for_ranges(context.pool, cosine.count, half() * 16, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      const auto position = static_cast<float>(first + r * step);
      for (int64_t i = 0; i < half(); ++i) {
        const auto angle = static_cast<double>(inverse_[static_cast<size_t>(i)] * position);
        cosine[r][i] = static_cast<float>(std::cos(angle) * magnitude_);
        sine[r][i] = static_cast<float>(std::sin(angle) * magnitude_);
      }
    }
  });
}

void norm_rotate(Context& context, const Norm& norm, const Angles* angles, const Heads& heads,
                 const Rows& x, const Rows& y) {
  const Kernels& kernel = kernels();
  for_ranges(context.pool, x.count, heads.count * heads.dim, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t h = 0; h < heads.count; ++h) {
        const float* in = x[r] + heads.offset + h * heads.stride;
        float* out = y[r] + h * heads.dim;
        if (norm.weight != nullptr) {
          const float s = inverse_root(kernel.sum_squares(in, heads.dim), heads.dim, norm.eps);
          kernel.scale_mul(in, s, norm.weight, out, heads.dim);
        } else if (in != out) {
          std::memcpy(out, in, static_cast<size_t>(heads.dim) * sizeof(float));
        }
        if (angles != nullptr) {
          kernel.rotate(out, angles->cosine[r], angles->sine[r], angles->cosine.width);
        }
      }
    }
  });
}

void silu_mul(Context& context, const Rows& gate, const Rows& up, const Rows& y) {
  const Kernels& kernel = kernels();
  each_piece(context, y, 2, [&](int64_t r, int64_t start, int64_t n) {
    kernel.silu_mul(gate[r] + start, up[r] + start, y[r] + start, n);
  });
}

void sigmoid_gate(Context& context, const Rows& gates, const Heads& heads, const Rows& y) {
  const Kernels& kernel = kernels();
  each_row(context, y, [&](int64_t r) {
    for (int64_t h = 0; h < heads.count; ++h) {
      float* out = y[r] + h * heads.dim;
      kernel.sigmoid_mul(gates[r] + heads.offset + h * heads.stride, out, out, heads.dim);
    }
  });
}

void silu_scaled(Context& context, const Rows& x, float divisor, const Rows& y) {
  const Kernels& kernel = kernels();
  each_row(context, y, [&](int64_t r) { kernel.silu(x[r], divisor, y[r], y.width); });
}

void sigmoid_scaled(Context& context, const Rows& x, float divisor, float factor, const Rows& y) {
  const Kernels& kernel = kernels();
  each_row(context, y, [&](int64_t r) { kernel.sigmoid(x[r], divisor, factor, y[r], y.width); });
}

void add(Context& context, const Rows& x, const Rows& y) {
  const Kernels& kernel = kernels();
  each_piece(context, y, 1, [&](int64_t r, int64_t start, int64_t n) {
    kernel.add(x[r] + start, y[r] + start, n);
  });
}

void add_bias(Context& context, const float* bias, const Rows& y) {
  const Kernels& kernel = kernels();
  each_row(context, y, [&](int64_t r) { kernel.add(bias, y[r], y.width); });
}

void add_scaled(Context& context, const Rows& factor, const Rows& x, const Rows& y) {
  const Kernels& kernel = kernels();
  each_row(context, y, [&](int64_t r) { kernel.axpy(factor[r][0], x[r], y[r], y.width); });
}

void copy(Context& context, const Rows& x, const Rows& y) {
  each_row(context, y, [&](int64_t r) {
    std::memcpy(y[r], x[r], static_cast<size_t>(y.width) * sizeof(float));
  });
}

void gated_mean(Context& context, const Rows& gate, const Rows& x, int n_streams, const Rows& y) {
  const Kernels& kernel = kernels();
  each_piece(context, y, 2 * n_streams, [&](int64_t r, int64_t start, int64_t n) {
    kernel.gated_mean(gate[r] + start, x[r] + start, n_streams, y.width, y[r] + start, n);
  });
}

void inject(Context& context, const Rows& weights, const Rows& y, int n_streams, const Rows& wide) {
  const Kernels& kernel = kernels();
  each_piece(context, y, n_streams, [&](int64_t r, int64_t start, int64_t n) {
    for (int c = 0; c < n_streams; ++c) {
      kernel.axpy(weights[r][c], y[r] + start, wide[r] + c * y.width + start, n);
    }
  });
}

void spread(Context& context, const Rows& x, int n_streams, const Rows& wide) {
  each_row(context, wide, [&](int64_t r) {
    for (int c = 0; c < n_streams; ++c) {
      std::memcpy(wide[r] + c * x.width, x[r], static_cast<size_t>(x.width) * sizeof(float));
    }
  });
}

void signed_root_gate(Context& context, const Rows& k, const Rows& q, const Rows& v, int n_streams,
                      const Rows& y) {
  const Kernels& kernel = kernels();
  const int64_t width = v.width;
  const auto root = static_cast<float>(std::sqrt(static_cast<double>(width)));
  each_row(context, y, [&](int64_t r) {
    for (int c = 0; c < n_streams; ++c) {
      const float s = kernel.dot(k[r] + c * width, q[r] + c * width, width) / root;
      const float magnitude = std::sqrt(std::max(std::fabs(s), 1e-6f));
      float gate = s > 0.0f ? magnitude : s < 0.0f ? -magnitude : s * 0.0f;  // NaN stays NaN
      kernel.sigmoid(&gate, 1.0f, 1.0f, &gate, 1);
      kernel.scale(v[r], gate, y[r] + c * width, width);
    }
  });
}

void weighted_sum(Context& context, std::span<const float> weights, int n_ranks,
                  const Rows& outputs, const Rows& y) {
  const Kernels& kernel = kernels();
  each_piece(context, y, n_ranks, [&](int64_t r, int64_t start, int64_t n) {
    const float* w = weights.data() + r * n_ranks;
    kernel.scale(outputs[r * n_ranks] + start, w[0], y[r] + start, n);
    for (int i = 1; i < n_ranks; ++i) {
      kernel.axpy(w[i], outputs[r * n_ranks + i] + start, y[r] + start, n);
    }
  });
}

}  // namespace penstock::ops
