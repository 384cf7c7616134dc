#include "models/transformer.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "quant/codec.h"

namespace penstock::models {

Transformer::Transformer(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {
  const Config& config = parts_->config;
  shape_.n_trunk = config.n_trunk;
  shape_.n_vocab = config.n_vocab;
  shape_.precision = parts_->options.precision;
  const auto account = [&](const Block& block) {
    shape_.layers.push_back(block.attention ? block.attention->state_shape()
                                            : block.delta->state_shape());
    if (block.attention) block.attention->extend(&extents_);
    if (block.delta) block.delta->extend(&extents_);
    block.moe->extend(&extents_);
    if (!block.ngram) return;
    block.ngram->extend(&extents_);
    shape_.ple_rows = block.ngram->conv_history();
    shape_.ple_width = config.n_wide();
  };
  for (const Block& block : parts_->blocks) account(block);
  const std::vector<Block>& blocks = parts_->blocks;
  for (size_t i = 0; i < blocks.size(); ++i) {
    std::vector<MoeBlock::Follower> followers;
    for (size_t j = i + 1; j < std::min(blocks.size(), i + 1 + experts::kMostAhead); ++j) {
      followers.push_back({blocks[j].moe.get(), blocks[j].moe_mixer.get()});
    }
    blocks[i].moe->foresee(std::move(followers));
  }
  if (parts_->draft) {
    account(parts_->draft->block);
    extents_.draft = true;
  }
  extents_.n_in = std::max({extents_.n_in, int64_t{config.n_wide()}, int64_t{config.hc_rank},
                            extents_.draft ? 2 * int64_t{config.n_embd} : 0});
  const std::shared_ptr<const gguf::Model> file = parts_->sources.trunk;
  struct Identity {
    std::once_flag once;
    Sha256 value{};
  };
  // Keys and values computed with converted weights are those of another model.
  const std::string& converted = parts_->store.conversions().identity();
  shape_.model_id = [file, converted, identity = std::make_shared<Identity>()] {
    std::call_once(identity->once, [&] {
      identity->value = file->model_id();
      if (converted.empty()) return;
      Sha256Stream hash;
      hash.update(identity->value.data(), identity->value.size());
      hash.update(converted.data(), converted.size());
      identity->value = hash.finish();
    });
    return identity->value;
  };
  info_.architecture = config.architecture;
  info_.n_layer = config.n_trunk;
  info_.n_embd = config.n_embd;
  info_.n_streams = config.n_streams;
  info_.has_shared_expert = config.shared_expert;
  info_.n_hidden = parts_->hidden_before_head ? config.n_wide() : config.n_embd;
  info_.n_vocab = config.n_vocab;
  info_.n_context_trained = config.n_context;
  for (const Block& block : parts_->blocks) {
    ++(block.attention ? info_.n_attention_layers : info_.n_recurrent_layers);
  }
  info_.has_draft = parts_->draft != nullptr;
  info_.unused_tensors = parts_->unused;
}

ops::WorkspaceLimits Transformer::workspace_limits() const noexcept {
  return {extents_.n_in, parts_->config.head_dim, extents_.heads_per_kv, parts_->config.delta.dim};
}

MemoryNeeds Transformer::needs(const StateOptions& options, int64_t prompt_chunk,
                               int n_threads) const {
  const auto scratch = [&](int64_t rows) {
    ops::Layout layout;
    const Buffers counted(layout, parts_->config, extents_, rows, options.n_ctx);
    return layout.bytes();
  };
  MemoryNeeds needs;
  needs.dense = parts_->store.copied_bytes() + parts_->store.made_bytes();
  needs.dense_mapped = parts_->store.mapped_bytes() + parts_->store.made_bytes();
  needs.kv = State::kv_bytes(shape_, options);
  needs.state = State::fixed_bytes(shape_);
  needs.scratch_decode =
      scratch(kMaxStepRows) + ops::Workspace::bytes(workspace_limits(), n_threads);
  needs.scratch_prompt = prompt_chunk > kMaxStepRows ? scratch(prompt_chunk) : 0;
  needs.logits = static_cast<uint64_t>(info_.n_vocab) * sizeof(float);
  return needs;
}

void Transformer::load(ThreadPool& pool, DenseMode mode, const LoadProgress& progress) {
  pool_ = &pool;
  parts_->store.load(mode, pool.size(), progress);
  workspace_ = std::make_unique<ops::Workspace>(workspace_limits(), pool.size());
}

DenseReport Transformer::dense() const {
  DenseReport report = parts_->store.report();
  report.tensors_skipped = parts_->n_skipped;
  report.bytes_skipped = parts_->bytes_skipped;
  return report;
}

void Transformer::attach_table(experts::RowStore* rows) {
  for (Block& block : parts_->blocks) {
    if (block.ngram) block.ngram->attach(rows);
  }
}

std::unique_ptr<State> Transformer::new_state(const StateOptions& options) const {
  return std::make_unique<State>(shape_, options);
}

Buffers& Transformer::buffers_for(int64_t rows, int64_t n_ctx) {
  Scratch& scratch = rows <= kMaxStepRows ? decode_ : prompt_;
  if (scratch.buffers && scratch.buffers->n_rows >= rows && scratch.n_ctx >= n_ctx) {
    return *scratch.buffers;
  }
  scratch.n_ctx = std::max(scratch.n_ctx, n_ctx);
  const int64_t n_rows = std::max<int64_t>(rows, kMaxStepRows);
  scratch.buffers.reset();
  scratch.memory = {};
  ops::Layout counted;
  Buffers(counted, parts_->config, extents_, n_rows, scratch.n_ctx);
  scratch.memory = Mapping(counted.bytes(), Pages::Huge);
  if (kPoison) std::memset(scratch.memory.data(), 0xFF, scratch.memory.size());
  ops::Layout layout(scratch.memory.data());
  scratch.buffers =
      std::make_unique<Buffers>(layout, parts_->config, extents_, n_rows, scratch.n_ctx);
  return *scratch.buffers;
}

void Transformer::map_prompt_scratch(int64_t rows, const State& state) {
  if (rows <= kMaxStepRows) return;
  buffers_for(rows, state.capacity());
  prompt_.memory.prefault(0, prompt_.memory.size());
}

void Transformer::release_prompt_scratch() {
  prompt_ = {};
}

std::span<const int32_t> Transformer::recent(const State& state, std::span<const int32_t> tokens) {
  const std::span<const int32_t> before = state.tokens();
  const size_t n =
      parts_->config.ngram
          ? std::min(before.size(), static_cast<size_t>(parts_->config.ngram->ngram_size - 1))
          : 0;
  recent_.assign(before.end() - static_cast<std::ptrdiff_t>(n), before.end());
  recent_.insert(recent_.end(), tokens.begin(), tokens.end());
  return recent_;
}

void Transformer::prefetch(const State& state, int32_t token) {
  if (!parts_->config.ngram || token < 0 || token >= info_.n_vocab) return;
  const std::span<const int32_t> history = recent(state, {&token, 1});
  int64_t* ids = buffers_for(1, state.capacity()).ngram.ids;
  for (const Block& block : parts_->blocks) {
    if (block.ngram) block.ngram->prefetch(history, 1, ids);
  }
}

void Transformer::embed(Run& run, const Embedding& embedding, std::span<const int32_t> tokens,
                        const ops::Rows& x) const {
  const gguf::Tensor& tensor = *embedding.tensor;
  const std::byte* rows = embedding.file->data(tensor);
  ops::for_ranges(run.ops.pool, x.count, x.width, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      const auto token = static_cast<uint64_t>(tokens[static_cast<size_t>(r)]);
      quant::decode_row(tensor.type, rows + token * tensor.row_bytes, x[r], x.width);
    }
  });
}

