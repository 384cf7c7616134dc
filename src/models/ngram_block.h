// The hashed n-gram embedding that one layer adds to the residual (spec/qwen4exp.md §4).
#pragma once

#include "experts/row_store.h"
#include "models/binder.h"
#include "models/run.h"

namespace penstock::models {

// Row ids of the token at tokens[position]: heads() of them, from it and the tokens before it.
void ngram_rows(const NgramConfig& config, std::span<const int32_t> tokens, int64_t position,
                int64_t* rows);

class NgramBlock {
 public:
  NgramBlock(Binder& binder, const Config& config);
  NgramBlock(const NgramBlock&) = delete;
  NgramBlock& operator=(const NgramBlock&) = delete;

  // The table's place; `file` is the trunk's or a file of its own.
  TableGeometry bind_table(Binder& binder);
  void attach(experts::RowStore* rows) noexcept { store_ = rows; }
  const NgramConfig& config() const noexcept { return config_; }
  int conv_history() const noexcept { return conv_.history_rows(); }
  void extend(Extents* extents) const noexcept;

  // Starts reading the rows of the tokens that end `history`, which holds at least the
  // ngram_size - 1 tokens before them, or all there are. ids: room for n_tokens * heads.
  void prefetch(std::span<const int32_t> history, int64_t n_tokens, int64_t* ids) const;
  // Adds to run.residual(); the ids are those of prefetch().
  void forward(Run& run) const;
  void commit(State& state, int n) const;

 private:
  NgramConfig config_;
  int64_t n_embd_, n_wide_;
  int n_streams_;
  ops::Norm key_norm_, query_norm_, conv_norm_;
  ops::Matrix key_, value_;
  ops::Convolution conv_;
  experts::RowStore* store_ = nullptr;
  const gguf::Model* table_file_ = nullptr;
  const gguf::Tensor* table_ = nullptr;
};

}  // namespace penstock::models
