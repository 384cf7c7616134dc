// The kernels over Vec8, compiled once per instruction set (kernels_*.cpp).
#pragma once

#include "ops/kernels.h"
#include "ops/vec8.h"

namespace penstock::ops::PENSTOCK_OPS_ISA {

// Calls f(i, load, store) for every group of eight and the rest of a row of n.
template <typename Body>
inline void for_lanes(int64_t n, Body body) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    body(
        i, [i](const float* p) { return load(p + i); }, [i](float* p, Vec8 a) { store(p + i, a); });
  }
  if (i < n) {
    body(
        i, [i, n](const float* p) { return load_some(p + i, n - i); },
        [i, n](float* p, Vec8 a) { store_some(p + i, a, n - i); });
  }
}

float dot(const float* a, const float* b, int64_t n) {
  Vec8 acc = splat(0.0f);
  for_lanes(n, [&](int64_t, auto get, auto) { acc = fma(get(a), get(b), acc); });
  return sum(acc);
}

// Squares in eight float lanes over 256 elements at a time, those sums in double.
double sum_squares(const float* x, int64_t n) {
  double total = 0.0;
  for (int64_t start = 0; start < n; start += 256) {
    const float* part = x + start;
    Vec8 acc = splat(0.0f);
    for_lanes(n - start < 256 ? n - start : 256, [&](int64_t, auto get, auto) {
      const Vec8 a = get(part);
      acc = fma(a, a, acc);
    });
    total += static_cast<double>(sum(acc));
  }
  return total;
}

float max_of(const float* x, int64_t n) {
  float best = -INFINITY;
  int64_t i = 0;
  if (n >= 8) {
    Vec8 m = load(x);
    for (i = 8; i + 8 <= n; i += 8) m = max(m, load(x + i));
    float lanes[8];
    store(lanes, m);
    for (float lane : lanes) best = best > lane ? best : lane;
  }
  for (; i < n; ++i) best = best > x[i] ? best : x[i];
  return best;
}

void scale(const float* x, float s, float* y, int64_t n) {
  for_lanes(n, [&](int64_t, auto get, auto put) { put(y, mul(get(x), splat(s))); });
}
void scale_mul(const float* x, float s, const float* w, float* y, int64_t n) {
  for_lanes(n, [&](int64_t, auto get, auto put) { put(y, mul(mul(get(x), splat(s)), get(w))); });
}
void add_to(const float* x, float* y, int64_t n) {
  for_lanes(n, [&](int64_t, auto get, auto put) { put(y, add(get(y), get(x))); });
}
void axpy(float a, const float* x, float* y, int64_t n) {
  for_lanes(n, [&](int64_t, auto get, auto put) { put(y, fma(splat(a), get(x), get(y))); });
}
void silu_of(const float* x, float divisor, float* y, int64_t n) {
  for_lanes(n, [&](int64_t, auto get, auto put) { put(y, silu(div(get(x), splat(divisor)))); });
}
void sigmoid_of(const float* x, float divisor, float factor, float* y, int64_t n) {
  for_lanes(n, [&](int64_t, auto get, auto put) {
    put(y, mul(splat(factor), sigmoid(div(get(x), splat(divisor)))));
  });
}
void silu_mul(const float* g, const float* u, float* y, int64_t n) {
  for_lanes(n, [&](int64_t, auto get, auto put) { put(y, mul(silu(get(g)), get(u))); });
}
void sigmoid_mul(const float* g, const float* u, float* y, int64_t n) {
  for_lanes(n, [&](int64_t, auto get, auto put) { put(y, mul(sigmoid(get(g)), get(u))); });
}

void gated_mean(const float* gate, const float* x, int64_t n_streams, int64_t stride, float* y,
                int64_t n) {
  const Vec8 streams = splat(static_cast<float>(n_streams));
  for_lanes(n, [&](int64_t, auto get, auto put) {
    Vec8 acc = splat(0.0f);
    for (int64_t c = 0; c < n_streams; ++c) {
      acc = fma(sigmoid(get(gate + c * stride)), get(x + c * stride), acc);
    }
    put(y, div(acc, streams));
  });
}

void conv_silu(const float* const* taps, int64_t n_taps, const float* w, int64_t w_stride, float* y,
               int64_t n) {
  for_lanes(n, [&](int64_t, auto get, auto put) {
    Vec8 acc = mul(get(w), get(taps[0]));
    for (int64_t i = 1; i < n_taps; ++i) acc = fma(get(w + i * w_stride), get(taps[i]), acc);
    put(y, silu(acc));
  });
}

float exp_minus(float* x, float m, int64_t n) {
  Vec8 acc = splat(0.0f);
  for_lanes(n, [&](int64_t, auto get, auto put) {
    put(x, exp(sub(get(x), splat(m))));
    acc = add(acc, get(x));  // read back: lanes past the end are zero
  });
  return sum(acc);
}

