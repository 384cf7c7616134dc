// The shape and the weights of a synthetic model, before anything is written: which tensors, of
// which types, filled how.
//
// Random weights alone route every token to nearly random experts, which no cache can serve and no
// real model does. So the hidden vector is laid out in three parts that the weights keep apart:
//   C, the first 256 elements, written by the embedding alone and equal for all tokens;
//   S, the next 512, written by the attention or delta-net blocks alone: an average over recent
//      tokens, so it changes slowly;
//   T, the rest: the token itself, and what experts add.
// A router row is a weighted sum over the parts: C gives each expert its popularity, S the reuse
// from token to token, T the novelty. docs/synth.md has the fit to published curves.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "gguf/types.h"
#include "surgery/tensor_list.h"

namespace penstock::surgery {

// In units of the router's token part; see above.
struct RouterFit {
  float popularity = 0;
  float context = 0;
  float context_tokens = 0;  // how many tokens the context part remembers
};

struct SynthShape {
  std::string arch;
  std::string name;
  int64_t n_layer = 0;
  uint64_t n_embd = 0;
  uint64_t n_vocab = 0;
  uint64_t n_context = 0;
  uint64_t n_head = 0, n_head_kv = 0, head_dim = 0, n_rot = 0;
  float rope_base = 0;
  uint64_t n_expert = 0, n_used = 0, n_ff = 0, n_ff_shared = 0;
  uint64_t interval = 0;  // every such layer is attention; 0: all are
  uint64_t gdn_k_heads = 0, gdn_v_heads = 0, gdn_dim = 0;
  bool ssm_ba = false;     // qwen3next: one interleaved tensor instead of alpha and beta
  bool silu_gate = false;  // of the delta net
  bool hyper = false;      // hyper-connections, indexer and n-gram block (qwen4exp)
  std::string pre;
  RouterFit fit;
  // Types by default: of the dense matrices, of the experts of a layer.
  gguf::TypeId dense{}, embedding{}, head{}, table{};
  std::function<gguf::TypeId(int64_t layer, const char* kind)> expert_type;  // kind: "gate", "down"
  std::function<gguf::TypeId(int64_t layer, const char* part)> dense_type;   // null: `dense`
};

std::vector<std::string_view> synth_presets();
SynthShape synth_preset(const std::string& name);  // Error(Usage) listing them

// Part of every row of a band of rows: columns filled with one standard deviation.
struct Piece {
  uint64_t begin = 0, end = 0;
  float deviation = 0;
  // 0: own random blocks for each row. Otherwise rows r and r + period get the same blocks, in
  // every tensor with this key.
  uint64_t key = 0;
  uint64_t period = 1;
};
struct Band {
  uint64_t begin = 0, end = 0;  // rows of each 2-D slice
  std::vector<Piece> pieces;    // cover the row
};

struct SynthTensor {
  std::string name;
  gguf::TypeId type{};
  std::vector<uint64_t> dims;
  std::vector<Band> bands;
  // Instead of bands: the row's values, encoded to the type.
  std::function<void(uint64_t row, std::span<float> out)> values;
};

struct SynthPlan {
  SynthShape shape;
  std::vector<SynthTensor> tensors;
  std::vector<uint64_t> ple_multipliers, ple_sizes, ple_offsets;
};

struct SynthOptions {
  std::string preset;
  int64_t layers = 0;  // 0: the preset's
  uint64_t experts = 0;
  gguf::TypeId expert_type{}, dense_type{};
  bool has_expert_type = false, has_dense_type = false;
  double scale = 1.0;  // shrinks widths and vocabulary, for tests
  uint64_t ple_rows = 2000000;
  uint64_t seed = 1;
  std::vector<ListedTensor> like;
  const RouterFit* fit = nullptr;  // instead of the preset's
};

SynthPlan make_synth_plan(const SynthOptions& options);

// The type itself, or what the stock quantiser takes where rows are no whole number of its blocks.
gguf::TypeId fitting_type(gguf::TypeId type, uint64_t row) noexcept;

}  // namespace penstock::surgery
