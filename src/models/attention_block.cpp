#include "models/attention_block.h"

#include <cmath>

#include "base/error.h"

namespace penstock::models {

AttentionBlock::AttentionBlock(Binder& binder, const Config& config, const ops::Rope& rope,
                               int block, int slot, bool dense)
    : block_(block), slot_(slot), gated_(config.gated_attention), eps_(config.eps), rope_(rope) {
  const auto at = static_cast<size_t>(block);
  shape_.n_head = config.n_head[at];
  shape_.n_head_kv = config.n_head_kv[at];
  shape_.head_dim = config.head_dim;
  shape_.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config.head_dim)));
  if (shape_.n_head < 1 || shape_.n_head_kv < 1 || shape_.n_head % shape_.n_head_kv != 0) {
    fail(ErrorKind::Format, "{}: block {}: {} attention heads do not divide among {} kv heads",
         binder.file().path(), block, shape_.n_head, shape_.n_head_kv);
  }
  const int64_t q_width = shape_.n_head * shape_.head_dim;
  const int64_t kv_width = shape_.n_head_kv * shape_.head_dim;
  const int64_t q_rows = gated_ ? 2 * q_width : q_width;
  if (q_rows > 4 * int64_t{kMostWidth}) {
    fail(ErrorKind::Format, "{}: block {}: {} attention heads of {} are beyond any model",
         binder.file().path(), block, shape_.n_head, shape_.head_dim);
  }
  const auto name = [&](const char* suffix) { return block_name(block, suffix); };
  const int64_t n_embd = config.n_embd;
  if (!gated_ && binder.has(name("attn_qkv.weight"))) {  // rows q, k, v in one tensor
    const auto rows = [](int64_t start, int64_t n) {
      std::vector<int64_t> list(static_cast<size_t>(n));
      for (int64_t i = 0; i < n; ++i) list[static_cast<size_t>(i)] = start + i;
      return list;
    };
    const int64_t all = q_rows + 2 * kv_width;
    const std::string fused = name("attn_qkv.weight");
    binder.gathered(&q_, fused, n_embd, q_rows, rows(0, q_rows), all);
    binder.gathered(&k_, fused, n_embd, kv_width, rows(q_rows, kv_width), all);
    binder.gathered(&v_, fused, n_embd, kv_width, rows(q_rows + kv_width, kv_width), all);
  } else {
    binder.matrix(&q_, name("attn_q.weight"), n_embd, q_rows);
    binder.matrix(&k_, name("attn_k.weight"), n_embd, kv_width);
    binder.matrix(&v_, name("attn_v.weight"), n_embd, kv_width);
  }
  binder.matrix(&out_, name("attn_output.weight"), q_width, n_embd);
  binder.floats_if_present(&q_bias_, name("attn_q.bias"), q_rows);
  binder.floats_if_present(&k_bias_, name("attn_k.bias"), kv_width);
  binder.floats_if_present(&v_bias_, name("attn_v.bias"), kv_width);
  binder.floats_if_present(&out_bias_, name("attn_output.bias"), n_embd);
  binder.floats(&q_norm_, name("attn_q_norm.weight"), shape_.head_dim);
  binder.floats(&k_norm_, name("attn_k_norm.weight"), shape_.head_dim);

  // A ratio of 0 or a missing indexer: dense (spec/qwen4exp.md §3.2).
  const int ratio = config.index_block.empty() ? 0 : config.index_block[at];
  if (dense || ratio == 0 || !binder.has(name("indexer.k_proj.weight"))) return;
  index_ = {config.n_index_head, config.index_dim, ratio, std::max(1, config.index_budget / ratio)};
  binder.matrix(&index_q_, name("indexer.q_proj.weight"), n_embd, index_.n_head * index_.dim);
  binder.matrix(&index_k_, name("indexer.k_proj.weight"), n_embd, index_.dim);
  binder.floats(&index_q_norm_, name("indexer.q_norm.weight"), index_.dim);
  binder.floats(&index_k_norm_, name("indexer.k_norm.weight"), index_.dim);
}

LayerShape AttentionBlock::state_shape() const noexcept {
  LayerShape shape;
  shape.kv_width = static_cast<int>(shape_.n_head_kv * shape_.head_dim);
  shape.indexer_width = static_cast<int>(index_.dim);
  shape.indexer_block = static_cast<int>(index_.block);
  return shape;
}

void AttentionBlock::extend(Extents* extents) const noexcept {
  extents->n_head = std::max(extents->n_head, shape_.n_head);
  extents->n_head_kv = std::max(extents->n_head_kv, shape_.n_head_kv);
  extents->heads_per_kv = std::max(extents->heads_per_kv, shape_.n_head / shape_.n_head_kv);
  extents->n_in = std::max({extents->n_in, q_.n_in, out_.n_in});
  extents->index_block = std::max(extents->index_block, index_.block);
}