void exp_of(const float* x, float* y, int64_t n) {
  for_lanes(n, [&](int64_t, auto get, auto put) { put(y, exp(get(x))); });
}

void rotate(float* x, const float* cosine, const float* sine, int64_t half) {
  for_lanes(half, [&](int64_t, auto get, auto put) {
    const Vec8 a = get(x), b = get(x + half), c = get(cosine), s = get(sine);
    put(x, sub(mul(a, c), mul(b, s)));
    put(x + half, add(mul(b, c), mul(a, s)));
  });
}

void mean_rows(const float* const* rows, int64_t n_rows, float* y, int64_t n) {
  const Vec8 count = splat(static_cast<float>(n_rows));
  for_lanes(n, [&](int64_t, auto get, auto put) {
    Vec8 acc = get(rows[0]);
    for (int64_t i = 1; i < n_rows; ++i) acc = add(acc, get(rows[i]));
    put(y, div(acc, count));
  });
}

// Q queries times P positions, one accumulator each: the order of a pair's additions does not
// depend on Q and P.
template <int Q, int P>
inline void score_tile(const float* const* queries, const float* keys, int64_t dim, float scale,
                       float* out, int64_t out_stride) {
  Vec8 acc[Q][P];
  for (int q = 0; q < Q; ++q) {
    for (int p = 0; p < P; ++p) acc[q][p] = splat(0.0f);
  }
  for (int64_t d = 0; d < dim; d += 8) {
    Vec8 key[P];
    for (int p = 0; p < P; ++p) key[p] = load(keys + p * dim + d);
    for (int q = 0; q < Q; ++q) {
      const Vec8 query = load(queries[q] + d);
      for (int p = 0; p < P; ++p) acc[q][p] = fma(query, key[p], acc[q][p]);
    }
  }
  for (int q = 0; q < Q; ++q) {
    for (int p = 0; p < P; ++p) out[q * out_stride + p] = sum(acc[q][p]) * scale;
  }
}

void scores(const float* const* queries, int64_t n_queries, const float* keys, int64_t n_positions,
            int64_t dim, float scale, float* out, int64_t out_stride) {
  int64_t p = 0;
  for (; p + 2 <= n_positions; p += 2) {
    int64_t q = 0;
    for (; q + 4 <= n_queries; q += 4) {
      score_tile<4, 2>(queries + q, keys + p * dim, dim, scale, out + q * out_stride + p,
                       out_stride);
    }
    for (; q < n_queries; ++q) {
      score_tile<1, 2>(queries + q, keys + p * dim, dim, scale, out + q * out_stride + p,
                       out_stride);
    }
  }
  for (; p < n_positions; ++p) {
    for (int64_t q = 0; q < n_queries; ++q) {
      score_tile<1, 1>(queries + q, keys + p * dim, dim, scale, out + q * out_stride + p,
                       out_stride);
    }
  }
}

template <int Q, int D>  // D vectors of eight
inline void weigh_tile(const float* weights, int64_t weight_stride, const float* values,
                       int64_t n_positions, int64_t dim, float* out, int64_t out_stride) {
  Vec8 acc[Q][D];
  for (int q = 0; q < Q; ++q) {
    for (int d = 0; d < D; ++d) acc[q][d] = load(out + q * out_stride + d * 8);
  }
  for (int64_t p = 0; p < n_positions; ++p) {
    Vec8 value[D];
    for (int d = 0; d < D; ++d) value[d] = load(values + p * dim + d * 8);
    for (int q = 0; q < Q; ++q) {
      const Vec8 w = splat(weights[q * weight_stride + p]);
      for (int d = 0; d < D; ++d) acc[q][d] = fma(w, value[d], acc[q][d]);
    }
  }
  for (int q = 0; q < Q; ++q) {
    for (int d = 0; d < D; ++d) store(out + q * out_stride + d * 8, acc[q][d]);
  }
}

void weigh(const float* weights, int64_t weight_stride, int64_t n_queries, const float* values,
           int64_t n_positions, int64_t dim, float* out, int64_t out_stride) {
  int64_t d = 0;
  for (; d + 32 <= dim; d += 32) {
    int64_t q = 0;
    for (; q + 2 <= n_queries; q += 2) {
      weigh_tile<2, 4>(weights + q * weight_stride, weight_stride, values + d, n_positions, dim,
                       out + q * out_stride + d, out_stride);
    }
    for (; q < n_queries; ++q) {
      weigh_tile<1, 4>(weights + q * weight_stride, weight_stride, values + d, n_positions, dim,
                       out + q * out_stride + d, out_stride);
    }
  }
  for (; d < dim; d += 8) {
    for (int64_t q = 0; q < n_queries; ++q) {
      weigh_tile<1, 1>(weights + q * weight_stride, weight_stride, values + d, n_positions, dim,
                       out + q * out_stride + d, out_stride);
    }
  }
}

