// Fused element-wise passes of the training step. Row-major f32; n tokens, c streams, e hidden, f expert width.
#include <math.h>
#include <stdint.h>

#define EPS 1e-6f

static inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// Per-stream RMS norm: r, out [n, c, e]; gamma [c, e]; rstd [n, c].
void hc_norm(const float *restrict r, const float *restrict gamma, float *restrict out, float *restrict rstd,
             int64_t n, int64_t c, int64_t e) {
    for (int64_t row = 0; row < n * c; ++row) {
        const float *x = r + row * e, *w = gamma + row % c * e;
        float *y = out + row * e, sum = 0;
        for (int64_t i = 0; i < e; ++i) sum += x[i] * x[i];
        const float s = 1.0f / sqrtf(sum / e + EPS);
        rstd[row] = s;
        for (int64_t i = 0; i < e; ++i) y[i] = x[i] * s * w[i];
    }
}

// x [n, e] = mean over streams of sigmoid(u) * normed; u, normed [n, c, e].
void hc_gate(const float *restrict u, const float *restrict normed, float *restrict x, int64_t n, int64_t c, int64_t e) {
    const float inv = 1.0f / c;
    for (int64_t t = 0; t < n; ++t) {
        float *y = x + t * e;
        for (int64_t i = 0; i < e; ++i) y[i] = 0;
        for (int64_t s = 0; s < c; ++s) {
            const float *a = u + (t * c + s) * e, *b = normed + (t * c + s) * e;
            for (int64_t i = 0; i < e; ++i) y[i] += inv * b[i] * sigmoid(a[i]);
        }
    }
}

// Gradients of hc_gate: dx [n, e] -> du, dn [n, c, e].
void hc_gate_backward(const float *restrict dx, const float *restrict u, const float *restrict normed,
                      float *restrict du, float *restrict dn, int64_t n, int64_t c, int64_t e) {
    const float inv = 1.0f / c;
    for (int64_t row = 0; row < n * c; ++row) {
        const float *g = dx + row / c * e, *a = u + row * e, *b = normed + row * e;
        float *p = du + row * e, *q = dn + row * e;
        for (int64_t i = 0; i < e; ++i) {
            const float s = sigmoid(a[i]), d = inv * g[i] * s;
            q[i] = d;
            p[i] = d * b[i] * (1.0f - s);
        }
    }
}

// Gradients of hc_norm: dn [n, c, e] is replaced by dr; dgamma [c, e] is added to.
void hc_norm_backward(float *restrict dn, const float *restrict r, const float *restrict gamma,
                      const float *restrict rstd, float *restrict dgamma, int64_t n, int64_t c, int64_t e) {
    for (int64_t row = 0; row < n * c; ++row) {
        const float *x = r + row * e, *w = gamma + row % c * e, s = rstd[row];
        float *d = dn + row * e, *dw = dgamma + row % c * e, dot = 0;
        for (int64_t i = 0; i < e; ++i) {
            const float hat = x[i] * s, t = d[i];
            dw[i] += t * hat;
            dot += t * w[i] * hat;
        }
        dot /= e;
        for (int64_t i = 0; i < e; ++i) d[i] = s * (d[i] * w[i] - x[i] * s * dot);
    }
}

// out = r + inject * y; r, out [n, c, e]; inject [n, c]; y [n, e].
void hc_write(const float *restrict r, const float *restrict inject, const float *restrict y, float *restrict out,
              int64_t n, int64_t c, int64_t e) {
    for (int64_t row = 0; row < n * c; ++row) {
        const float *a = r + row * e, *b = y + row / c * e, s = inject[row];
        float *o = out + row * e;
        for (int64_t i = 0; i < e; ++i) o[i] = a[i] + s * b[i];
    }
}

