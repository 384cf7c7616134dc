// qwen35moe and qwen3next: gated delta net and gated attention on a plain residual, routed experts
// with a shared one, a draft block (spec/moe-architectures.md §3, §4).
#include "base/error.h"
#include "models/registry.h"
#include "models/transformer.h"

namespace penstock::models {
namespace {

Config read_config(const Params& params, bool tiled) {
  Config c = read_common(params);
  read_delta(params, &c);
  c.delta.tiled = tiled;
  c.delta_gate = ops::GateKind::Silu;
  c.gated_attention = true;
  c.shared_expert = true;
  return c;
}

Block bind_block(Binder& binder, const Parts& parts, const Config& config, int block, int slot,
                 uint32_t first_shard, experts::Geometry* geometry) {
  Block b;
  b.mixer = std::make_unique<Mixer>(binder, config,
                                    MixerNames{block_name(block, "attn_norm.weight"), "", "", ""});
  if (config.is_recurrent(block)) {
    b.delta = std::make_unique<DeltaBlock>(binder, config, block, slot);
  } else {
    b.attention = std::make_unique<AttentionBlock>(binder, config, parts.rope, block, slot, true);
  }
  b.moe_mixer = std::make_unique<Mixer>(
      binder, config, MixerNames{block_name(block, "post_attention_norm.weight"), "", "", ""});
  b.moe = std::make_unique<MoeBlock>(binder, config, block, first_shard, geometry);
  return b;
}

void bind_draft_block(Binder& binder, Binder& trunk, Parts& parts, const Config& config,
                      uint32_t first_shard) {
  const int block = parts.config.n_trunk;
  parts.draft = std::make_unique<Draft>();
  bind_draft(binder, parts, config, block, config.n_embd);
  parts.draft->block =
      bind_block(binder, parts, config, block, block, first_shard, &parts.geometry);
  const std::string norm = block_name(block, "nextn.shared_head_norm.weight");
  const bool own = binder.has(norm);
  parts.draft->head_mixer = std::make_unique<Mixer>(
      own ? binder : trunk, config, MixerNames{own ? norm : "output_norm.weight", "", "", ""});
}

std::unique_ptr<Model> load(const Sources& sources, const OpenOptions& options, bool tiled) {
  std::unique_ptr<Parts> parts = begin_parts(sources, options);
  Binder binder(*sources.trunk, parts->store);
  parts->config = read_config(Params(*sources.trunk), tiled);
  const Config& config = parts->config;
  bind_globals(binder, *parts);
  parts->head_mixer =
      std::make_unique<Mixer>(binder, config, MixerNames{"output_norm.weight", "", "", ""});
  const uint32_t first_shard = add_shards(*sources.trunk, &parts->geometry);
  for (int l = 0; l < config.n_trunk; ++l) {
    parts->blocks.push_back(
        bind_block(binder, *parts, config, l, l, first_shard, &parts->geometry));
  }
  if (const gguf::Model* file = draft_file(*parts, config.n_trunk)) {
    if (file == sources.trunk.get()) {
      bind_draft_block(binder, binder, *parts, config, first_shard);
    } else {
      Binder side(*file, parts->store);
      bind_draft_block(side, binder, *parts, read_config(Params(*file), tiled),
                       add_shards(*file, &parts->geometry));
    }
  }
  return finish(std::move(parts), binder);
}

}  // namespace

// v heads are tiled over the k heads (h mod KH), as the converter lays them out.
std::unique_ptr<Model> load_qwen35moe(const Sources& sources, const OpenOptions& options) {
  return load(sources, options, true);
}

// v heads keep their grouped order (h div (VH / KH)).
std::unique_ptr<Model> load_qwen3next(const Sources& sources, const OpenOptions& options) {
  return load(sources, options, false);
}

}  // namespace penstock::models
