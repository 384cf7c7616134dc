#include "models/delta_block.h"

namespace penstock::models {
namespace {

void append_range(std::vector<int64_t>* rows, int64_t start, int64_t n) {
  for (int64_t i = 0; i < n; ++i) rows->push_back(start + i);
}

}  // namespace

DeltaBlock::DeltaBlock(Binder& binder, const Config& config, int block, int slot)
    : block_(block),
      slot_(slot),
      shape_(config.delta),
      gate_kind_(config.delta_gate),
      eps_(config.eps) {
  const auto name = [&](const char* suffix) { return block_name(block, suffix); };
  const int64_t n_embd = config.n_embd;
  const int64_t inner = shape_.n_v_head * shape_.dim;
  if (!binder.has(name("attn_qkv.weight")) && binder.has(name("ssm_in.weight"))) {
    bind_fused_input(binder, n_embd);
  } else {
    binder.matrix(&qkv_, name("attn_qkv.weight"), n_embd, shape_.channels());
    binder.matrix(&gate_, name("attn_gate.weight"), n_embd, inner);
  }
  if (binder.has(name("ssm_ba.weight"))) {
    bind_fused_gates(binder, n_embd);
  } else {
    binder.matrix(&alpha_, name("ssm_alpha.weight"), n_embd, shape_.n_v_head);
    binder.matrix(&beta_, name("ssm_beta.weight"), n_embd, shape_.n_v_head);
  }
  binder.matrix(&out_, name("ssm_out.weight"), inner, n_embd);
  conv_.n_taps = config.conv_taps;
  binder.convolution(&conv_.weights, name("ssm_conv1d.weight"), conv_.n_taps, shape_.channels());
  binder.floats(&dt_bias_, name("ssm_dt.bias"), shape_.n_v_head);
  binder.floats(&a_, name("ssm_a"), shape_.n_v_head);
  binder.floats(&norm_, name("ssm_norm.weight"), shape_.dim);
}

// spec/moe-architectures.md §4 point 3: per key head q, k, then v and z of its value heads.
void DeltaBlock::bind_fused_input(Binder& binder, int64_t n_embd) {
  const std::string name = block_name(block_, "ssm_in.weight");
  const int64_t s = shape_.dim;
  const int64_t v_rows = shape_.n_v_head / shape_.n_k_head * s;
  const int64_t group = 2 * s + 2 * v_rows;
  std::vector<int64_t> qkv, z;
  for (int64_t g = 0; g < shape_.n_k_head; ++g) append_range(&qkv, g * group, s);
  for (int64_t g = 0; g < shape_.n_k_head; ++g) append_range(&qkv, g * group + s, s);
  for (int64_t g = 0; g < shape_.n_k_head; ++g) {
    append_range(&qkv, g * group + 2 * s, v_rows);
    append_range(&z, g * group + 2 * s + v_rows, v_rows);
  }
  const int64_t n_rows = group * shape_.n_k_head;
  binder.gathered(&qkv_, name, n_embd, shape_.channels(), std::move(qkv), n_rows);
  binder.gathered(&gate_, name, n_embd, shape_.n_v_head * s, std::move(z), n_rows);
}

// spec/moe-architectures.md §4 point 2: per key head beta, then alpha of its value heads.
void DeltaBlock::bind_fused_gates(Binder& binder, int64_t n_embd) {
  const std::string name = block_name(block_, "ssm_ba.weight");
  const int64_t r = shape_.n_v_head / shape_.n_k_head;
  std::vector<int64_t> alpha, beta;
  for (int64_t g = 0; g < shape_.n_k_head; ++g) {
    append_range(&beta, g * 2 * r, r);
    append_range(&alpha, g * 2 * r + r, r);
  }
  binder.gathered(&beta_, name, n_embd, shape_.n_v_head, std::move(beta), 2 * shape_.n_v_head);
  binder.gathered(&alpha_, name, n_embd, shape_.n_v_head, std::move(alpha), 2 * shape_.n_v_head);
}

LayerShape DeltaBlock::state_shape() const noexcept {
  LayerShape shape;
  shape.conv_rows = conv_.history_rows();
  shape.conv_width = static_cast<int>(shape_.channels());
  shape.recurrent = static_cast<int>(shape_.state());
  shape.replay_width = static_cast<int>(shape_.channels() + 2 * shape_.n_v_head);
  return shape;
}

void DeltaBlock::extend(Extents* extents) const noexcept {
  extents->n_in = std::max({extents->n_in, qkv_.n_in, out_.n_in});
}

ops::DeltaInputs DeltaBlock::held(const State::Layer& layer, int64_t n) const noexcept {
  const ops::Rows all{layer.replay_held, shape_.channels() + 2 * shape_.n_v_head, n,
                      shape_.channels() + 2 * shape_.n_v_head};
  return {all.columns(0, shape_.channels()), all.columns(shape_.channels(), shape_.n_v_head),
          all.columns(shape_.channels() + shape_.n_v_head, shape_.n_v_head)};
}

void DeltaBlock::forward(Run& run) const {
  Buffers::Delta& b = run.buffers.delta;
  const State::Layer& state = run.state.layer(slot_);
  const int64_t n = run.rows;
  const int64_t channels = shape_.channels();
  const ops::Rows y = run.buffers.y.first(n);
  const ops::Rows z = b.z.first(n);
  const ops::Rows out = b.out.first(n);
  // Rows that are not kept yet go where commit() will find them.
  const ops::Rows raw =
      run.keep ? b.raw.first(n) : ops::Rows{state.conv_held, channels, n, channels};
  const ops::DeltaInputs inputs =
      run.keep ? ops::DeltaInputs{b.qkv.first(n), b.decay.first(n), b.beta.first(n)}
               : held(state, n);
  run.products(run.buffers.x_acts,
               {{&qkv_, raw}, {&gate_, z}, {&alpha_, inputs.decay}, {&beta_, inputs.beta}});
  ops::causal_conv(run.ops, conv_, state.conv, raw, inputs.qkv);
  ops::delta_prepare(run.ops, shape_, a_, dt_bias_, inputs);
  ops::delta_rule(run.ops, shape_, inputs, state.recurrent, run.keep, out);
  if (run.keep) ops::push_history(state.conv, conv_.history_rows(), raw);
  ops::gated_norm(run.ops, norm_, shape_.dim, eps_, gate_kind_, z, out);
  b.out_acts.set(out);
  run.products(b.out_acts, {{&out_, y}});
  run.show("delta", block_, run.first, y);
}

void DeltaBlock::commit(ops::Context& context, State& state, int n) const {
  const State::Layer& layer = state.layer(slot_);
  ops::delta_rule(context, shape_, held(layer, n), layer.recurrent, true, {});
  ops::push_history(layer.conv, conv_.history_rows(),
                    {layer.conv_held, shape_.channels(), n, shape_.channels()});
}

}  // namespace penstock::models
