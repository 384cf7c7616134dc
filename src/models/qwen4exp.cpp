// qwen4exp: hyper-connections, gated delta net, block-sparse attention with an indexer, an n-gram
// embedding, mixture of experts, a draft block (spec/qwen4exp.md).
#include "base/error.h"
#include "models/registry.h"
#include "models/transformer.h"

namespace penstock::models {
namespace {

std::optional<NgramConfig> read_ngram(const Params& params, const Config& config) {
  if (!params.has("ple.layers")) return std::nullopt;
  NgramConfig n;
  n.layer =
      static_cast<int>(std::min<uint64_t>(params.u64_array("ple.layers", 1).front(), kMostLayers));
  if (n.layer >= config.n_trunk || !config.is_recurrent(n.layer)) {
    params.refuse("ple.layers", fmt::format("block {} is not a recurrent trunk block", n.layer));
  }
  n.ngram_size = params.count("ple.ngram_size", 2, 8);
  n.heads_per_ngram = params.count("ple.heads_per_ngram", 1, 1024);
  n.conv_taps = params.count("ple.conv_kernel", 2, ops::kMaxTaps);
  n.row_width = params.count("embedding_length_per_layer_input", 1, kMostWidth);
  n.eos = static_cast<uint64_t>(params.count("ple.eos_token_id", 0, INT32_MAX));
  if (int64_t{n.heads()} * n.row_width > kMostWidth) {
    params.refuse("embedding_length_per_layer_input", "an embedding beyond any model");
  }
  n.multipliers = params.u64_array("ple.layer_multipliers", static_cast<size_t>(n.ngram_size));
  n.sizes = params.u64_array("ple.head_vocab_sizes", static_cast<size_t>(n.heads()));
  n.offsets = params.u64_array("ple.head_offsets", static_cast<size_t>(n.heads()));
  constexpr uint64_t kMostRows = uint64_t{1} << 40;
  for (size_t h = 0; h < n.sizes.size(); ++h) {
    if (n.sizes[h] < 1 || n.sizes[h] > kMostRows || n.offsets[h] > kMostRows) {
      params.refuse("ple.head_vocab_sizes",
                    fmt::format("head {} has {} rows from {} on", h, n.sizes[h], n.offsets[h]));
    }
  }
  return n;
}

Config read_config(const Params& params) {
  Config c = read_common(params);
  read_delta(params, &c);
  c.delta.tiled = true;
  c.delta_gate = ops::GateKind::Sigmoid;
  c.gated_attention = true;
  c.shared_expert = true;
  c.n_streams = params.count("hyper_connection.count", 2, 64);
  c.hc_rank = params.count("hyper_connection.low_rank", 1, kMostWidth);
  if (c.n_wide() > kMostWidth)
    params.refuse("hyper_connection.count", "a residual beyond any model");
  if (const double scale = params.real_or("expert_weights_scale", 1.0, -1e30, 1e30);
      scale != 0.0 && scale != 1.0) {
    params.refuse("expert_weights_scale", fmt::format("{} (this architecture has none)", scale));
  }
  if (params.has("attention.compress_ratios")) {
    c.index_block = params.per_layer("attention.compress_ratios", c.n_blocks, 0, ops::kMaxBlock);
    int sparse = 0;  // scratch is laid out for one block size
    for (const int ratio : c.index_block) {
      if (ratio == 1 || (ratio > 0 && sparse > 0 && ratio != sparse)) {
        params.refuse("attention.compress_ratios", fmt::format("a ratio of {}", ratio));
      }
      if (ratio > 0) sparse = ratio;
    }
    if (sparse > 0) {
      c.n_index_head = params.count("attention.indexer.head_count", 1, 64);
      c.index_dim = params.count("attention.indexer.key_length", c.n_rot, 4096);
      c.index_budget = params.count("attention.indexer.top_k", sparse, 1 << 24);
      if (c.index_dim % 8 != 0) {
        params.refuse("attention.indexer.key_length", "not a multiple of 8");
      }
    }
  }
  c.ngram = read_ngram(params, c);
  return c;
}

Block bind_block(Binder& binder, const Parts& parts, const Config& config, int block, int slot,
                 uint32_t first_shard, experts::Geometry* geometry) {
  Block b;
  b.mixer =
      std::make_unique<Mixer>(binder, config, hyper_names(block_name(block, "hc_attn_"), true));
  if (config.is_recurrent(block)) {
    b.delta = std::make_unique<DeltaBlock>(binder, config, block, slot);
  } else {
    const bool draft = block >= config.n_trunk;  // attends densely
    b.attention = std::make_unique<AttentionBlock>(binder, config, parts.rope, block, slot, draft);
  }
  b.moe_mixer =
      std::make_unique<Mixer>(binder, config, hyper_names(block_name(block, "hc_ffn_"), true));
  b.moe = std::make_unique<MoeBlock>(binder, config, block, first_shard, geometry);
  return b;
}

void bind_draft_block(Binder& binder, Parts& parts, const Config& config, int block,
                      uint32_t first_shard) {
  parts.draft = std::make_unique<Draft>();
  bind_draft(binder, parts, config, block, config.n_wide());
  parts.draft->block =
      bind_block(binder, parts, config, block, parts.config.n_trunk, first_shard, &parts.geometry);
  // The head mixer's names have changed over time (spec/qwen4exp.md §6).
  for (const std::string& prefix : {block_name(block, "nextn.hc_head_"),
                                    block_name(block, "nextn.hc_"), std::string("output_hc_")}) {
    if (!binder.has(prefix + "norm.weight")) continue;
    parts.draft->head_mixer = std::make_unique<Mixer>(binder, config, hyper_names(prefix, false));
    return;
  }
  binder.take(block_name(block, "nextn.hc_head_norm.weight"));  // says that it is missing
}

}  // namespace

std::unique_ptr<Model> load_qwen4exp(const Sources& sources, const OpenOptions& options) {
  std::unique_ptr<Parts> parts = begin_parts(sources, options);
  const Params params(*sources.trunk);
  Binder binder(*sources.trunk, parts->store);
  parts->config = read_config(params);
  parts->hidden_before_head = true;
  bind_globals(binder, *parts);
  const Config& config = parts->config;
  parts->head_mixer = std::make_unique<Mixer>(binder, config, hyper_names("output_hc_", false));
  const uint32_t first_shard = add_shards(*sources.trunk, &parts->geometry);
  for (int l = 0; l < config.n_trunk; ++l) {
    parts->blocks.push_back(
        bind_block(binder, *parts, config, l, l, first_shard, &parts->geometry));
  }
  if (config.ngram) {
    Block& block = parts->blocks[static_cast<size_t>(config.ngram->layer)];
    block.ngram = std::make_unique<NgramBlock>(binder, config);
    if (sources.table != nullptr) {
      Binder table(*sources.table, parts->store);
      parts->table = block.ngram->bind_table(table);
    } else {
      parts->table = block.ngram->bind_table(binder);
    }
  }
  if (const gguf::Model* file = draft_file(*parts, config.n_trunk)) {
    if (file == sources.trunk.get()) {
      bind_draft_block(binder, *parts, config, config.n_trunk, first_shard);
    } else {
      Binder side(*file, parts->store);
      bind_draft_block(side, *parts, read_config(Params(*file)), config.n_trunk,
                       add_shards(*file, &parts->geometry));
    }
  }
  return finish(std::move(parts), binder);
}

}  // namespace penstock::models
