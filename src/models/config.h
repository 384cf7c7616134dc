// The hyper-parameters of the architectures built from the blocks of this room.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/params.h"
#include "ops/attention.h"
#include "ops/elementwise.h"
#include "ops/recurrent.h"

namespace penstock::models {

// spec/qwen4exp.md §4
struct NgramConfig {
  int layer = 0;
  int ngram_size = 0;
  int heads_per_ngram = 0;
  int row_width = 0;
  int conv_taps = 0;
  uint64_t eos = 0;
  std::vector<uint64_t> multipliers;  // [ngram_size]
  std::vector<uint64_t> sizes;        // [heads]
  std::vector<uint64_t> offsets;      // [heads]
  int heads() const noexcept { return (ngram_size - 1) * heads_per_ngram; }
};

struct Config {
  std::string architecture;
  int n_blocks = 0;  // with the draft block
  int n_trunk = 0;
  int n_embd = 0;
  int n_vocab = 0;
  int64_t n_context = 0;
  float eps = 0.0f;

  // attention, per block where a file may give one number per block
  std::vector<int> n_head, n_head_kv;
  int head_dim = 0;
  int n_rot = 0;
  double rope_base = 0.0;
  ops::RopeScaling rope_scaling;
  bool gated_attention = false;
  std::vector<int> index_block;  // tokens per block; 0: dense. Empty: dense everywhere
  int n_index_head = 0;
  int index_dim = 0;
  int index_budget = 0;  // tokens

  // gated delta net
  std::vector<bool> recurrent;  // by block
  ops::DeltaShape delta;
  int conv_taps = 0;
  ops::GateKind delta_gate = ops::GateKind::Silu;

  std::vector<int> n_expert_used;
  bool shared_expert = false;

  // hyper-connections; one stream: a plain residual
  int n_streams = 1;
  int hc_rank = 0;

  std::optional<NgramConfig> ngram;

  int n_wide() const noexcept { return n_streams * n_embd; }
  bool is_recurrent(int block) const { return recurrent[static_cast<size_t>(block)]; }
};

// The keys common to all architectures (spec/moe-architectures.md §1.2).
Config read_common(const Params& params);
// ssm.* (spec/moe-architectures.md §3.1)
void read_delta(const Params& params, Config* config);

}  // namespace penstock::models
