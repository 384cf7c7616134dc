// Grouped-query attention with per-head norms and rotary embedding; optionally gated (a gate row
// per query row) and sparse by an indexer (spec/qwen4exp.md §3, spec/moe-architectures.md §2.1).
#pragma once

#include "models/binder.h"
#include "models/run.h"

namespace penstock::models {

class AttentionBlock {
 public:
  // `slot` is the block's place in the state. With dense, an indexer in the file is left alone.
  AttentionBlock(Binder& binder, const Config& config, const ops::Rope& rope, int block, int slot,
                 bool dense);
  AttentionBlock(const AttentionBlock&) = delete;
  AttentionBlock& operator=(const AttentionBlock&) = delete;

  LayerShape state_shape() const noexcept;
  void extend(Extents* extents) const noexcept;
  // run.buffers.x -> run.buffers.y
  void forward(Run& run) const;
  // Keeps the indexer's part of the first n held rows; keys and values are in place already.
  void commit(State& state, int n) const;

 private:
  bool sparse() const noexcept { return index_.block > 0; }
  void update_index(Run& run, const ops::Rows& raw) const;

  int block_, slot_;
  ops::AttentionShape shape_;
  bool gated_;
  float eps_;
  const ops::Rope& rope_;
  ops::Matrix q_, k_, v_, out_;
  const float* q_bias_ = nullptr;
  const float* k_bias_ = nullptr;
  const float* v_bias_ = nullptr;
  const float* out_bias_ = nullptr;
  const float* q_norm_ = nullptr;
  const float* k_norm_ = nullptr;
  ops::IndexShape index_;
  ops::Matrix index_q_, index_k_;
  const float* index_q_norm_ = nullptr;
  const float* index_k_norm_ = nullptr;
};

}  // namespace penstock::models
