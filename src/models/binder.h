// Takes tensors out of a file by name for a model's parts: checks each against the shape that the
// hyper-parameters ask for (R18), declares it to the dense store, and remembers what was taken.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "experts/geometry.h"
#include "gguf/model.h"
#include "models/dense_store.h"

namespace penstock::models {

class Binder {
 public:
  Binder(const gguf::Model& file, DenseStore& store) : file_(file), store_(store) {}

  const gguf::Model& file() const noexcept { return file_; }
  bool has(const std::string& name) const { return file_.find(name) != nullptr; }
  // Marks the tensor as used. Throws Error(Format) when it is missing.
  const gguf::Tensor& take(const std::string& name);

  // n_out < 0: taken from the tensor. Held as it stands in the file, or as --dense-convert asks.
  void matrix(ops::Matrix* out, const std::string& name, int64_t n_in, int64_t n_out);
  // Held as F32 whatever its type in the file, and never converted (routers).
  void f32_matrix(ops::Matrix* out, const std::string& name, int64_t n_in, int64_t n_out);
  void gathered(ops::Matrix* out, const std::string& name, int64_t n_in, int64_t n_out,
                std::vector<int64_t> rows, int64_t tensor_rows);
  void floats(const float** out, const std::string& name, int64_t n);
  bool floats_if_present(const float** out, const std::string& name, int64_t n);
  // [taps, channels] to [taps][channels] in memory
  void convolution(const float** out, const std::string& name, int64_t n_taps, int64_t channels);

  // The expert banks of block `layer`; n_embd wide. `first_shard` is where this file's shards start
  // in the geometry's list.
  experts::LayerGeometry bank(int layer, int64_t n_embd, int n_used, uint32_t first_shard);

  std::vector<const gguf::Tensor*> unused() const;  // tensors that nothing took

  [[noreturn]] void wrong_shape(const gguf::Tensor& tensor, const std::string& wanted) const;

 private:
  void check_matrix(const gguf::Tensor& tensor, int64_t n_in, int64_t n_out) const;
  void check_kernel(const gguf::Tensor& tensor) const;
  experts::MatrixGeometry part(const gguf::Tensor& tensor, int64_t n_out, uint64_t first_row,
                               uint32_t first_shard) const;

  const gguf::Model& file_;
  DenseStore& store_;
  std::unordered_set<std::string> taken_;
};

// "blk.7.attn_q.weight"
std::string block_name(int layer, std::string_view suffix);

}  // namespace penstock::models
