// The gated delta net (spec/qwen4exp.md §2, dialects in spec/moe-architectures.md §1.6).
#pragma once

#include "models/binder.h"
#include "models/run.h"

namespace penstock::models {

class DeltaBlock {
 public:
  DeltaBlock(Binder& binder, const Config& config, int block, int slot);
  DeltaBlock(const DeltaBlock&) = delete;
  DeltaBlock& operator=(const DeltaBlock&) = delete;

  LayerShape state_shape() const noexcept;
  void extend(Extents* extents) const noexcept;
  // run.buffers.x -> run.buffers.y
  void forward(Run& run) const;
  // Replays the first n held rows: the recurrence from the last kept state, the window.
  void commit(ops::Context& context, State& state, int n) const;

 private:
  void bind_fused_input(Binder& binder, int64_t n_embd);
  void bind_fused_gates(Binder& binder, int64_t n_embd);
  ops::DeltaInputs held(const State::Layer& layer, int64_t n) const noexcept;

  int block_, slot_;
  ops::DeltaShape shape_;
  ops::GateKind gate_kind_;
  float eps_;
  ops::Matrix qkv_, gate_, alpha_, beta_, out_;
  ops::Convolution conv_;
  const float* dt_bias_ = nullptr;
  const float* a_ = nullptr;
  const float* norm_ = nullptr;
};

}  // namespace penstock::models
