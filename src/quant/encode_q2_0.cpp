// Q2_0: 64 elements on the grid {-1, 0, 1, 2} * d, d of either sign (spec/gguf-quants.md §10.2).
//
// For a fixed sign the codes change with d only where d passes 2|x| (0 to -1 or 1) and 2x/3 (1 to
// 2), and the best d for given codes is Sxq / Sqq with error Sxx - Sxq^2 / Sqq. The exact search
// sorts all breakpoints; here magnitudes fall into kBins bins, whose edges serve as the candidates
// d/2. Edge j needs the sums of all magnitudes above j and of those of the `2` side above 3j: both
// are suffix sums over the bins. The winner is then refined with its true codes and fp16 scales.

#include "quant/encode.h"

namespace penstock::quant {
namespace {

constexpr int kBlock = 64;
constexpr int kBins = 64;

struct Sums {
  float xq = 0;
  float qq = 0;
};

// Sums of the codes nearest to x / d.
Sums code_sums(const float* x, const float* w, float d) noexcept {
  const float sign = d < 0 ? -1.0f : 1.0f;
  const float half = 0.5f * std::abs(d), three_halves = 1.5f * std::abs(d);
  float xq[8] = {}, qq[8] = {};
  for (int i = 0; i < kBlock; i += 8) {
    for (int k = 0; k < 8; ++k) {
      const float y = sign * x[i + k];
      const float q =
          (y > half ? 1.0f : 0.0f) + (y > three_halves ? 1.0f : 0.0f) - (y < -half ? 1.0f : 0.0f);
      const float wq = w[i + k] * q;
      xq[k] += wq * x[i + k];
      qq[k] += wq * q;
    }
  }
  return {sum_lanes(xq), sum_lanes(qq)};
}

// fp16 of a scale that must stay finite and not become zero.
float usable_half(float d) noexcept {
  const uint16_t bits = scale_bits(d);
  return half_to_float((bits & 0x7fffu) == 0 ? static_cast<uint16_t>(bits | 1u) : bits);
}

// A few rounds of codes from d, d from codes, scored with d as stored. Smaller is better: the error
// less the constant Sxx.
struct Choice {
  float d = 0;
  float error = 0;
};
Choice refine(const float* x, const float* w, float d) noexcept {
  Choice best;
  for (int round = 0; round < 3; ++round) {
    d = usable_half(d);
    const Sums s = code_sums(x, w, d);
    const float error = d * (d * s.qq - 2 * s.xq);
    if (!(error < best.error)) break;
    best = {d, error};
    if (s.qq == 0) break;
    d = s.xq / s.qq;
  }
  return best;
}

float best_scale(const float* x, const float* w, float max) noexcept {
  // Per bin: sums of w |x| and of w, of positive and of negative elements.
  float bins[kBins + 1][4] = {};
  const float to_bin = kBins / max;
  for (int i = 0; i < kBlock; ++i) {
    const float magnitude = std::abs(x[i]);
    const int bin = std::min(static_cast<int>(magnitude * to_bin), kBins - 1);
    float* sums = bins[bin] + (x[i] < 0 ? 2 : 0);
    sums[0] += w[i] * magnitude;
    sums[1] += w[i];
  }
  for (int j = kBins - 2; j >= 0; --j) {
    for (int k = 0; k < 4; ++k) bins[j][k] += bins[j + 1][k];
  }
  Sums best[2];  // d > 0: the positive side reaches code 2; d < 0: the negative side
  best[0].qq = best[1].qq = 1;
  for (int j = 1; j < kBins; ++j) {
    const float* one = bins[j];
    const float* two = bins[std::min(3 * j, kBins)];
    for (int side = 0; side < 2; ++side) {
      const float xq = one[0] + one[2] + two[2 * side];
      const float qq = one[1] + one[3] + 3 * two[2 * side + 1];
      if (xq * xq * best[side].qq > best[side].xq * best[side].xq * qq) best[side] = {xq, qq};
    }
  }
  const Choice positive = refine(x, w, best[0].xq / best[0].qq);
  const Choice negative = refine(x, w, -(best[1].xq / best[1].qq));
  if (negative.error != positive.error) {
    return negative.error < positive.error ? negative.d : positive.d;
  }
  return std::abs(negative.d) < std::abs(positive.d) ? negative.d : positive.d;
}

}  // namespace

void encode_q2_0(const float* in, uint8_t* out, int64_t n, const float* importance) noexcept {
  float ones[kBlock];
  std::fill(ones, ones + kBlock, 1.0f);
  for (int64_t i = 0; i < n; i += kBlock, in += kBlock, out += 18) {
    const float* w = ones;
    if (importance) {
      float total = 0;
      for (int k = 0; k < kBlock; ++k) total += importance[i + k];
      if (total > 0) w = importance + i;
    }
    float max = 0;
    for (int k = 0; k < kBlock; ++k) max = std::max(max, std::abs(in[k]));
    // Not even the smallest scale, 2^-24, would give any element another code than 0.
    const float d = max <= 0x1p-25f ? 0 : best_scale(in, w, max);
    store_u16(out, float_to_half(d));
    const float sign = d < 0 ? -1.0f : 1.0f;
    const float half = 0.5f * std::abs(d), three_halves = 1.5f * std::abs(d);
    for (int k = 0; k < kBlock; k += 4) {
      int byte = 0;
      for (int b = 0; b < 4; ++b) {
        const float y = sign * in[k + b];
        const int code = d == 0 ? 1 : 1 + (y > half) + (y > three_halves) - (y < -half);
        byte |= code << (2 * b);
      }
      out[2 + k / 4] = static_cast<uint8_t>(byte);
    }
  }
}

}  // namespace penstock::quant
