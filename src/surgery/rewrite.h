// Carries a rewrite plan out: one pass over the source, on all threads, with bounded memory. The
// result grows as OUT.partial and appears under its name when it is complete. What is done is noted
// in OUT.journal: after a crash, a full disk or Ctrl-C the same request goes on where the last one
// was, and gives the same bytes and the same errors as one that was never interrupted.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
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
  // "checking what is there", if anything is, then "reading": bytes of the result, of the source.
  std::function<void(std::string_view what, uint64_t done, uint64_t total)> progress;
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
  uint64_t bytes = 0;            // of all files
  uint64_t read_bytes = 0;       // of the source's tensors, by this run
  uint64_t n_encoded = 0;        // weights that changed their type
  uint64_t resumed_bytes = 0;    // of the result: an earlier run's, compared with their checksums
  uint64_t resumed_encoded = 0;  // weights that an earlier run encoded
  double seconds = 0;            // of what this run did
  std::vector<EncodedTensor> encoded;  // in the order of the plan
};

// Tensors to be encoded of which the importance matrix says nothing, and an Error(Format) naming
// the first whose entry has another shape.
std::vector<std::string> without_importance(const RewritePlan& plan, const Imatrix& imatrix,
                                            const std::string& path);

// Throws Error(Io) when the disk lacks room (naming how much), reading or writing fails, another
// process writes to `out` or the source changes meanwhile; Error(Usage) when `out` exists or is the
// source; Error(Numeric) naming tensor and element of the first value that is not finite;
// Error(Cancelled). Nothing is under the final name then; OUT.partial and OUT.journal stay where
// the same request could go on with them. The bytes written do not depend on the threads, nor on
// how often the work was interrupted.
RewriteResult rewrite(const RewriteRequest& request);

}  // namespace penstock::surgery
