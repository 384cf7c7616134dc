// Everything a conversation has accumulated: keys and values, indexer keys, recurrent states,
// convolution windows, token ids. All parts move in lock-step (spec/qwen4exp.md §12).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/memory.h"
#include "base/thread_pool.h"
#include "ops/attention.h"
#include "quant/matmul.h"

namespace penstock::models {

using ops::KvType;

inline constexpr int kMaxStepRows = 8;  // of Model::step()

struct StateOptions {
  int64_t n_ctx = 4096;
  KvType kv = KvType::F16;
};

// What one layer keeps per token (rows) or as a whole (fixed).
struct LayerShape {
  int kv_width = 0;       // n_head_kv * head_dim: K and V floats per token each
  int indexer_width = 0;  // floats per pooled block key
  int indexer_block = 0;  // tokens per block
  int conv_rows = 0;      // history rows of the convolution
  int conv_width = 0;     // floats per history row
  int recurrent = 0;      // floats of the recurrent state
  int replay_width = 0;   // floats per row that commit() needs to replay the recurrence
};

struct StateShape {
  std::vector<LayerShape> layers;  // the trunk's, then the draft block's if there is one
  int n_trunk = 0;
  int ple_rows = 0;  // history of the n-gram embedding's convolution
  int ple_width = 0;
  int n_vocab = 0;
  quant::Precision precision{};
  std::function<Sha256()> model_id;  // asked for when a state is saved or restored
  bool recurrent() const noexcept;
};

class State {
 public:
  State(const StateShape& shape, const StateOptions& options);
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  int64_t position() const noexcept { return static_cast<int64_t>(tokens_.size()); }
  int64_t capacity() const noexcept { return options_.n_ctx; }
  int64_t draft_position() const noexcept { return draft_position_; }
  std::span<const int32_t> tokens() const noexcept { return tokens_; }
  int pending() const noexcept { return pending_; }  // rows of step() not yet committed

  void reset() noexcept;
  // Forgets tokens from `position` on. Models with recurrent layers can only go to 0 or stay
  // (false: not possible, nothing changed); they go back through save() and restore().
  bool truncate(int64_t position) noexcept;
  void truncate_draft(int64_t position) noexcept;

  enum class Parts {
    All,
    Recurrent,  // without keys and values: restore() needs a state that still holds the same prefix
  };
  // A header with the model's identity, then the parts. restore() throws Error(Format) naming what
  // does not match and leaves the state reset.
  uint64_t saved_bytes(Parts parts) const noexcept;
  void save(Parts parts, FunctionRef<void(std::span<const std::byte>)> sink) const;
  void restore(FunctionRef<void(std::span<std::byte>)> source, const std::string& name);

  // What of it lies in memory: pages are taken as tokens come, huge ones where they can be had.
  uint64_t resident_bytes() const;

  static uint64_t kv_bytes(const StateShape& shape, const StateOptions& options) noexcept;
  static uint64_t fixed_bytes(const StateShape& shape) noexcept;

  // For the models.
  struct Layer {
    std::byte* k = nullptr;  // [n_ctx][kv_width] of the KV type
    std::byte* v = nullptr;
    float* indexer = nullptr;       // [n_ctx / block][indexer_width] keys of complete blocks
    float* indexer_raw = nullptr;   // [block - 1][indexer_width] raw keys of the last tokens
    float* indexer_held = nullptr;  // [kMaxStepRows][indexer_width] raw keys of pending rows
    float* conv = nullptr;          // [conv_rows][conv_width], oldest first
    float* conv_held = nullptr;     // [kMaxStepRows][conv_width]
    float* recurrent = nullptr;     // [recurrent]
    float* replay_held = nullptr;   // [kMaxStepRows][replay_width]
  };
  const Layer& layer(int index) const noexcept { return layers_[static_cast<size_t>(index)]; }
  ops::KvCache cache(int index) const noexcept;
  const StateShape& shape() const noexcept { return shape_; }
  const StateOptions& options() const noexcept { return options_; }
  float* ple() const noexcept { return ple_; }            // [ple_rows][ple_width], oldest first
  float* ple_held() const noexcept { return ple_held_; }  // [kMaxStepRows][ple_width]
  std::span<const int32_t> held_tokens() const noexcept { return held_tokens_; }
  // Throws unless the tokens fit, all ids are in range and nothing is pending or broken.
  void check_ready(std::span<const int32_t> tokens) const;
  void begin_change() noexcept { broken_ = true; }  // until one of the following
  void append(std::span<const int32_t> tokens);
  void hold(std::span<const int32_t> tokens);
  void settle(int n);  // of the held tokens
  void set_draft_position(int64_t position) noexcept { draft_position_ = position; }

 private:
  template <typename Visit>
  void each_part(Parts parts, int64_t position, int64_t draft_position, Visit visit) const;
  bool is_draft(size_t layer) const noexcept {
    return layer >= static_cast<size_t>(shape_.n_trunk);
  }

  StateShape shape_;
  StateOptions options_;
  Mapping kv_, fixed_;
  std::vector<Layer> layers_;
  float* ple_ = nullptr;
  float* ple_held_ = nullptr;
  std::vector<int32_t> tokens_, held_tokens_;
  int64_t draft_position_ = 0;
  int pending_ = 0;
  bool broken_ = false;
};

}  // namespace penstock::models
