// What the dense weights are and what was done with them. Every number is counted or measured.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gguf/types.h"

namespace penstock::models {

// What one --dense-convert did.
struct ConvertedTensors {
  std::string pattern;
  gguf::TypeId type{};
  uint64_t tensors = 0;
  uint64_t bytes_from = 0;  // in the file
  uint64_t bytes_to = 0;    // as held
  uint64_t unchanged = 0;   // tensors that were of this type already
};

struct LockedRegion {
  std::string what;
  uint64_t requested = 0;  // bytes
  uint64_t locked = 0;     // all of them or none
  int error = 0;           // errno where they were refused
};

struct DenseReport {
  uint64_t tensors = 0;      // dense tensors in use
  uint64_t bytes_file = 0;   // of these, as they stand in the file
  uint64_t bytes_live = 0;   // of these, as they are held
  uint64_t bytes_pages = 0;  // the whole pages that hold them

  uint64_t tensors_skipped = 0;  // of the model's file, that nothing reads
  uint64_t bytes_skipped = 0;

  std::vector<ConvertedTensors> converted;  // one for each --dense-convert

  bool lock_tried = false;
  std::vector<LockedRegion> regions;
  uint64_t vm_locked = 0;   // VmLck after locking, of the whole process
  uint64_t lock_limit = 0;  // RLIMIT_MEMLOCK then; UINT64_MAX: none

  uint64_t tensors_converted() const noexcept;
  uint64_t bytes_converted() const noexcept;  // in the file
  uint64_t bytes_requested() const noexcept;
  uint64_t bytes_locked() const noexcept;  // sum of the regions that were locked
  int lock_error() const noexcept;         // the first errno; 0: none
};

// One line for people: what is missing, why, and what to do; empty where all asked for is locked.
std::string lock_shortfall(const DenseReport& report);

}  // namespace penstock::models
