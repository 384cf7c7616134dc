// Products of weight matrices with activation rows, on the thread pool.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "gguf/types.h"
#include "ops/context.h"
#include "ops/rows.h"

namespace penstock::ops {

struct Matrix {
  gguf::TypeId type{};
  const std::byte* data = nullptr;
  uint64_t row_bytes = 0;
  int64_t n_in = 0;
  int64_t n_out = 0;
  std::string name;
  explicit operator bool() const noexcept { return n_out > 0; }
};

// Activation rows in the forms that weights ask for. A form is made once and shared by all matrices
// with this input.
class Activations {
 public:
  Activations() = default;
  Activations(Layout& layout, int64_t max_rows, int64_t width);

  // At most max_rows rows, at most `width` wide. Forgets the forms made so far.
  void set(Rows rows) noexcept;
  const Rows& rows() const noexcept { return rows_; }
  // The rows in the form that this type needs, made now if they were not yet.
  const void* const* form(Context& context, gguf::TypeId type);
  // For callers that make forms inside their own tasks.
  const void* const* begin_form(gguf::TypeId type, quant::Precision precision);
  void make_row(quant::ActKind kind, int64_t row) const noexcept;

 private:
  struct Form {
    std::byte* data = nullptr;
    const void** pointers = nullptr;
    bool made = false;
  };
  Form forms_[3];  // by quant::ActKind
  Rows rows_;
  int64_t width_ = 0;
};

// One matrix times some activation rows: out[t][r] for r < n_out.
struct Job {
  gguf::TypeId type{};
  const std::byte* weights = nullptr;
  uint64_t row_bytes = 0;
  int64_t n_in = 0;
  int64_t n_out = 0;
  const void* const* acts = nullptr;  // [n_tokens]
  float* const* outs = nullptr;       // [n_tokens]
  int64_t n_tokens = 0;
};

// All jobs in one pass over the pool. `starts` holds jobs.size() + 1 numbers.
void run_jobs(Context& context, std::span<const Job> jobs, std::span<int64_t> starts);

struct Product {
  const Matrix* matrix;
  Rows out;
};

inline constexpr int kMaxProducts = 8;

// Every product with the same input, in one pass. `outs`: room for products * rows pointers.
void matmul(Context& context, Activations& input, std::span<const Product> products,
            std::span<float*> outs);

}  // namespace penstock::ops
