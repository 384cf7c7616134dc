// Rows of one type to rows of another, with what it costs: the work of one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "gguf/types.h"

namespace penstock::surgery {

// Of x, what was to be stored, and y, what is; w is the importance, or 1 without.
struct ErrorSums {
  double xx = 0;   // sum of x^2
  double yy = 0;   // of y^2
  double ee = 0;   // of (x - y)^2
  double wxx = 0;  // of w x^2
  double wee = 0;  // of w (x - y)^2
  // The block with the largest ratio of errors to values: its relative RMSE, and the element that
  // it begins with, counted from the first that was added.
  double worst = 0;
  uint64_t worst_at = 0;

  // `offset`: the elements that come before those of `other`.
  void add(const ErrorSums& other, uint64_t offset) noexcept;
  double rmse(uint64_t n) const noexcept;          // sqrt(ee / n), of the n that were added
  double relative_rmse() const noexcept;           // sqrt(ee / xx); 0 when there is nothing
  double weighted_relative_rmse() const noexcept;  // sqrt(wee / wxx)
  double cosine() const noexcept;                  // x . y / (|x| |y|)
};

// What kept a row from being encoded; column counts elements of the row.
struct BadValue {
  uint64_t row = 0;
  uint64_t column = 0;
  float value = 0;
  bool in_source = true;  // false: the source's value is finite, but not in the new type
};

class RowEncoder {
 public:
  // Types that quant::can_decode and quant::can_encode accept. `positive`: Q2_0 gets no negative
  // scales.
  RowEncoder(gguf::TypeId from, gguf::TypeId to, uint64_t row, bool positive);

  // n_rows rows from `in` to `out`. `importance` has a value >= 0 per column, or is empty. Adds to
  // `sums`, whose elements count from in's first. False, with `bad` filled, when a value is not
  // finite. The result depends on nothing but the arguments.
  bool run(const std::byte* in, std::byte* out, uint64_t n_rows, std::span<const float> importance,
           ErrorSums* sums, BadValue* bad);

 private:
  gguf::TypeId from_, to_;
  uint64_t row_;
  bool positive_;
  uint64_t block_;  // elements that errors are compared over
  std::vector<float> x_, y_;
};

}  // namespace penstock::surgery
