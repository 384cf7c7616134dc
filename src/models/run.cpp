#include "models/run.h"

namespace penstock::models {
namespace {

ops::Angles make_angles(ops::Layout& layout, int64_t n_rows, int64_t n_rot) {
  const ops::Rows cosine = layout.rows(n_rows, n_rot / 2);
  return {cosine, layout.rows(n_rows, n_rot / 2)};
}

void place(ops::Layout& layout, const Config& config, int64_t n, Buffers::Hyper* b) {
  if (config.n_streams == 1) return;
  b->norm = layout.rows(n, config.n_wide());
  b->gate = layout.rows(n, config.n_wide());
  b->low = layout.rows(n, config.hc_rank);
  b->norm_acts = ops::Activations(layout, n, config.n_wide());
  b->low_acts = ops::Activations(layout, n, config.hc_rank);
}

void place(ops::Layout& layout, const Config& config, const Extents& extents, int64_t n,
           int64_t n_ctx, Buffers::Attention* b) {
  if (extents.n_head == 0) return;
  const int64_t q_width = extents.n_head * config.head_dim;
  const int64_t kv_width = extents.n_head_kv * config.head_dim;
  b->q_gate = layout.rows(n, config.gated_attention ? 2 * q_width : q_width);
  b->q = layout.rows(n, q_width);
  b->k = layout.rows(n, kv_width);
  b->v = layout.rows(n, kv_width);
  b->out = layout.rows(n, q_width);
  b->out_acts = ops::Activations(layout, n, q_width);
  b->partials =
      ops::attention_partials(layout, {extents.n_head, extents.n_head_kv, config.head_dim, 0.0f},
                              std::min<int64_t>(n, kMaxStepRows));
  if (extents.index_block == 0) return;
  const int64_t r = extents.index_block;
  const ops::IndexShape shape{config.n_index_head, config.index_dim, r,
                              std::max<int64_t>(1, config.index_budget / r)};
  b->index_q = layout.rows(n, int64_t{config.n_index_head} * config.index_dim);
  b->index_raw = layout.rows(n, config.index_dim);
  b->index_mean = layout.rows(n / r + 1, config.index_dim);
  b->index_angles = make_angles(layout, n / r + 1, config.n_rot);
  b->index = ops::index_scratch(layout, n_ctx / r + 1);
  b->positions = layout.take<int32_t>(n * shape.list_length());
  b->counts = layout.take<int32_t>(n);
}

void place(ops::Layout& layout, const Config& config, int64_t n, Buffers::Delta* b) {
  if (config.delta.n_v_head == 0) return;
  const int64_t inner = config.delta.n_v_head * config.delta.dim;
  b->raw = layout.rows(n, config.delta.channels());
  b->qkv = layout.rows(n, config.delta.channels());
  b->decay = layout.rows(n, config.delta.n_v_head);
  b->beta = layout.rows(n, config.delta.n_v_head);
  b->z = layout.rows(n, inner);
  b->out = layout.rows(n, inner);
  b->out_acts = ops::Activations(layout, n, inner);
}

void place(ops::Layout& layout, const Config& config, const Extents& extents, int64_t n,
           Buffers::Moe* b) {
  const int64_t pairs = n * extents.n_used;
  b->logits = layout.rows(n, extents.n_expert);
  if (extents.n_ff_shared > 0) {
    b->shared_gate = layout.rows(n, extents.n_ff_shared);
    b->shared_up = layout.rows(n, extents.n_ff_shared);
    b->shared_y = layout.rows(n, config.n_embd);
    b->shared_scale = layout.rows(n, 1);
    b->shared_acts = ops::Activations(layout, n, extents.n_ff_shared);
  }
  b->gate = layout.rows(pairs, extents.n_ff);
  b->up = layout.rows(pairs, extents.n_ff);
  b->out = layout.rows(pairs, config.n_embd);
  b->hidden_acts = ops::Activations(layout, pairs, extents.n_ff);
  b->sorted = layout.take<int32_t>(pairs);
  b->starts = layout.take<int32_t>(extents.n_expert + 1);
  b->batch_pairs = layout.take<int32_t>(pairs);
  b->gate_acts = layout.take<const void*>(pairs);
  b->up_acts = layout.take<const void*>(pairs);
  b->hidden = layout.take<const void*>(pairs);
  b->gate_outs = layout.take<float*>(pairs);
  b->up_outs = layout.take<float*>(pairs);
  b->down_outs = layout.take<float*>(pairs);
  b->jobs = layout.take<ops::Job>(2 * extents.n_expert);
  b->job_starts = layout.take<int64_t>(2 * extents.n_expert + 1);
}

void place(ops::Layout& layout, const Config& config, const Extents& extents, int64_t n,
           Buffers::Ngram* b) {
  if (!config.ngram) return;
  const int64_t heads = config.ngram->heads();
  const int64_t width = heads * config.ngram->row_width;
  b->bytes = layout.take<std::byte>(n * heads * extents.table_row_bytes);
  b->embedding = layout.rows(n, width);
  b->key = layout.rows(n, config.n_wide());
  b->query = layout.rows(n, config.n_wide());
  b->value = layout.rows(n, config.n_embd);
  b->gated = layout.rows(n, config.n_wide());
  b->norm = layout.rows(n, config.n_wide());
  b->conv = layout.rows(n, config.n_wide());
  b->acts = ops::Activations(layout, n, width);
}

void place(ops::Layout& layout, const Config& config, const Extents& extents, int64_t n,
           Buffers::Draft* b) {
  if (!extents.draft) return;
  b->hidden = layout.rows(n, config.n_wide());
  b->concat = layout.rows(n, 2 * int64_t{config.n_embd});
  b->acts = ops::Activations(layout, n, 2 * int64_t{config.n_embd});
}

}  // namespace

Buffers::Buffers(ops::Layout& layout, const Config& config, const Extents& extents, int64_t n,
                 int64_t n_ctx)
    : n_rows(n) {
  residual = layout.rows(n, config.n_wide());
  x = layout.rows(n, config.n_embd);
  y = layout.rows(n, config.n_embd);
  inject = layout.rows(n, config.n_streams);
  angles = make_angles(layout, n, config.n_rot);
  x_acts = ops::Activations(layout, n, config.n_embd);
  outs = {layout.take<float*>(ops::kMaxProducts * n), static_cast<size_t>(ops::kMaxProducts * n)};
  const int64_t n_ahead = std::min<int64_t>(n, kMaxStepRows);
  ahead.logits = layout.rows(n_ahead, extents.n_expert);
  ahead.x = layout.rows(n_ahead, config.n_embd);
  ahead.residual = layout.rows(n_ahead, config.n_embd);
  ahead.acts = ops::Activations(layout, n_ahead, config.n_embd);
  if (config.ngram) ngram.ids = layout.take<int64_t>(n * config.ngram->heads());

  // From here on the parts take turns: a mixer's rows, a block's rows, the draft's input.
  const ops::Layout start = layout;
  const auto overlap = [&](auto* part, auto... arguments) {
    ops::Layout mine = start;
    place(mine, config, arguments..., part);
    if (mine.bytes() > layout.bytes()) layout = mine;
  };
  overlap(&hyper, n);
  overlap(&attention, extents, n, n_ctx);
  overlap(&delta, n);
  overlap(&moe, extents, n);
  overlap(&ngram, extents, n);
  overlap(&draft, extents, n);
}

void Run::show(std::string_view what, int layer, int64_t position, const ops::Rows& values) const {
  if (!tap) return;
  for (int64_t r = 0; r < values.count; ++r) {
    tap(what, layer, position + r, {values[r], static_cast<size_t>(values.width)});
  }
}

void Run::show_ids(std::string_view what, int layer, int64_t position, std::span<const int32_t> ids,
                   int width) const {
  if (!tap) return;
  std::vector<float> row(static_cast<size_t>(width));
  for (size_t i = 0; i < ids.size(); i += row.size()) {
    std::copy_n(ids.begin() + static_cast<std::ptrdiff_t>(i), width, row.begin());
    tap(what, layer, position + static_cast<int64_t>(i / row.size()), row);
  }
}

}  // namespace penstock::models
