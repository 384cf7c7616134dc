// The dense weights: everything but the routed experts, the token embedding's rows and the n-gram
// table. Tensors are declared while the model is put together, when only descriptors are read; the
// bytes come with load(), after the memory plan was made.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/locked_memory.h"
#include "base/memory.h"
#include "base/thread_pool.h"
#include "gguf/model.h"
#include "models/dense_convert.h"
#include "models/dense_report.h"
#include "models/model.h"
#include "ops/matmul.h"

namespace penstock::models {

class DenseStore {
 public:
  explicit DenseStore(const std::vector<ConvertRule>& rules = {}) : conversions_(rules) {}

  // The bytes as they stand in the file, or in another type where a rule asks for it. Sets the type
  // and the row length of `out`, which must stay where it is; its data is set by load().
  void add_matrix(ops::Matrix* out, const gguf::Model& file, const gguf::Tensor& tensor);
  // The bytes as they stand in the file, whatever the rules say.
  void add_verbatim(ops::Matrix* out, const gguf::Model& file, const gguf::Tensor& tensor);
  // Row r of the matrix is row rows[r] of the tensor.
  void add_gathered(ops::Matrix* out, const gguf::Model& file, const gguf::Tensor& tensor,
                    std::vector<int64_t> rows);
  // Decoded to f32; transposed: [ne1][ne0] becomes [ne0][ne1].
  void add_floats(const float** out, const gguf::Model& file, const gguf::Tensor& tensor,
                  bool transposed);

  // A matrix decoded to F32.
  void add_decoded(ops::Matrix* out, const gguf::Model& file, const gguf::Tensor& tensor);

  // Bytes of whole pages, known before anything is loaded.
  uint64_t copied_bytes() const;         // DenseMode::Copy: the tensors used as they stand
  uint64_t mapped_bytes() const;         // DenseMode::Map: the same, in the file's pages
  uint64_t made_bytes() const noexcept;  // gathered, decoded, converted: held in either mode

  const Conversions& conversions() const noexcept { return conversions_; }

  // `threads` convert; reading alone takes fewer. Throws Error(Io) naming file and offset,
  // Error(Numeric) naming a tensor that cannot be converted. Progress counts bytes read.
  void load(DenseMode mode, int threads, const LoadProgress& progress);

  // Locks what load() brought in where it lies; never throws for what is refused: report() says it.
  void lock(const MemoryLocker& lock);

  DenseReport report() const;  // pages and regions after load() and lock(); no skipped tensors

 private:
  struct Raw {
    ops::Matrix* out;
    const gguf::Model* file;
    const gguf::Tensor* tensor;
  };
  // Made from a tensor's bytes: from the whole of it, or from any rows, one after the other.
  struct Made {
    const gguf::Model* file;
    const gguf::Tensor* tensor;
    uint64_t bytes;
    uint64_t row_bytes;  // of what is made; 0: from the whole tensor at once
    // Rows [first, first + count) of the tensor start at `from`; the first is to be put at `to`.
    std::function<void(uint64_t first, uint64_t count, const std::byte* from, std::byte* to)> make;
    std::function<void(const std::byte* made)> done;
  };
  // Tensors that follow each other in one file: read as one stretch, which lies in memory at the
  // same offset from a page as on disk.
  struct Run {
    const gguf::Shard* shard;
    uint64_t start, end;  // in the file, page-aligned
    uint64_t place;       // in memory
    std::vector<size_t> raws;
  };
  struct Piece;
  // Whole pages of a file's mapping.
  struct Range {
    const std::byte* start;
    uint64_t bytes;
    const std::string* path;
    uint64_t offset;  // in the file
  };
  std::vector<size_t> raws_by_place() const;
  std::vector<Run> runs() const;
  std::vector<Range> ranges() const;
  std::vector<Piece> pieces(const std::vector<Run>& runs) const;
  uint64_t read_all(const std::vector<Run>& runs, int threads, const LoadProgress& progress) const;
  void copy_in(int threads, const LoadProgress& progress);
  void map_in(int threads, const LoadProgress& progress);

  Conversions conversions_;
  std::vector<Raw> raws_;
  std::vector<Made> made_;
  bool converts_ = false;
  bool loaded_ = false;
  DenseMode mode_ = DenseMode::Copy;
  Mapping copied_memory_, made_memory_;
  bool lock_tried_ = false;
  std::vector<LockedRegion> regions_;
  uint64_t vm_locked_ = 0, lock_limit_ = 0;
};

}  // namespace penstock::models
