// qwen3moe: grouped-query attention and routed experts on a plain residual
// (spec/moe-architectures.md §2).
#include "base/error.h"
#include "models/registry.h"
#include "models/transformer.h"

namespace penstock::models {

std::unique_ptr<Model> load_qwen3moe(const Sources& sources, const OpenOptions& options) {
  std::unique_ptr<Parts> parts = begin_parts(sources, options);
  const Params params(*sources.trunk);
  Binder binder(*sources.trunk, parts->store);
  parts->config = read_common(params);
  Config& config = parts->config;
  if (config.n_rot != config.head_dim) {
    params.refuse("rope.dimension_count", fmt::format("{} of {} dimensions; this architecture "
                                                      "rotates all",
                                                      config.n_rot, config.head_dim));
  }
  bind_globals(binder, *parts);
  parts->head_mixer =
      std::make_unique<Mixer>(binder, config, MixerNames{"output_norm.weight", "", "", ""});
  const uint32_t first_shard = add_shards(*sources.trunk, &parts->geometry);
  for (int l = 0; l < config.n_trunk; ++l) {
    Block block;
    block.mixer = std::make_unique<Mixer>(
        binder, config, MixerNames{block_name(l, "attn_norm.weight"), "", "", ""});
    block.attention = std::make_unique<AttentionBlock>(binder, config, parts->rope, l, l, true);
    block.moe_mixer = std::make_unique<Mixer>(
        binder, config, MixerNames{block_name(l, "ffn_norm.weight"), "", "", ""});
    block.moe = std::make_unique<MoeBlock>(binder, config, l, first_shard, &parts->geometry);
    parts->blocks.push_back(std::move(block));
  }
  return finish(std::move(parts), binder);
}

}  // namespace penstock::models
