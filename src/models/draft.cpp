// The draft (MTP) block of a Transformer.
#include <algorithm>

#include "base/error.h"
#include "models/transformer.h"

namespace penstock::models {

// Pair (x_{p+1}, h_p): e = rms(embedding), n = rms(h), u = project . concat(e, n) for each stream,
// one ordinary block with its own cache, the head (spec/qwen4exp.md §6, moe-architectures.md §3.4).
void Transformer::draft(State& state, experts::Stream& stream, std::span<const int32_t> tokens,
                        const float* hidden, float* logits, float* hidden_out) {
  if (parts_->draft == nullptr) fail(ErrorKind::Internal, "the model was opened without a draft");
  const Draft& d = *parts_->draft;
  const Config& config = parts_->config;
  const auto rows = static_cast<int64_t>(tokens.size());
  if (rows < 1 || state.draft_position() + rows > state.capacity()) {
    fail(ErrorKind::Usage, "{} draft rows do not fit into the context of {} tokens", rows,
         state.capacity());
  }
  for (const int32_t token : tokens) {
    if (token < 0 || token >= config.n_vocab) {
      fail(ErrorKind::Usage, "token id {} is outside the vocabulary of {}", token, config.n_vocab);
    }
  }
  Buffers& b = buffers_for(rows, state.capacity());
  const auto phase = rows <= kMaxStepRows ? experts::Phase::Decode : experts::Phase::Prompt;
  Run run{{*pool_, *workspace_, parts_->options.precision},
          b,
          state,
          stream,
          phase,
          state.draft_position(),
          rows,
          true,
          tap_};
  const int64_t n_embd = config.n_embd;
  const int64_t n_hidden = info_.n_hidden;
  const ops::Rows residual = run.residual();
  const ops::Rows norm = b.draft.hidden.first(rows).columns(0, n_hidden);
  const ops::Rows concat = b.draft.concat.first(rows);
  embed(run, d.embedding, tokens, b.x.first(rows));
  ops::rms_norm(run.ops, d.embedding_norm, b.x.first(rows), concat.columns(0, n_embd));
  ops::copy(run.ops, {const_cast<float*>(hidden), n_hidden, rows, n_hidden}, norm);
  ops::rms_norm(run.ops, d.hidden_norm, norm, norm);
  for (int64_t c = 0; c < config.n_streams; ++c) {
    ops::copy(run.ops, norm.columns(c * n_embd, n_embd), concat.columns(n_embd, n_embd));
    b.draft.acts.set(concat);
    run.products(b.draft.acts, {{&d.project, residual.columns(c * n_embd, n_embd)}});
  }
  parts_->rope.angles(run.ops, run.first, 1, b.angles.cosine.first(rows),
                      b.angles.sine.first(rows));
  mix(run, d.block, config.n_trunk);
  feed_forward(run, d.block, config.n_trunk, rows - 1);  // only the last pair is asked for
  const ops::Rows last = residual.from(rows - 1, 1);
  const ops::Rows x = b.x.first(1);
  d.head_mixer->read(run, last, x, {});
  if (hidden_out != nullptr) {
    ops::copy(run.ops, parts_->hidden_before_head ? last : x, {hidden_out, n_hidden, 1, n_hidden});
  }
  if (logits != nullptr) {
    b.x_acts.set(x);
    run.products(b.x_acts, {{d.own_output ? &d.own_output : &parts_->output,
                             {logits, config.n_vocab, 1, config.n_vocab}}});
  }
  state.set_draft_position(state.draft_position() + rows);
}

}  // namespace penstock::models