// Keys of the blocks that these rows complete: mean of the raw keys, norm, rotation to the position
// of the block's first token.
void AttentionBlock::update_index(Run& run, const ops::Rows& raw) const {
  Buffers::Attention& b = run.buffers.attention;
  const State::Layer& state = run.state.layer(slot_);
  const int64_t first_block = run.first / index_.block;
  const int64_t n_blocks = (run.first + run.rows) / index_.block - first_block;
  if (n_blocks > 0) {
    const ops::Rows mean = b.index_mean.first(n_blocks);
    ops::mean_blocks(run.ops, state.indexer_raw, raw, run.first, index_.block, mean);
    const ops::Angles angles{b.index_angles.cosine.first(n_blocks),
                             b.index_angles.sine.first(n_blocks)};
    rope_.angles(run.ops, first_block * index_.block, index_.block, angles.cosine, angles.sine);
    const ops::Rows keys{state.indexer + first_block * index_.dim, index_.dim, n_blocks,
                         index_.dim};
    ops::norm_rotate(run.ops, {index_k_norm_, index_.dim, index_.dim, eps_}, &angles,
                     {0, index_.dim, 1, index_.dim}, mean, keys);
  }
  if (run.keep) ops::push_history(state.indexer_raw, index_.block - 1, raw);
}

void AttentionBlock::forward(Run& run) const {
  Buffers::Attention& b = run.buffers.attention;
  const State::Layer& state = run.state.layer(slot_);
  const int64_t n = run.rows;
  const int64_t dim = shape_.head_dim;
  const ops::Rows y = run.buffers.y.first(n);
  const ops::Rows q_gate = b.q_gate.first(n).columns(0, q_.n_out);
  const ops::Rows q = b.q.first(n).columns(0, shape_.n_head * dim);
  const ops::Rows k = b.k.first(n).columns(0, k_.n_out);
  const ops::Rows v = b.v.first(n).columns(0, v_.n_out);
  const ops::Rows out = b.out.first(n).columns(0, shape_.n_head * dim);
  const ops::Angles angles{run.buffers.angles.cosine.first(n), run.buffers.angles.sine.first(n)};
  ops::Visible visible;

  if (!sparse()) {
    run.products(run.buffers.x_acts, {{&q_, q_gate}, {&k_, k}, {&v_, v}});
  } else {
    const ops::Rows raw =
        run.keep ? b.index_raw.first(n) : ops::Rows{state.indexer_held, index_.dim, n, index_.dim};
    const ops::Rows index_q = b.index_q.first(n);
    if ((run.first + n) / index_.block <= index_.budget) {
      run.products(run.buffers.x_acts, {{&q_, q_gate}, {&k_, k}, {&v_, v}, {&index_k_, raw}});
      update_index(run, raw);
    } else {
      run.products(run.buffers.x_acts,
                   {{&q_, q_gate}, {&k_, k}, {&v_, v}, {&index_k_, raw}, {&index_q_, index_q}});
      update_index(run, raw);
      ops::norm_rotate(run.ops, {index_q_norm_, index_.dim, index_.dim, eps_}, &angles,
                       {0, index_.dim, index_.n_head, index_.dim}, index_q, index_q);
      ops::select_blocks(run.ops, index_, state.indexer, run.first, index_q, b.index, b.positions,
                         b.counts);
      visible = {b.positions, index_.list_length(), b.counts};
    }
  }
  if (q_bias_ != nullptr) ops::add_bias(run.ops, q_bias_, q_gate);
  if (k_bias_ != nullptr) ops::add_bias(run.ops, k_bias_, k);
  if (v_bias_ != nullptr) ops::add_bias(run.ops, v_bias_, v);

  // Per head dim query rows, then (gated) dim gate rows.
  const int64_t stride = gated_ ? 2 * dim : dim;
  ops::norm_rotate(run.ops, {q_norm_, dim, dim, eps_}, &angles, {0, stride, shape_.n_head, dim},
                   q_gate, q);
  ops::norm_rotate(run.ops, {k_norm_, dim, dim, eps_}, &angles, {0, dim, shape_.n_head_kv, dim}, k,
                   k);
  const ops::KvCache cache = run.state.cache(slot_);
  ops::store_kv(run.ops, cache, run.first, k, v);
  ops::attend(run.ops, shape_, cache, run.first, q, visible, b.partials, out);
  if (gated_) ops::sigmoid_gate(run.ops, q_gate, {dim, stride, shape_.n_head, dim}, out);
  b.out_acts.set(out);
  run.products(b.out_acts, {{&out_, y}});
  if (out_bias_ != nullptr) ops::add_bias(run.ops, out_bias_, y);
  run.show("attention", block_, run.first, y);
}

void AttentionBlock::commit(State& state, int n) const {
  if (!sparse()) return;
  const State::Layer& layer = state.layer(slot_);
  ops::push_history(layer.indexer_raw, index_.block - 1,
                    {layer.indexer_held, index_.dim, n, index_.dim});
}

}  // namespace penstock::models
