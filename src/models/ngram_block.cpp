#include "models/ngram_block.h"

#include <cstring>

#include "base/error.h"
#include "quant/codec.h"

namespace penstock::models {

// spec/qwen4exp.md §4.1: context tokens behind an end-of-sequence token, or before the start, count
// as that token; products and xor modulo 2^64.
void ngram_rows(const NgramConfig& config, std::span<const int32_t> tokens, int64_t position,
                int64_t* rows) {
  uint64_t mix =
      static_cast<uint64_t>(tokens[static_cast<size_t>(position)]) * config.multipliers[0];
  bool cut = false;
  int64_t head = 0;
  for (int s = 1; s < config.ngram_size; ++s) {
    uint64_t token = config.eos;
    if (!cut && position - s >= 0) {
      token = static_cast<uint64_t>(tokens[static_cast<size_t>(position - s)]);
      cut = token == config.eos;
    } else {
      cut = true;
    }
    mix ^= token * config.multipliers[static_cast<size_t>(s)];
    for (int g = 0; g < config.heads_per_ngram; ++g, ++head) {
      const auto h = static_cast<size_t>(head);
      rows[head] = static_cast<int64_t>(mix % config.sizes[h] + config.offsets[h]);
    }
  }
}

NgramBlock::NgramBlock(Binder& binder, const Config& config)
    : config_(*config.ngram),
      n_embd_(config.n_embd),
      n_wide_(config.n_wide()),
      n_streams_(config.n_streams) {
  const auto name = [&](const char* suffix) { return block_name(config_.layer, suffix); };
  const int64_t width = int64_t{config_.heads()} * config_.row_width;
  binder.matrix(&key_, name("ple_key.weight"), width, n_wide_);
  binder.matrix(&value_, name("ple_value.weight"), width, n_embd_);
  for (auto [norm, suffix] : {std::pair(&key_norm_, "ple_norm_key.weight"),
                              std::pair(&query_norm_, "ple_norm_query.weight"),
                              std::pair(&conv_norm_, "ple_norm_conv.weight")}) {
    *norm = {nullptr, n_wide_, n_embd_, config.eps};
    binder.floats(&norm->weight, name(suffix), n_wide_);
  }
  conv_.n_taps = config_.conv_taps;
  conv_.dilation = config_.ngram_size;
  binder.convolution(&conv_.weights, name("ple_conv1d.weight"), conv_.n_taps, n_wide_);
}

TableGeometry NgramBlock::bind_table(Binder& binder) {
  const gguf::Tensor& table = binder.take("per_layer_token_embd.weight");
  uint64_t needed = 0;
  for (size_t h = 0; h < config_.sizes.size(); ++h) {
    needed = std::max(needed, config_.offsets[h] + config_.sizes[h]);
  }
  if (table.ne[0] != static_cast<uint64_t>(config_.row_width) || table.rows() < needed ||
      !quant::can_decode(table.type)) {
    binder.wrong_shape(table, fmt::format("[{}, at least {}]", config_.row_width, needed));
  }
  table_file_ = &binder.file();
  table_ = &table;
  return {binder.file().shards()[table.shard].path,
          table.offset,
          table.row_bytes,
          table.rows(),
          table.type,
          config_.row_width,
          config_.heads()};
}

void NgramBlock::extend(Extents* extents) const noexcept {
  extents->n_in = std::max(extents->n_in, key_.n_in);
  extents->table_row_bytes = static_cast<int64_t>(table_->row_bytes);
}

void NgramBlock::prefetch(std::span<const int32_t> history, int64_t n_tokens, int64_t* ids) const {
  const int64_t heads = config_.heads();
  const int64_t start = static_cast<int64_t>(history.size()) - n_tokens;
  for (int64_t r = 0; r < n_tokens; ++r) {
    ngram_rows(config_, history, start + r, ids + r * heads);
  }
  if (store_ != nullptr) store_->prefetch({ids, static_cast<size_t>(n_tokens * heads)});
}

void NgramBlock::forward(Run& run) const {
  Buffers::Ngram& b = run.buffers.ngram;
  const int64_t n = run.rows;
  const int64_t heads = config_.heads();
  const ops::Rows residual = run.residual();
  const std::span<const int64_t> ids{b.ids + run.row0 * heads, static_cast<size_t>(n * heads)};
  if (store_ != nullptr) {
    store_->read(ids, b.bytes);
  } else {
    for (size_t i = 0; i < ids.size(); ++i) {
      std::memcpy(b.bytes + i * table_->row_bytes,
                  table_file_->data(*table_) + static_cast<uint64_t>(ids[i]) * table_->row_bytes,
                  table_->row_bytes);
    }
  }
  const ops::Rows embedding = b.embedding.first(n);
  ops::for_ranges(run.ops.pool, n, embedding.width, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin * heads; i < end * heads; ++i) {
      quant::decode_row(table_->type, b.bytes + static_cast<uint64_t>(i) * table_->row_bytes,
                        embedding[i / heads] + (i % heads) * config_.row_width, config_.row_width);
    }
  });
  b.acts.set(embedding);
  const ops::Rows key = b.key.first(n), query = b.query.first(n), value = b.value.first(n);
  run.products(b.acts, {{&key_, key}, {&value_, value}});
  ops::rms_norm(run.ops, key_norm_, key, key);
  ops::rms_norm(run.ops, query_norm_, residual, query);
  const ops::Rows gated = b.gated.first(n), conv = b.conv.first(n);
  ops::signed_root_gate(run.ops, key, query, value, n_streams_, gated);
  const ops::Rows norm =
      run.keep ? b.norm.first(n) : ops::Rows{run.state.ple_held(), n_wide_, n, n_wide_};
  ops::rms_norm(run.ops, conv_norm_, gated, norm);
  ops::causal_conv(run.ops, conv_, run.state.ple(), norm, conv);
  if (run.keep) ops::push_history(run.state.ple(), conv_.history_rows(), norm);
  ops::add(run.ops, gated, conv);  // the skip term is not normed
  run.show("ngram", config_.layer, run.first, conv);
  ops::add(run.ops, conv, residual);
}

void NgramBlock::commit(State& state, int n) const {
  ops::push_history(state.ple(), conv_.history_rows(), {state.ple_held(), n_wide_, n, n_wide_});
}

}  // namespace penstock::models
