// The dense weights: everything but the routed experts, the token embedding's rows and the n-gram
// table. Tensors are declared while the model is put together, when only descriptors are read; the
// bytes come with load(), after the memory plan was made.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/memory.h"
#include "base/thread_pool.h"
#include "gguf/model.h"
#include "models/model.h"
#include "ops/matmul.h"

namespace penstock::models {

class DenseStore {
 public:
  // The bytes as they stand in the file. `out` must stay where it is; its data is set by load().
  void add_matrix(ops::Matrix* out, const gguf::Model& file, const gguf::Tensor& tensor);
  // Row r of the matrix is row rows[r] of the tensor.
  void add_gathered(ops::Matrix* out, const gguf::Model& file, const gguf::Tensor& tensor,
                    std::vector<int64_t> rows);
  // Decoded to f32; transposed: [ne1][ne0] becomes [ne0][ne1].
  void add_floats(const float** out, const gguf::Model& file, const gguf::Tensor& tensor,
                  bool transposed);

  // A matrix decoded to F32.
  void add_decoded(ops::Matrix* out, const gguf::Model& file, const gguf::Tensor& tensor);

  uint64_t copied_bytes() const;         // the tensors that DenseMode::Map leaves in the file
  uint64_t made_bytes() const noexcept;  // gathered and decoded: resident in either mode

  // Throws Error(Io) naming file and offset. Progress counts bytes read.
  void load(DenseMode mode, const LoadProgress& progress);

 private:
  struct Raw {
    ops::Matrix* out;
    const gguf::Model* file;
    const gguf::Tensor* tensor;
  };
  // Made from a tensor's bytes.
  struct Made {
    const gguf::Model* file;
    const gguf::Tensor* tensor;
    std::function<void(const std::byte* from, std::byte* to)> make;
    uint64_t bytes;
  };
  // Tensors that follow each other in one file: read as one stretch, which lies in memory at the
  // same offset from a page as on disk.
  struct Run {
    const gguf::Shard* shard;
    uint64_t start, end;  // in the file, page-aligned
    uint64_t place;       // in memory
    std::vector<size_t> raws;
  };
  std::vector<Run> runs() const;
  void read_all(const std::vector<Run>& runs, const LoadProgress& progress) const;

  std::vector<Raw> raws_;
  std::vector<Made> made_;
  Mapping copied_memory_, made_memory_;
};

}  // namespace penstock::models
