// What every operation needs: the threads, their private scratch, and the precision of products.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/thread_pool.h"
#include "ops/rows.h"
#include "quant/matmul.h"

namespace penstock::ops {

// The largest things that one thread handles at a time.
struct WorkspaceLimits {
  int64_t n_in = 0;          // longest weight row
  int64_t head_dim = 0;      // of attention
  int64_t heads_per_kv = 1;  // query heads that share a kv head
  int64_t delta_key_dim = 0;
};

inline constexpr int64_t kTokenTile = 128;       // tokens of one matmul call
inline constexpr int64_t kQueryTile = 64;        // attention: queries of one task, about
inline constexpr int64_t kAttentionBlock = 256;  // positions whose softmax is formed together
inline constexpr int64_t kAttentionTile = 32;    // positions decoded together
inline constexpr int64_t kDeltaColumns = 32;     // state columns of one task

// Private scratch of each thread; no operation allocates.
class Workspace {
 public:
  struct Thread {
    std::byte* matmul = nullptr;
    float** outs = nullptr;           // [kTokenTile]
    float* keys = nullptr;            // [kAttentionTile][head_dim]
    float* values = nullptr;          // [kAttentionTile][head_dim]
    const float** queries = nullptr;  // [max_queries]
    float* scores = nullptr;          // [max_queries][kAttentionBlock]
    float* partial = nullptr;         // [max_queries][head_dim]
    float* running = nullptr;         // [max_queries][head_dim]
    float* sums = nullptr;            // [4][max_queries]: maximum and sum, running and of a block
    float* delta = nullptr;           // [kDeltaColumns][delta_key_dim]
  };

  Workspace() = default;
  Workspace(const WorkspaceLimits& limits, int n_threads);
  static uint64_t bytes(const WorkspaceLimits& limits, int n_threads) noexcept;

  const Thread& thread(int index) const noexcept { return threads_[static_cast<size_t>(index)]; }
  const WorkspaceLimits& limits() const noexcept { return limits_; }
  static int64_t max_queries(const WorkspaceLimits& limits) noexcept;

 private:
  WorkspaceLimits limits_;
  Mapping memory_;
  std::vector<Thread> threads_;
};

struct Context {
  ThreadPool& pool;
  const Workspace& workspace;
  quant::Precision precision;
};

// Splits n items into ranges of at least about 8192 elements of work and runs them; small work
// stays on the calling thread. body(begin, end, thread).
template <typename Body>
void for_ranges(ThreadPool& pool, int64_t n, int64_t elements_per_item, Body body) {
  constexpr int64_t kGrain = 8192;
  const int64_t step = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, elements_per_item));
  const int64_t n_tasks = (n + step - 1) / step;
  if (n_tasks <= 1) {
    if (n > 0) body(int64_t{0}, n, 0);
    return;
  }
  pool.parallel_for(n_tasks, [&](int64_t task, int thread) {
    body(task * step, std::min(n, (task + 1) * step), thread);
  });
}

}  // namespace penstock::ops
