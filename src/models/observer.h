// Whoever wants to see what the weights are multiplied with: calibration. All calls come from the
// thread that runs the model, in the order in which things happen; the rows are overwritten
// afterwards.
#pragma once

#include <cstdint>
#include <span>

#include "base/thread_pool.h"
#include "experts/geometry.h"
#include "ops/matmul.h"

namespace penstock::models {

// One MoE block, after its experts were computed. Pair p = row * n_used + rank.
struct ExpertsSeen {
  int block = 0;  // the model's block index
  const experts::LayerGeometry* bank = nullptr;
  int n_used = 0;
  ops::Rows logits;                // [rows][n_expert], before any softmax
  ops::Rows x;                     // [rows][n_embd], the input of gate and up
  std::span<const int32_t> ids;    // by pair: the expert
  std::span<const float> weights;  // by pair: the weight applied
  ops::Rows hidden;                // [pairs][n_ff], silu(gate x) * (up x): the input of down
  ops::Rows out;                   // [pairs][n_embd], before weighting
};

class ComputeObserver {
 public:
  virtual ~ComputeObserver() = default;
  // A dense matrix of the trunk is multiplied with these rows. In Model::forward_together() they
  // are either of one sequence or of all of them, one after the other.
  virtual void product(const ops::Matrix& matrix, const ops::Rows& input) = 0;
  virtual void experts(const ExpertsSeen& seen, ThreadPool& pool) = 0;
};

}  // namespace penstock::models