// Decay, read with k, update, read with q: the output sees the updated state.
template <int R>  // columns at a time
inline void delta_columns(const DeltaRuleBlock& b, int64_t t, int64_t column) {
  float* s = b.state + column * b.key_dim;
  const float* k = b.k + t * b.qk_stride;
  const float* q = b.q + t * b.qk_stride;
  const Vec8 decay = splat(b.decay[t * b.decay_stride]);
  const float beta = b.beta[t * b.beta_stride];
  Vec8 read[R];
  for (int r = 0; r < R; ++r) read[r] = splat(0.0f);
  for (int64_t i = 0; i < b.key_dim; i += 8) {
    const Vec8 key = load(k + i);
    for (int r = 0; r < R; ++r) {
      const Vec8 a = mul(load(s + r * b.key_dim + i), decay);
      store(s + r * b.key_dim + i, a);
      read[r] = fma(a, key, read[r]);
    }
  }
  Vec8 delta[R], out[R];
  for (int r = 0; r < R; ++r) {
    delta[r] = splat(beta * (b.v[t * b.v_stride + column + r] - sum(read[r])));
    out[r] = splat(0.0f);
  }
  for (int64_t i = 0; i < b.key_dim; i += 8) {
    const Vec8 key = load(k + i), query = load(q + i);
    for (int r = 0; r < R; ++r) {
      const Vec8 a = fma(key, delta[r], load(s + r * b.key_dim + i));
      store(s + r * b.key_dim + i, a);
      out[r] = fma(a, query, out[r]);
    }
  }
  if (b.out != nullptr) {
    for (int r = 0; r < R; ++r) b.out[t * b.out_stride + column + r] = sum(out[r]);
  }
}

void delta_rule(const DeltaRuleBlock& b) {
  for (int64_t t = 0; t < b.n_tokens; ++t) {
    int64_t column = 0;
    for (; column + 4 <= b.n_columns; column += 4) delta_columns<4>(b, t, column);
    for (; column < b.n_columns; ++column) delta_columns<1>(b, t, column);
  }
}

void from_half(const uint16_t* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; i += 8) store(y + i, load_half(x + i));
}

void to_half(const float* x, uint16_t* y, int64_t n) {
  for (int64_t i = 0; i < n; i += 8) {
#if defined(PENSTOCK_OPS_AVX2)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(y + i),
                     _mm256_cvtps_ph(load(x + i).v, _MM_FROUND_TO_NEAREST_INT));
#elif defined(PENSTOCK_OPS_NEON)
    const Vec8 a = load(x + i);
    vst1q_u16(y + i, vcombine_u16(vreinterpret_u16_f16(vcvt_f16_f32(a.lo)),
                                  vreinterpret_u16_f16(vcvt_f16_f32(a.hi))));
#else
    for (int64_t lane = i; lane < i + 8; ++lane) {
      const uint32_t u = bits_of(x[lane]);
      const uint32_t sign = (u >> 16) & 0x8000u;
      const uint32_t magnitude = u & 0x7fffffffu;
      uint32_t h;
      if (magnitude > 0x7f800000u) {
        h = 0x7e00u | ((magnitude >> 13) & 0x3ffu);  // NaN
      } else if (magnitude >= 0x477ff000u) {
        h = 0x7c00u;  // 65520 and above round to infinity
      } else if (magnitude >= 0x38800000u) {
        const uint32_t odd = (magnitude >> 13) & 1u;
        h = (magnitude - 0x38000000u + 0xfffu + odd) >> 13;
      } else {  // subnormal: adding 0.5 leaves the rounded multiple of 2^-24 in the low bits
        h = bits_of(float_of(magnitude) + 0.5f) - 0x3f000000u;
      }
      y[lane] = static_cast<uint16_t>(sign | h);
    }
#endif
  }
}

inline constexpr Kernels kTable = {
    .dot = dot,
    .sum_squares = sum_squares,
    .max = max_of,
    .scale = scale,
    .scale_mul = scale_mul,
    .add = add_to,
    .axpy = axpy,
    .silu = silu_of,
    .sigmoid = sigmoid_of,
    .silu_mul = silu_mul,
    .sigmoid_mul = sigmoid_mul,
    .gated_mean = gated_mean,
    .conv_silu = conv_silu,
    .exp_minus = exp_minus,
    .exp = exp_of,
    .rotate = rotate,
    .mean_rows = mean_rows,
    .scores = scores,
    .weigh = weigh,
    .delta_rule = delta_rule,
    .from_half = from_half,
    .to_half = to_half,
};

}  // namespace penstock::ops::PENSTOCK_OPS_ISA
