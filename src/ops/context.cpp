#include "ops/context.h"

namespace penstock::ops {
namespace {

Workspace::Thread place(Layout& layout, const WorkspaceLimits& limits) noexcept {
  const int64_t queries = Workspace::max_queries(limits);
  Workspace::Thread t;
  t.matmul = layout.take<std::byte>(static_cast<int64_t>(quant::matmul_scratch_bytes(limits.n_in)));
  t.outs = layout.take<float*>(kTokenTile);
  t.keys = layout.take<float>(kAttentionTile * limits.head_dim);
  t.values = layout.take<float>(kAttentionTile * limits.head_dim);
  t.queries = layout.take<const float*>(queries);
  t.scores = layout.take<float>(queries * kAttentionBlock);
  t.partial = layout.take<float>(queries * limits.head_dim);
  t.running = layout.take<float>(queries * limits.head_dim);
  t.sums = layout.take<float>(4 * queries);
  t.delta = layout.take<float>(kDeltaColumns * limits.delta_key_dim);
  return t;
}

uint64_t bytes_per_thread(const WorkspaceLimits& limits) noexcept {
  Layout layout;
  place(layout, limits);
  return round_up(layout.bytes(), kPageSize);  // threads share no page
}

}  // namespace

int64_t Workspace::max_queries(const WorkspaceLimits& limits) noexcept {
  return std::max(kQueryTile, limits.heads_per_kv);
}

uint64_t Workspace::bytes(const WorkspaceLimits& limits, int n_threads) noexcept {
  return bytes_per_thread(limits) * static_cast<uint64_t>(n_threads);
}

Workspace::Workspace(const WorkspaceLimits& limits, int n_threads)
    : limits_(limits), memory_(bytes(limits, n_threads), Pages::Small) {
  for (int i = 0; i < n_threads; ++i) {
    Layout layout(memory_.data() + bytes_per_thread(limits) * static_cast<uint64_t>(i));
    threads_.push_back(place(layout, limits));
  }
}

}  // namespace penstock::ops
