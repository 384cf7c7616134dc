// Which tensors of a model have an expert axis, from the tensors themselves: for pruning, where
// every one of them must be cut in step. Works for any architecture that follows GGUF's names, not
// only for those that run here.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "gguf/model.h"

namespace penstock::surgery {

// One block of the trunk with routed experts.
struct MoeLayer {
  int layer = 0;  // the model's block index
  uint64_t n_expert = 0;
  uint64_t n_used = 0;
  // Group-limited routing: experts are n_groups runs of neighbours, n_groups_used of which may be
  // selected from. 1: none.
  uint64_t n_groups = 1;
  uint64_t n_groups_used = 1;
  // Banks, their biases and scales, router rows and biases, the selection bias. The expert axis is
  // the last dimension of each.
  std::vector<const gguf::Tensor*> tensors;
};

// "blk.12.attn_q.weight" -> 12; -1 for tensors outside of blocks.
int block_of(std::string_view tensor_name) noexcept;

// block_count and how many of the blocks are the trunk's. Throws Error(Format) for numbers that
// cannot be.
struct BlockCounts {
  uint64_t all = 0;
  uint64_t trunk = 0;
};
BlockCounts block_counts(const gguf::Model& model);

// The trunk's MoE layers in order. Draft blocks have routers and experts of their own and are not
// among them. Throws Error(Unsupported) when the model has no routed experts or a tensor whose
// expert axis is not known here (naming it); Error(Format) for tensors of different counts.
std::vector<MoeLayer> moe_layers(const gguf::Model& model);

}  // namespace penstock::surgery