// The token mixing part of a block.
void Transformer::mix(Run& run, const Block& block, int index) const {
  Buffers& b = run.buffers;
  const ops::Rows residual = run.residual();
  const ops::Rows x = b.x.first(run.rows), y = b.y.first(run.rows);
  const ops::Rows inject = b.inject.first(run.rows);
  if (block.ngram) block.ngram->forward(run);
  block.mixer->read(run, residual, x, inject);
  run.show("mixer_in", index, run.first, x);
  run.show("mixer_inject", index, run.first, inject);
  b.x_acts.set(x);
  if (block.attention) {
    block.attention->forward(run);
  } else {
    block.delta->forward(run);
  }
  block.mixer->write(run, y, inject, residual);
}

// The feed-forward part, which has no state: for the rows from first_row on.
void Transformer::feed_forward(Run& run, const Block& block, int index, int64_t first_row) const {
  const int64_t n = run.rows - first_row;
  if (n <= 0) return;
  Buffers& b = run.buffers;
  const ops::Rows x = b.x.first(n), y = b.y.first(n), inject = b.inject.first(n);
  const ops::Rows part = run.residual().from(first_row, n);
  block.moe_mixer->read(run, part, x, inject);
  run.show("moe_in", index, run.first + first_row, x);
  run.show("moe_inject", index, run.first + first_row, inject);
  block.moe->forward(run, x, y, run.first + first_row);
  block.moe_mixer->write(run, y, inject, part);
  run.show("residual", index, run.first + first_row, part);
}

