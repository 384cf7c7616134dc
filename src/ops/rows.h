// Activation rows, and the layout of scratch memory that holds them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/memory.h"

namespace penstock::ops {

// `count` rows of `width` floats; row starts are 64-byte aligned when a Layout made them.
struct Rows {
  float* data = nullptr;
  int64_t stride = 0;  // floats from row to row
  int64_t count = 0;
  int64_t width = 0;
  float* operator[](int64_t row) const noexcept { return data + row * stride; }
  Rows first(int64_t n) const noexcept { return {data, stride, n, width}; }
  Rows from(int64_t row, int64_t n) const noexcept {
    return {data + row * stride, stride, n, width};
  }
  Rows columns(int64_t start, int64_t n) const noexcept { return {data + start, stride, count, n}; }
};

// Hands out pieces of one region. Without a base it only counts, so that the same code that places
// the buffers also tells the plan how large they are.
class Layout {
 public:
  explicit Layout(std::byte* base = nullptr) noexcept : base_(base) {}

  template <typename T>
  T* take(int64_t n) noexcept {
    std::byte* at = base_ == nullptr ? nullptr : base_ + bytes_;
    bytes_ += round_up(static_cast<uint64_t>(n) * sizeof(T), 64);
    return reinterpret_cast<T*>(at);
  }
  Rows rows(int64_t count, int64_t width) noexcept {
    const int64_t stride = static_cast<int64_t>(round_up(static_cast<uint64_t>(width), 16));
    return {take<float>(count * stride), stride, count, width};
  }
  uint64_t bytes() const noexcept { return bytes_; }

 private:
  std::byte* base_;
  uint64_t bytes_ = 0;
};

}  // namespace penstock::ops
