// Writes a synthetic model: a preset's shape, random weights, a router that reuses experts as
// published curves say. For benchmarks and tests where the real weights are not at hand.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "surgery/synth_plan.h"

namespace penstock {
class ThreadPool;
}

namespace penstock::surgery {

struct SynthResult {
  std::vector<std::string> files;
  uint64_t bytes = 0;
  uint64_t n_tensors = 0;
  uint64_t n_parameters = 0;
  double seconds = 0;
};

// The bytes written depend on the options alone, not on threads. `max_shard_bytes` 0: one file.
// `progress` is called from the calling thread.
SynthResult write_synthetic(const SynthOptions& options, const std::string& path,
                            uint64_t max_shard_bytes, ThreadPool& pool,
                            const std::function<void(uint64_t done, uint64_t total)>& progress);

}  // namespace penstock::surgery