// What the head reads of n rows from `row` on.
ops::Rows Transformer::head_input(Run& run, int64_t row, int64_t n) const {
  const ops::Rows x = run.buffers.x.first(n);
  parts_->head_mixer->read(run, run.residual().from(row, n), x, {});
  run.show("head_in", -1, run.first + row, x);
  return x;
}

void Transformer::multiply_output(Run& run, const ops::Rows& x, float* logits) const {
  run.buffers.x_acts.set(x);
  run.products(run.buffers.x_acts,
               {{&parts_->output, {logits, info_.n_vocab, x.count, info_.n_vocab}}});
}

void Transformer::head(Run& run, const Batch& batch, float* logits) const {
  const bool after = batch.hidden != nullptr && !parts_->hidden_before_head;
  const int64_t n_logits = batch.logits == Logits::None   ? 0
                           : batch.logits == Logits::Last ? 1
                                                          : run.rows;
  const int64_t n = after ? run.rows : n_logits;
  const ops::Rows hidden{batch.hidden, info_.n_hidden, run.rows, info_.n_hidden};
  if (batch.hidden != nullptr && parts_->hidden_before_head) {
    ops::copy(run.ops, run.residual(), hidden);
  }
  if (n == 0) return;
  const ops::Rows x = head_input(run, run.rows - n, n);
  if (after) ops::copy(run.ops, x, hidden);
  if (n_logits > 0) multiply_output(run, x.from(n - n_logits, n_logits), logits);
}

// Rows from row0 on of buffers for `rows` rows in all: their embedding, and where they stand.
Run Transformer::begin_run(Buffers& buffers, State& state, experts::Stream& stream,
                           std::span<const int32_t> tokens, experts::Phase phase, int64_t row0) {
  const auto rows = static_cast<int64_t>(tokens.size());
  Run run{{*pool_, *workspace_, parts_->options.precision},
          buffers,
          state,
          stream,
          phase,
          state.position(),
          rows,
          true,
          tap_,
          observer_,
          row0};
  if (parts_->config.ngram) {
    const std::span<const int32_t> history = recent(state, tokens);
    for (const Block& block : parts_->blocks) {
      if (block.ngram) {
        block.ngram->prefetch(history, rows,
                              buffers.ngram.ids + row0 * block.ngram->config().heads());
      }
    }
  }
  if (parts_->config.n_streams == 1) {
    embed(run, parts_->embedding, tokens, run.residual());
  } else {
    embed(run, parts_->embedding, tokens, buffers.x.first(rows));
    ops::spread(run.ops, buffers.x.first(rows), parts_->config.n_streams, run.residual());
  }
  return run;
}

void Transformer::set_angles(Run& run, int64_t rows) const {
  const ops::Angles& angles = run.buffers.angles;
  parts_->rope.angles(run.ops, run.first, 1, angles.cosine.first(rows), angles.sine.first(rows));
}

void Transformer::run_batch(State& state, experts::Stream& stream, const Batch& batch, bool keep,
                            float* logits) {
  if (workspace_ == nullptr) fail(ErrorKind::Internal, "the model was not loaded");
  const auto rows = static_cast<int64_t>(batch.tokens.size());
  Buffers& buffers = buffers_for(rows, state.capacity());
  Run run = begin_run(buffers, state, stream, batch.tokens, batch.phase, 0);
  run.keep = keep;
  set_angles(run, rows);
  const int n_blocks = static_cast<int>(parts_->blocks.size());
  for (int i = 0; i < n_blocks; ++i) {
    const Block& block = parts_->blocks[static_cast<size_t>(i)];
    // Of the last block's feed-forward part only what the head reads is needed.
    int64_t first_ffn_row = 0;
    if (i == n_blocks - 1 && batch.hidden == nullptr && batch.logits != Logits::All) {
      first_ffn_row = batch.logits == Logits::Last ? rows - 1 : rows;
    }
    mix(run, block, i);
    feed_forward(run, block, i, first_ffn_row);
  }
  head(run, batch, logits);
}