// Gradients of hc_write for inject and y (that of r is d itself).
void hc_write_backward(const float *restrict d, const float *restrict inject, const float *restrict y,
                       float *restrict dinject, float *restrict dy, int64_t n, int64_t c, int64_t e) {
    for (int64_t t = 0; t < n; ++t) {
        const float *b = y + t * e;
        float *o = dy + t * e;
        for (int64_t i = 0; i < e; ++i) o[i] = 0;
        for (int64_t s = 0; s < c; ++s) {
            const float *g = d + (t * c + s) * e, w = inject[t * c + s];
            float dot = 0;
            for (int64_t i = 0; i < e; ++i) {
                dot += g[i] * b[i];
                o[i] += w * g[i];
            }
            dinject[t * c + s] = dot;
        }
    }
}

// act [m, f] = silu(gate) * up * w; h [m, 2f] holds gate then up; w [m].
void expert_act(const float *restrict h, const float *restrict w, float *restrict act, int64_t m, int64_t f) {
    for (int64_t row = 0; row < m; ++row) {
        const float *g = h + row * 2 * f, *u = g + f, s = w[row];
        float *a = act + row * f;
        for (int64_t i = 0; i < f; ++i) a[i] = g[i] * sigmoid(g[i]) * u[i] * s;
    }
}

// Gradients of expert_act: d [m, f] -> dh [m, 2f], dw [m].
void expert_act_backward(const float *restrict d, const float *restrict h, const float *restrict w, float *restrict dh,
                         float *restrict dw, int64_t m, int64_t f) {
    for (int64_t row = 0; row < m; ++row) {
        const float *g = h + row * 2 * f, *u = g + f, *p = d + row * f, s = w[row];
        float *dg = dh + row * 2 * f, *du = dg + f, dot = 0;
        for (int64_t i = 0; i < f; ++i) {
            const float sig = sigmoid(g[i]), silu = g[i] * sig;
            dot += p[i] * silu * u[i];
            dg[i] = p[i] * s * u[i] * (sig + silu * (1.0f - sig));
            du[i] = p[i] * s * silu;
        }
        dw[row] = dot;
    }
}

// Depthwise causal convolution with silu: x, out, pre [b, t, d]; weight [taps, d], last tap = current token.
void conv_silu(const float *restrict x, const float *restrict weight, float *restrict pre, float *restrict out,
               int64_t b, int64_t t, int64_t d, int64_t taps, int64_t dilation) {
    for (int64_t row = 0; row < b * t; ++row) {
        const int64_t pos = row % t;
        float *p = pre + row * d, *o = out + row * d;
        for (int64_t i = 0; i < d; ++i) p[i] = 0;
        for (int64_t k = 0; k < taps; ++k) {
            const int64_t lag = (taps - 1 - k) * dilation;
            if (lag > pos) continue;
            const float *a = x + (row - lag) * d, *w = weight + k * d;
            for (int64_t i = 0; i < d; ++i) p[i] += a[i] * w[i];
        }
        for (int64_t i = 0; i < d; ++i) o[i] = p[i] * sigmoid(p[i]);
    }
}

// Gradients of conv_silu; pre is replaced by the gradient of the sum; dx and dweight must start at zero.
void conv_silu_backward(const float *restrict dout, const float *restrict x, const float *restrict weight,
                        float *restrict pre, float *restrict dx, float *restrict dweight, int64_t b, int64_t t,
                        int64_t d, int64_t taps, int64_t dilation) {
    for (int64_t row = 0; row < b * t; ++row) {
        const int64_t pos = row % t;
        float *p = pre + row * d;
        const float *g = dout + row * d;
        for (int64_t i = 0; i < d; ++i) {
            const float s = sigmoid(p[i]);
            p[i] = g[i] * (s + p[i] * s * (1.0f - s));
        }
        for (int64_t k = 0; k < taps; ++k) {
            const int64_t lag = (taps - 1 - k) * dilation;
            if (lag > pos) continue;
            const float *a = x + (row - lag) * d, *w = weight + k * d;
            float *da = dx + (row - lag) * d, *dw = dweight + k * d;
            for (int64_t i = 0; i < d; ++i) {
                da[i] += p[i] * w[i];
                dw[i] += p[i] * a[i];
            }
        }
    }
}
