#include "surgery/row_encoder.h"

#include <algorithm>
#include <cmath>

#include "quant/codec.h"
#include "quant/encode_positive.h"

namespace penstock::surgery {
namespace {

// Lanes that the compiler can keep in vectors; added in a fixed order.
constexpr size_t kLanes = 8;

struct Lanes {
  float v[kLanes] = {};
  double sum() const noexcept {
    return (double{v[0]} + v[4]) + (double{v[2]} + v[6]) + (double{v[1]} + v[5]) +
           (double{v[3]} + v[7]);
  }
};

// A block's sums in single precision: it has few elements, and what matters is added up in double.
void add_block(const float* x, const float* y, const float* w, size_t n, ErrorSums* s) noexcept {
  Lanes xx, yy, ee, wxx, wee;
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (size_t k = 0; k < kLanes; ++k) {
      const float e = x[i + k] - y[i + k];
      xx.v[k] += x[i + k] * x[i + k];
      yy.v[k] += y[i + k] * y[i + k];
      ee.v[k] += e * e;
    }
    for (size_t k = 0; w != nullptr && k < kLanes; ++k) {
      const float e = x[i + k] - y[i + k];
      wxx.v[k] += w[i + k] * (x[i + k] * x[i + k]);
      wee.v[k] += w[i + k] * (e * e);
    }
  }
  for (; i < n; ++i) {
    const float e = x[i] - y[i];
    const float weight = w != nullptr ? w[i] : 0.0f;
    xx.v[0] += x[i] * x[i];
    yy.v[0] += y[i] * y[i];
    ee.v[0] += e * e;
    wxx.v[0] += weight * (x[i] * x[i]);
    wee.v[0] += weight * (e * e);
  }
  s->xx = xx.sum();
  s->yy = yy.sum();
  s->ee = ee.sum();
  s->wxx = w != nullptr ? wxx.sum() : s->xx;
  s->wee = w != nullptr ? wee.sum() : s->ee;
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
      add_block(x_.data() + i, y_.data() + i, weights, count, &block);
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