void Transformer::forward_together(std::span<const Sequence> sequences, experts::Stream& stream,
                                   std::span<float> buffer, LogitRows rows) {
  if (workspace_ == nullptr) fail(ErrorKind::Internal, "the model was not loaded");
  if (sequences.empty()) return;
  const int64_t first = sequences.front().state->position();
  int64_t total = 0, longest = 0, n_ctx = 0;
  for (const Sequence& s : sequences) {
    s.state->check_ready(s.tokens);
    // The rotations are shared.
    if (s.state->position() != first) {
      fail(ErrorKind::Internal, "sequences that run together must stand at one position");
    }
    total += static_cast<int64_t>(s.tokens.size());
    longest = std::max(longest, static_cast<int64_t>(s.tokens.size()));
    n_ctx = std::max(n_ctx, s.state->capacity());
  }
  Buffers& buffers = buffers_for(total, n_ctx);
  std::vector<Run> runs;
  int64_t row0 = 0;
  for (const Sequence& s : sequences) {
    s.state->begin_change();
    runs.push_back(begin_run(buffers, *s.state, stream, s.tokens, experts::Phase::Prompt, row0));
    row0 += runs.back().rows;
  }
  set_angles(runs.front(), longest);
  Run all = runs.front();  // for what knows no sequences
  all.rows = total;
  for (size_t i = 0; i < parts_->blocks.size(); ++i) {
    const Block& block = parts_->blocks[i];
    for (Run& run : runs) mix(run, block, static_cast<int>(i));
    feed_forward(all, block, static_cast<int>(i), 0);
  }
  const auto n_vocab = static_cast<size_t>(info_.n_vocab);
  const auto piece = static_cast<int64_t>(buffer.size() / n_vocab);
  for (size_t s = 0; s < runs.size(); ++s) {
    for (int64_t row = sequences[s].first_logits; row < runs[s].rows; row += piece) {
      if (piece == 0) fail(ErrorKind::Internal, "no room for a row of logits");
      const int64_t n = std::min(piece, runs[s].rows - row);
      multiply_output(runs[s], head_input(runs[s], row, n), buffer.data());
      rows(s, row, buffer.first(static_cast<size_t>(n) * n_vocab));
    }
    sequences[s].state->append(sequences[s].tokens);
  }
}

void Transformer::forward(State& state, experts::Stream& stream, const Batch& batch,
                          float* logits) {
  state.check_ready(batch.tokens);
  state.begin_change();
  run_batch(state, stream, batch, true, logits);
  state.append(batch.tokens);
  if (batch.phase == experts::Phase::Decode) {
    stream.end_step(static_cast<int>(batch.tokens.size()));
  }
}

void Transformer::step(State& state, experts::Stream& stream, const Batch& batch, float* logits) {
  state.check_ready(batch.tokens);
  if (batch.tokens.size() > kMaxStepRows) {
    fail(ErrorKind::Internal, "a step of {} rows; at most {} can be held", batch.tokens.size(),
         kMaxStepRows);
  }
  run_batch(state, stream, batch, false, logits);
  state.hold(batch.tokens);
  if (batch.phase == experts::Phase::Decode) {
    stream.end_step(static_cast<int>(batch.tokens.size()));
  }
}

void Transformer::commit(State& state, int n) {
  if (n < 0 || n > state.pending()) {
    fail(ErrorKind::Internal, "{} of {} held rows are to be kept", n, state.pending());
  }
  if (n > 0) {
    ops::Context context{*pool_, *workspace_, parts_->options.precision};
    for (const Block& block : parts_->blocks) {
      if (block.attention) block.attention->commit(state, n);
      if (block.delta) block.delta->commit(context, state, n);
      if (block.ngram) block.ngram->commit(state, n);
    }
  }
  state.settle(n);
}

}  // namespace penstock::models
