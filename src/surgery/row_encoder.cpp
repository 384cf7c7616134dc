#include "surgery/row_encoder.h"

#include <algorithm>
#include <cmath>

#include "quant/codec.h"
#include "quant/encode_positive.h"

namespace penstock::surgery {
namespace {

// Four floats as one value, which every compiler here keeps in a vector register; eight lanes are
// two of them, added in a fixed order.
using Quad = float __attribute__((vector_size(16), aligned(4), may_alias));

inline Quad load(const float* p) noexcept {
  return *reinterpret_cast<const Quad*>(p);
}

inline double sum(Quad a, Quad b) noexcept {
  return (double{a[0]} + b[0]) + (double{a[2]} + b[2]) + (double{a[1]} + b[1]) +
         (double{a[3]} + b[3]);
}

// A block's sums in single precision: it has few elements, and what matters is added up in double.
template <bool kWeighted>
void add_block(const float* x, const float* y, const float* w, size_t n, ErrorSums* s) noexcept {
  Quad xx[2] = {}, yy[2] = {}, ee[2] = {}, wxx[2] = {}, wee[2] = {};
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (size_t k = 0; k < 2; ++k) {
      const Quad a = load(x + i + 4 * k), b = load(y + i + 4 * k);
      const Quad e = a - b, a2 = a * a, e2 = e * e;
      xx[k] += a2;
      yy[k] += b * b;
      ee[k] += e2;
      if (!kWeighted) continue;
      const Quad weight = load(w + i + 4 * k);
      wxx[k] += weight * a2;
      wee[k] += weight * e2;
    }
  }
  for (; i < n; ++i) {
    const float e = x[i] - y[i];
    const float weight = kWeighted ? w[i] : 0.0f;
    xx[0][0] += x[i] * x[i];
    yy[0][0] += y[i] * y[i];
    ee[0][0] += e * e;
    wxx[0][0] += weight * (x[i] * x[i]);
    wee[0][0] += weight * (e * e);
  }
  s->xx = sum(xx[0], xx[1]);
  s->yy = sum(yy[0], yy[1]);
  s->ee = sum(ee[0], ee[1]);
  s->wxx = kWeighted ? sum(wxx[0], wxx[1]) : s->xx;
  s->wee = kWeighted ? sum(wee[0], wee[1]) : s->ee;
}

// Where squares leave single precision.
void add_block_wide(const float* x, const float* y, const float* w, size_t n,
                    ErrorSums* s) noexcept {
  *s = {};
  for (size_t i = 0; i < n; ++i) {
    const double e = double{x[i]} - double{y[i]};
    const double weight = w != nullptr ? double{w[i]} : 1.0;
    s->xx += double{x[i]} * x[i];
    s->yy += double{y[i]} * y[i];
    s->ee += e * e;
    s->wxx += weight * x[i] * x[i];
    s->wee += weight * e * e;
  }
}

bool find_bad(const float* values, uint64_t n, uint64_t* column) noexcept {
  for (uint64_t i = 0; i < n; ++i) {
    if (std::isfinite(values[i])) continue;
    *column = i;
    return true;
  }
  return false;
}

// Exponents that are all ones mean infinity or NaN. Written so that it takes little beside
// decoding.
bool all_finite(const float* values, uint64_t n) noexcept {
  bool bad = false;
  for (uint64_t i = 0; i < n; ++i) bad |= !(std::abs(values[i]) <= 3.4028235e38f);
  return !bad;
}

double ratio(double errors, double values) noexcept {
  if (values > 0) return std::sqrt(errors / values);
  return errors > 0 ? 1.0 : 0.0;
}

}  // namespace

void ErrorSums::add(const ErrorSums& other, uint64_t offset) noexcept {
  xx += other.xx;
  yy += other.yy;
  ee += other.ee;
  wxx += other.wxx;
  wee += other.wee;
  if (other.worst > worst) {
    worst = other.worst;
    worst_at = offset + other.worst_at;
  }
}

double ErrorSums::rmse(uint64_t n) const noexcept {
  return n == 0 ? 0 : std::sqrt(ee / static_cast<double>(n));
}

double ErrorSums::relative_rmse() const noexcept {
  return ratio(ee, xx);
}

double ErrorSums::weighted_relative_rmse() const noexcept {
  return ratio(wee, wxx);
}

// 2 x.y = x.x + y.y - e.e
double ErrorSums::cosine() const noexcept {
  const double norms = std::sqrt(xx) * std::sqrt(yy);
  return norms > 0 ? std::clamp(0.5 * (xx + yy - ee) / norms, -1.0, 1.0) : 1.0;
}

RowEncoder::RowEncoder(gguf::TypeId from, gguf::TypeId to, uint64_t row, bool positive)
    : from_(from),
      to_(to),
      row_(row),
      positive_(positive && to == gguf::TypeId::Q2_0),
      block_(std::max<uint64_t>(gguf::type_info(to).block_elems, 32)),
      x_(row),
      y_(row) {}

bool RowEncoder::run(const std::byte* in, std::byte* out, uint64_t n_rows,
                     std::span<const float> importance, ErrorSums* sums, BadValue* bad) {
  const uint64_t in_bytes = gguf::row_bytes(from_, row_);
  const uint64_t out_bytes = gguf::row_bytes(to_, row_);
  const auto n = static_cast<int64_t>(row_);
  const float* w = importance.empty() ? nullptr : importance.data();
  for (uint64_t r = 0; r < n_rows; ++r, in += in_bytes, out += out_bytes) {
    quant::decode_row(from_, in, x_.data(), n);
    if (!all_finite(x_.data(), row_) && find_bad(x_.data(), row_, &bad->column)) {
      bad->row = r;
      bad->value = x_[bad->column];
      bad->in_source = true;
      return false;
    }
    if (positive_) {
      quant::encode_q2_0_positive(x_.data(), out, n, w);
    } else {
      quant::encode_row(to_, x_.data(), out, n, w);
    }
    quant::decode_row(to_, out, y_.data(), n);
    for (uint64_t i = 0; i < row_; i += block_) {
      const uint64_t count = std::min(block_, row_ - i);
      const float* weights = w != nullptr ? w + i : nullptr;
      ErrorSums block;
      (w != nullptr ? add_block<true> : add_block<false>)(x_.data() + i, y_.data() + i, weights,
                                                          count, &block);
      if (!std::isfinite(block.xx + block.yy + block.wxx + block.wee)) {
        if (find_bad(y_.data() + i, count, &bad->column)) {
          bad->row = r;
          bad->column += i;
          bad->value = x_[bad->column];
          bad->in_source = false;
          return false;
        }
        add_block_wide(x_.data() + i, y_.data() + i, weights, count, &block);
      }
      block.worst = ratio(block.ee, block.xx);
      sums->add(block, r * row_ + i);
    }
  }
  return true;
}

}  // namespace penstock::surgery
