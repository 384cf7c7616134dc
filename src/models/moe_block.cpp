#include "models/moe_block.h"

#include "base/error.h"
#include "models/mixer.h"
#include "ops/elementwise.h"
#include "ops/kernels.h"

namespace penstock::models {

MoeBlock::MoeBlock(Binder& binder, const Config& config, int block, uint32_t first_shard,
                   experts::Geometry* geometry)
    : block_(block), index_(static_cast<int>(geometry->layers.size())) {
  const int n_used = config.n_expert_used[static_cast<size_t>(block)];
  bank_ = binder.bank(block, config.n_embd, n_used, first_shard);
  geometry->layers.push_back(bank_);
  rule_.n_used = n_used;
  several_streams_ = config.n_streams > 1;
  const auto name = [&](const char* suffix) { return block_name(block, suffix); };
  // Exactly as many router rows as experts (spec/streaming.md §G.2).
  binder.f32_matrix(&router_, name("ffn_gate_inp.weight"), config.n_embd, bank_.n_expert);
  if (!config.shared_expert) return;
  binder.f32_matrix(&shared_scale_, name("ffn_gate_inp_shexp.weight"), config.n_embd, 1);
  binder.matrix(&shared_gate_, name("ffn_gate_shexp.weight"), config.n_embd, -1);
  const int64_t n_ff = shared_gate_.n_out;
  if (n_ff > kMostWidth) {
    fail(ErrorKind::Format, "{}: block {}: a shared expert {} wide is beyond any model",
         binder.file().path(), block, n_ff);
  }
  binder.matrix(&shared_up_, name("ffn_up_shexp.weight"), config.n_embd, n_ff);
  binder.matrix(&shared_down_, name("ffn_down_shexp.weight"), n_ff, config.n_embd);
}

void MoeBlock::extend(Extents* extents) const noexcept {
  extents->n_expert = std::max<int64_t>(extents->n_expert, bank_.n_expert);
  extents->n_used = std::max<int64_t>(extents->n_used, bank_.n_used);
  extents->n_ff = std::max(extents->n_ff, bank_.gate.n_out);
  extents->n_ff_shared = std::max(extents->n_ff_shared, shared_gate_.n_out);
  extents->n_in = std::max({extents->n_in, bank_.gate.n_in, bank_.down.n_in, shared_down_.n_in});
}

// What the routers of the next blocks would say to what is known now (spec/streaming.md §E.1): to
// the residual that fed this block's router, read as the block there reads it. With several
// residual streams such a reading costs two more matrices a block, so by default this block's own
// input serves in its place, unchanged.
void MoeBlock::predict(Run& run, experts::Predictor from, int64_t n_rows) const {
  const auto n = std::min(static_cast<size_t>(run.stream.look_ahead()), followers_.size());
  if (n == 0) return;
  Buffers::Ahead& b = run.buffers.ahead;
  ops::Rows residual = run.residual().from(run.rows - n_rows, n_rows);
  if (from == experts::Predictor::ResidualShared) {
    const ops::Rows sum = b.residual.first(n_rows);
    ops::copy(run.ops, residual, sum);
    add_shared(run, sum);
    residual = sum;
  }
  for (size_t i = 0; i < n; ++i) {
    const MoeBlock& next = *followers_[i].moe;
    const int64_t n_expert = next.bank_.n_expert;
    const ops::Rows logits{b.logits.data, n_expert, n_rows, n_expert};
    if (from == experts::Predictor::GateInput) {
      run.products(run.buffers.x_acts, {{&next.router_, logits}});
    } else {
      const ops::Rows x = b.x.first(n_rows);
      followers_[i].mixer->read(run, residual, x, {});
      b.acts.set(x);
      run.products(b.acts, {{&next.router_, logits}});
    }
    run.stream.predict(next.index_, logits.data, static_cast<int>(n_rows));
  }
}

experts::Predictor MoeBlock::predictor(const Run& run) const {
  const experts::Predictor asked = run.stream.predictor();
  if (asked != experts::Predictor::Auto) return asked;
  return several_streams_ ? experts::Predictor::GateInput : experts::Predictor::Residual;
}

// y_s = down(silu(gate x) * (up x)), and the factor sigmoid(scale . x)
void MoeBlock::shared(Run& run, int64_t n_rows) const {
  Buffers::Moe& b = run.buffers.moe;
  const ops::Rows gate = b.shared_gate.first(n_rows).columns(0, shared_gate_.n_out);
  const ops::Rows up = b.shared_up.first(n_rows).columns(0, shared_gate_.n_out);
  const ops::Rows scale = b.shared_scale.first(n_rows);
  run.products(run.buffers.x_acts,
               {{&shared_gate_, gate}, {&shared_up_, up}, {&shared_scale_, scale}});
  ops::silu_mul(run.ops, gate, up, gate);
  b.shared_acts.set(gate);
  run.products(b.shared_acts, {{&shared_down_, b.shared_y.first(n_rows)}});
  ops::sigmoid_scaled(run.ops, scale, 1.0f, 1.0f, scale);
}

void MoeBlock::add_shared(Run& run, const ops::Rows& y) const {
  const Buffers::Moe& b = run.buffers.moe;
  ops::add_scaled(run.ops, b.shared_scale.first(y.count), b.shared_y.first(y.count), y);
}

// Counting sort of the (row, rank) pairs by expert, and the operand lists in that order: the rows
// of an expert's products are then a slice of each list.
void MoeBlock::sort_pairs(Run& run, const experts::Routing& routing, int64_t n_rows) const {
  Buffers::Moe& b = run.buffers.moe;
  const int64_t n_pairs = n_rows * rule_.n_used;
  std::fill_n(b.starts, bank_.n_expert + 1, 0);
  for (int64_t p = 0; p < n_pairs; ++p) ++b.starts[routing.ids[static_cast<size_t>(p)] + 1];
  for (int e = 0; e < bank_.n_expert; ++e) b.starts[e + 1] += b.starts[e];
  for (int64_t p = 0; p < n_pairs; ++p) {
    b.sorted[b.starts[routing.ids[static_cast<size_t>(p)]]++] = static_cast<int32_t>(p);
  }
  for (int e = bank_.n_expert; e > 0; --e) b.starts[e] = b.starts[e - 1];
  b.starts[0] = 0;

  const ops::Rows gate = b.gate.first(n_pairs).columns(0, bank_.gate.n_out);
  b.hidden_acts.set(gate);
  const void* const* gate_acts = run.buffers.x_acts.form(run.ops, bank_.gate.type);
  const void* const* up_acts = run.buffers.x_acts.form(run.ops, bank_.up.type);
  const void* const* hidden = b.hidden_acts.begin_form(bank_.down.type, run.ops.precision);
  for (int64_t i = 0; i < n_pairs; ++i) {
    const int64_t pair = b.sorted[i];
    b.gate_acts[i] = gate_acts[pair / rule_.n_used];
    b.up_acts[i] = up_acts[pair / rule_.n_used];
    b.hidden[i] = hidden[pair];
    b.gate_outs[i] = gate[pair];
    b.up_outs[i] = b.up[pair];
    b.down_outs[i] = b.out[pair];
  }
}

void MoeBlock::compute(Run& run, std::span<const experts::ReadyExpert> batch) const {
  Buffers::Moe& b = run.buffers.moe;
  const auto job = [](const experts::MatrixGeometry& m, const std::byte* weights, const void** acts,
                      float** outs, int64_t n) {
    return ops::Job{m.type, weights, m.row_bytes, m.n_in, m.n_out, acts, outs, n};
  };
  size_t n_jobs = 0;
  for (const experts::ReadyExpert& ready : batch) {
    const int64_t start = b.starts[ready.expert];
    const int64_t n = b.starts[ready.expert + 1] - start;
    b.jobs[n_jobs++] =
        job(bank_.gate, ready.data.gate, b.gate_acts + start, b.gate_outs + start, n);
    b.jobs[n_jobs++] = job(bank_.up, ready.data.up, b.up_acts + start, b.up_outs + start, n);
  }
  ops::run_jobs(run.ops, {b.jobs, n_jobs}, {b.job_starts, n_jobs + 1});

  n_jobs = 0;
  int64_t n_pairs = 0;
  for (const experts::ReadyExpert& ready : batch) {
    const int64_t start = b.starts[ready.expert];
    const int64_t n = b.starts[ready.expert + 1] - start;
    b.jobs[n_jobs++] = job(bank_.down, ready.data.down, b.hidden + start, b.down_outs + start, n);
    for (int64_t i = 0; i < n; ++i) b.batch_pairs[n_pairs++] = b.sorted[start + i];
  }
  const ops::Kernels& kernel = ops::kernels();
  const quant::ActKind kind = quant::act_kind(bank_.down.type, run.ops.precision);
  ops::for_ranges(run.ops.pool, n_pairs, 4 * bank_.gate.n_out,
                  [&](int64_t begin, int64_t end, int) {
                    for (int64_t i = begin; i < end; ++i) {
                      const int64_t pair = b.batch_pairs[i];
                      kernel.silu_mul(b.gate[pair], b.up[pair], b.gate[pair], bank_.gate.n_out);
                      b.hidden_acts.make_row(kind, pair);
                    }
                  });
  ops::run_jobs(run.ops, {b.jobs, n_jobs}, {b.job_starts, n_jobs + 1});
}

void MoeBlock::forward(Run& run, const ops::Rows& x, const ops::Rows& y, int64_t position) const {
  Buffers::Moe& b = run.buffers.moe;
  const int64_t n_rows = x.count;
  const ops::Rows logits{b.logits.data, bank_.n_expert, n_rows, bank_.n_expert};
  run.buffers.x_acts.set(x);
  run.products(run.buffers.x_acts, {{&router_, logits}});
  const experts::Routing routing =
      run.stream.begin(index_, logits.data, static_cast<int>(n_rows), rule_, run.phase);
  const experts::Predictor from = predictor(run);
  const bool shared_first = from == experts::Predictor::ResidualShared;
  if (!shared_first) predict(run, from, n_rows);
  if (shared_gate_) shared(run, n_rows);
  if (shared_first) predict(run, from, n_rows);
  sort_pairs(run, routing, n_rows);
  for (auto batch = run.stream.next(); !batch.empty(); batch = run.stream.next()) {
    compute(run, batch);
  }
  run.stream.end();
  if (run.observer != nullptr) {
    const int64_t n_pairs = n_rows * rule_.n_used;
    run.observer->experts({.block = block_,
                           .bank = &bank_,
                           .n_used = rule_.n_used,
                           .logits = logits,
                           .x = x,
                           .ids = routing.ids,
                           .weights = routing.weights,
                           .hidden = b.gate.first(n_pairs).columns(0, bank_.gate.n_out),
                           .out = b.out.first(n_pairs)},
                          run.ops.pool);
  }
  ops::weighted_sum(run.ops, routing.weights, rule_.n_used, b.out, y);
  if (shared_gate_) add_shared(run, y);
  run.show_ids("experts", block_, position, routing.ids, rule_.n_used);
  run.show("moe", block_, position, y);
}

}  // namespace penstock::models
