// Carries a rewrite plan out: one pass over the source, on all threads, with bounded memory. The
// result appears under its name when it is complete.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "surgery/imatrix.h"
#include "surgery/rewrite_plan.h"
#include "surgery/row_encoder.h"

namespace penstock {
class ThreadPool;
}

namespace penstock::surgery {

struct RewriteRequest {
  const RewritePlan* plan = nullptr;
  std::string out;
  uint64_t max_shard_bytes = 0;  // 0: one file
  bool replace = false;          // files of that name may exist
  // Of the source's experts, whatever the plan keeps of them. Null: none.
  const Imatrix* imatrix = nullptr;
  bool positive_scales = false;  // Q2_0 gets no negative ones
  ThreadPool* pool = nullptr;
  std::function<void(uint64_t done, uint64_t total)> progress;  // bytes of the source
  const std::atomic<bool>* cancel = nullptr;
};

// A tensor that was encoded.
struct EncodedTensor {
  const OutputTensor* tensor = nullptr;
  bool weighted = false;  // importance was known of it
  ErrorSums errors;       // worst_at counts the elements of the new tensor
};

struct RewriteResult {
  std::vector<std::string> files;
  uint64_t bytes = 0;       // of all files
  uint64_t read_bytes = 0;  // of the source's tensors
  uint64_t n_encoded = 0;   // weights that changed their type
  double seconds = 0;
  std::vector<EncodedTensor> encoded;  // in the order of the plan
};

// Tensors to be encoded of which the importance matrix says nothing, and an Error(Format) naming
// the first whose entry has another shape.
std::vector<std::string> without_importance(const RewritePlan& plan, const Imatrix& imatrix,
                                            const std::string& path);

// Throws Error(Io) when the disk lacks room (naming how much), reading or writing fails or the
// source changes meanwhile; Error(Usage) when `out` exists or is the source; Error(Numeric) naming
// tensor and element of the first value that is not finite; Error(Cancelled). Nothing is left under
// the final name then. The bytes written do not depend on the threads.
RewriteResult rewrite(const RewriteRequest& request);

}  // namespace penstock::surgery
