// Runs a text through a model and scores what it says about every next token (spec/streaming.md
// §I.3).
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>

#include "engine/runtime.h"
#include "measure/base_logits.h"
#include "measure/scores.h"
#include "surgery/corpus.h"

namespace penstock::measure {

enum class EvalMode {
  Batch,  // windows together, as prompts; routing is exact
  Step,   // one token per step through the decode path, with the arena and its routing as they are
};

struct EvalOptions {
  EvalMode mode = EvalMode::Batch;
  uint32_t shard = 0, n_shards = 1;
  std::string base_out = {};       // base logits go there; empty: nowhere
  bool base_logits_exact = false;  // as 32-bit logits instead of 16-bit log-probabilities
  BaseReader* base = nullptr;      // to compare with; null: none
};

struct EvalProgress {
  uint64_t windows = 0, n_windows = 0;  // of the shard
  uint64_t tokens = 0;                  // evaluated in this run
  double seconds = 0;
  double mean_nll = 0;
  double mean_kld = 0;
};

// What a runtime must be opened with: windows in Batch mode, and room for what is held beside the
// model: a window's base logits, written (of this form) or read.
void prepare(engine::RuntimeOptions* options, EvalMode mode, int64_t window,
             std::optional<BaseRows::Form> written = {}, const BaseReader* base = nullptr);

// Throws Error(Usage) where cache-aware routing would give something that cannot be measured again:
// with live residency, which depends on the disk's timing, or in shards, since the arena and the
// router go on from what came before.
void check_repeatable(const engine::Runtime& runtime, uint32_t n_shards);

// Scores the windows of the shard; those whose rows are in an interrupted `base_out` already are
// taken from there, except with cache-aware routing. Throws Error(Numeric) naming layer, window and
// position where logits are not finite, Error(Format) naming window and position where the base's
// are not; Usage when the base is of another text, vocabulary, tokenizer or window, when a token is
// outside the vocabulary, when cache-aware routing is to be scored in Batch mode, and as
// check_repeatable() does. `stop` ends it early.
ScoreSet evaluate(engine::Runtime& runtime, const surgery::Corpus& corpus,
                  const EvalOptions& options,
                  const std::function<void(const EvalProgress&)>& progress,
                  const std::function<bool()>& stop);

}  // namespace penstock::measure
