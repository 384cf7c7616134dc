#include "models/config.h"

#include "base/error.h"

namespace penstock::models {

Config read_common(const Params& params) {
  Config c;
  c.architecture = params.file().architecture();
  c.n_blocks = params.count("block_count", 1, kMostLayers);
  c.n_trunk = c.n_blocks - params.count_or("nextn_predict_layers", 0, 0, 1);
  if (c.n_trunk < 1) params.refuse("block_count", "no block but the draft block");
  c.n_embd = params.count("embedding_length", 8, kMostWidth);
  c.n_context = params.count_or("context_length", 0, 0, int64_t{1} << 30);
  c.eps = static_cast<float>(params.real("attention.layer_norm_rms_epsilon", 0.0, 1.0));

  // Blocks without attention may carry a 0 here; bound where attention is put together.
  c.n_head = params.per_layer("attention.head_count", c.n_blocks, 0, 4096);
  c.n_head_kv = params.has("attention.head_count_kv")
                    ? params.per_layer("attention.head_count_kv", c.n_blocks, 0, 4096)
                    : c.n_head;
  const int heads = *std::max_element(c.n_head.begin(), c.n_head.end());
  if (heads < 1) params.refuse("attention.head_count", "no attention heads");
  c.head_dim = params.count_or("attention.key_length", c.n_embd / heads, 8, 4096);
  if (params.count_or("attention.value_length", c.head_dim, 1, 4096) != c.head_dim) {
    params.refuse("attention.value_length",
                  fmt::format("keys of {} and values of another length", c.head_dim));
  }
  if (c.head_dim % 8 != 0) {
    params.refuse("attention.key_length", fmt::format("{} is not a multiple of 8", c.head_dim));
  }
  c.n_rot = params.count_or("rope.dimension_count", c.head_dim, 2, c.head_dim);
  if (c.n_rot % 2 != 0) params.refuse("rope.dimension_count", "an odd number of dimensions");
  c.rope_base = params.real_or("rope.freq_base", 10000.0, 1.0, 1e12);
  c.rope_scaling = params.rope_scaling();

  c.n_expert_used = params.per_layer("expert_used_count", c.n_blocks, 1, 1024);
  c.recurrent.assign(static_cast<size_t>(c.n_blocks), false);
  return c;
}

void read_delta(const Params& params, Config* config) {
  config->recurrent = params.recurrent_layers(config->n_blocks, config->n_trunk);
  config->delta.n_k_head = params.count("ssm.group_count", 1, 4096);
  config->delta.n_v_head = params.count("ssm.time_step_rank", 1, 4096);
  config->delta.dim = params.count("ssm.state_size", 8, 4096);
  config->conv_taps = params.count("ssm.conv_kernel", 2, ops::kMaxTaps);
  if (config->delta.dim % 8 != 0) {
    params.refuse("ssm.state_size", fmt::format("{} is not a multiple of 8", config->delta.dim));
  }
  if (config->delta.n_v_head % config->delta.n_k_head != 0) {
    params.refuse("ssm.time_step_rank",
                  fmt::format("{} value heads do not divide among {} key heads",
                              config->delta.n_v_head, config->delta.n_k_head));
  }
  const int64_t inner = config->delta.n_v_head * config->delta.dim;
  if (inner > kMostWidth || config->delta.channels() > 4 * int64_t{kMostWidth}) {
    params.refuse("ssm.time_step_rank", "a recurrent state beyond any model");
  }
  if (params.count("ssm.inner_size", 1, kMostWidth) != inner) {
    params.refuse("ssm.inner_size", fmt::format("not {} value heads of {}", config->delta.n_v_head,
                                                config->delta.dim));
  }
}

}  // namespace penstock::models
