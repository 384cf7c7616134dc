// Internal to the executor: what one task does, and the order of the tasks.
#pragma once

#include <cstdint>
#include <vector>

#include "surgery/rewrite_plan.h"

namespace penstock::surgery {

// A run of rows (encoded) or bytes (copied) of one tensor.
struct Piece {
  uint32_t tensor = 0;  // index into the plan's
  uint32_t mat = 0;     // the expert in the source, for its importance
  uint64_t from = 0;    // bytes from the tensor's start, in the source
  uint64_t to = 0;      // and in the result
  uint64_t bytes = 0;   // in the source
  uint64_t n_rows = 0;  // 0: copied
};

// Pieces in the order of the result, so that both files are gone through from front to back. They
// depend on the plan alone: an interrupted run counts its work in them.
class PieceList {
 public:
  explicit PieceList(const RewritePlan& plan);

  const std::vector<Piece>& pieces() const noexcept { return pieces_; }
  uint64_t bytes() const noexcept { return bytes_; }      // of the source
  uint64_t out_bytes(const Piece& piece) const noexcept;  // in the result
  const OutputTensor& tensor(const Piece& piece) const noexcept {
    return plan_.tensors[piece.tensor];
  }

 private:
  void add(const Piece& piece);
  void add_copied(uint32_t index, const OutputTensor& tensor);
  void add_encoded(uint32_t index, const OutputTensor& tensor);

  const RewritePlan& plan_;
  std::vector<Piece> pieces_;
  uint64_t bytes_ = 0;
};

}  // namespace penstock::surgery
