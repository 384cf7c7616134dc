#include "measure/evaluate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>

#include "base/clock.h"
#include "base/error.h"
#include "engine/not_finite.h"
#include "engine/session.h"
#include "engine/windows.h"
#include "gguf/model.h"
#include "measure/quality_key.h"

namespace penstock::measure {
namespace {

class Evaluation {
 public:
  Evaluation(engine::Runtime& runtime, const surgery::Corpus& corpus, const EvalOptions& options)
      : runtime_(runtime), corpus_(corpus), options_(options) {
    check_routing();
    check_tokens();
    if (options.base != nullptr) check_base(options.base->header());
    const QualityKey key = quality_key(runtime);
    set_.model_id = runtime.file().model_id();
    set_.model_name = runtime.file().metadata().get_string("general.name", "");
    set_.quality_key = key.id;
    set_.quality_settings = key.settings.dump();
    set_.mode = options.mode == EvalMode::Batch ? "batch" : "step";
    set_.window_tokens = corpus.window_tokens();
    set_.n_windows = corpus.n_windows();
    set_.corpus_id = corpus.id();
    for (const surgery::Corpus::Part& part : corpus.parts()) {
      set_.parts.push_back({part.name, part.tokens_id});
    }
    if (options.base != nullptr) {
      const BaseHeader& base = options.base->header();
      set_.has_base = true;
      set_.base_id = base.model_id;
      set_.base_name = base.model_name;
      set_.base_key = base.quality_key;
    }
    for (uint64_t w = options.shard; w < corpus.n_windows(); w += options.n_shards) {
      todo_.push_back(w);
    }
    n_todo_ = todo_.size();
    if (!options.base_out.empty()) open_writer();
  }

  ScoreSet run(const std::function<void(const EvalProgress&)>& progress,
               const std::function<bool()>& stop) {
    if (writer_ && !runtime_.options().stream.moce.on()) take_written();
    if (!set_.windows.empty()) report(now_ns(), progress);
    if (options_.mode == EvalMode::Batch) {
      run_batch(progress, stop);
    } else {
      run_steps(progress, stop);
    }
    if (writer_ && set_.windows.size() == n_todo_) writer_->finish();
    sort_windows();
    return std::move(set_);
  }

 private:
  void check_routing() const {
    if (options_.mode == EvalMode::Batch && runtime_.options().stream.moce.on()) {
      fail(ErrorKind::Usage,
           "cache-aware routing depends on what is in memory at every step: measure it with "
           "--step-mode");
    }
    check_repeatable(runtime_, options_.n_shards);
  }

  // The last token of a window is looked up in the logits, but never goes through the model.
  void check_tokens() const {
    for (const int32_t id : corpus_.tokens()) {
      if (id >= 0 && id < runtime_.info().n_vocab) continue;
      fail(ErrorKind::Usage, "token id {} is outside the vocabulary of {}", id,
           runtime_.info().n_vocab);
    }
  }

  void check_base(const BaseHeader& base) const {
    if (base.n_vocab != runtime_.info().n_vocab) {
      fail(ErrorKind::Usage, "the base has a vocabulary of {}, this model one of {}", base.n_vocab,
           runtime_.info().n_vocab);
    }
    if (base.window_tokens != corpus_.window_tokens()) {
      fail(ErrorKind::Usage, "the base was made with --window {}, not {}", base.window_tokens,
           corpus_.window_tokens());
    }
    const Sha256 ids = tokenizer_id(runtime_.file().metadata());
    if (base.tokenizer_id != Sha256{} && ids != Sha256{} && base.tokenizer_id != ids) {
      fail(ErrorKind::Usage,
           "the base was made with another tokenizer: its token ids mean something else here");
    }
    // A file of llama.cpp holds whole windows only.
    const std::span<const int32_t> ours = corpus_.tokens();
    const size_t n = std::min(ours.size(), base.tokens.size());
    if (n < corpus_.n_windows() * static_cast<uint64_t>(corpus_.window_tokens()) ||
        !std::equal(ours.begin(), ours.begin() + static_cast<std::ptrdiff_t>(n),
                    base.tokens.begin())) {
      fail(ErrorKind::Usage, "the base was made from another text, or from other tokens of it");
    }
  }

  void open_writer() {
    BaseHeader header;
    header.form = options_.base_logits_exact ? BaseRows::Form::Logits : BaseRows::Form::Compact;
    header.n_vocab = runtime_.info().n_vocab;
    header.window_tokens = corpus_.window_tokens();
    header.n_windows = corpus_.n_windows();
    header.mode = set_.mode;
    header.model_id = set_.model_id;
    header.corpus_id = set_.corpus_id;
    header.model_name = set_.model_name;
    header.quality_key = set_.quality_key;
    header.tokenizer_id = tokenizer_id(runtime_.file().metadata());
    header.tokens.assign(corpus_.tokens().begin(), corpus_.tokens().end());
    row_bytes_ = header.row_bytes();
    writer_ = std::make_unique<BaseWriter>(options_.base_out, header, todo_.size());
  }

  // Windows whose rows an interrupted run has left: they need not be evaluated again.
  void take_written() {
    std::erase_if(todo_, [&](uint64_t window) {
      if (!writer_->has(window)) return false;
      const std::vector<double> nll = writer_->nll(window);
      Open open;
      open.window = window;
      open.scores.resize(nll.size());
      for (size_t i = 0; i < nll.size(); ++i) open.scores[i].nll = nll[i];
      end(open);
      return true;
    });
  }

  // What was there already may stand before a window with a lower index.
  void sort_windows() {
    const auto per_window = static_cast<std::ptrdiff_t>(set_.per_window());
    std::vector<size_t> order(set_.windows.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::sort(order.begin(), order.end(),
              [&](size_t a, size_t b) { return set_.windows[a].index < set_.windows[b].index; });
    if (std::is_sorted(order.begin(), order.end())) return;
    const std::vector<ScoreSet::Window> windows = std::move(set_.windows);
    const std::vector<PositionScore> scores = std::move(set_.scores);
    set_.windows.clear();
    set_.scores.clear();
    for (const size_t i : order) {
      set_.windows.push_back(windows[i]);
      const auto first = scores.begin() + static_cast<std::ptrdiff_t>(i) * per_window;
      set_.scores.insert(set_.scores.end(), first, first + per_window);
    }
  }

  // The scores of a window are made piece by piece, all of one window before the next one's.
  struct Open {
    uint64_t window = 0;
    std::vector<int32_t> tokens;
    std::vector<PositionScore> scores;
    int64_t n_done = 0;
  };

  void begin(Open* open, uint64_t window) {
    open->window = window;
    open->tokens = corpus_.window(window);
    open->scores.resize(static_cast<size_t>(set_.per_window()));
  }

  // Logits of rows `first` to `first + n` of the window.
  void take(Open* open, int64_t first, std::span<const float> logits) {
    const auto n_vocab = static_cast<size_t>(runtime_.info().n_vocab);
    const int64_t begin = first - first_scored(set_.window_tokens);
    // The last token's logits speak about a token outside the window.
    const auto n =
        std::min<int64_t>(static_cast<int64_t>(logits.size() / n_vocab), set_.per_window() - begin);
    if (n <= 0) return;
    const std::span<const float> rows = logits.first(static_cast<size_t>(n) * n_vocab);
    const auto next = std::span<const int32_t>(open->tokens)
                          .subspan(static_cast<size_t>(first) + 1, static_cast<size_t>(n));
    BaseRows base;
    if (options_.base != nullptr) {
      base = options_.base->rows(open->window);
      base.data += static_cast<uint64_t>(begin) * options_.base->header().row_bytes();
    }
    const BadRow bad = score_rows(runtime_.pool(), rows, next, base, open->scores.data() + begin);
    if (bad.row >= 0 && bad.of_base) {
      fail(ErrorKind::Format, "the base's window {}, position {}: its logits are not finite",
           open->window, first + bad.row);
    }
    if (bad.row >= 0) {
      fail(ErrorKind::Numeric, "window {}, position {}: logits are not finite", open->window,
           first + bad.row);
    }
    open->n_done += n;
    if (!writer_) return;
    keep_rows(begin, rows);
    if (open->n_done == set_.per_window() && !writer_->has(open->window)) {
      std::vector<double> nll;
      for (const PositionScore& score : open->scores) nll.push_back(score.nll);
      writer_->write(open->window, rows_, nll);
    }
  }

  void keep_rows(int64_t begin, std::span<const float> logits) {
    rows_.resize(static_cast<size_t>(set_.per_window()) * row_bytes_);
    std::byte* const out = rows_.data() + static_cast<uint64_t>(begin) * row_bytes_;
    if (options_.base_logits_exact) {
      std::memcpy(out, logits.data(), logits.size_bytes());
      return;
    }
    const auto n_vocab = static_cast<size_t>(runtime_.info().n_vocab);
    runtime_.pool().parallel_for(
        static_cast<int64_t>(logits.size() / n_vocab), [&](int64_t row, int) {
          CompactRow::compress(
              logits.subspan(static_cast<size_t>(row) * n_vocab, n_vocab),
              reinterpret_cast<uint16_t*>(out + static_cast<uint64_t>(row) * row_bytes_));
        });
  }

  void end(const Open& open) {
    set_.windows.push_back({open.window, static_cast<uint32_t>(corpus_.part_of(open.window))});
    set_.scores.insert(set_.scores.end(), open.scores.begin(), open.scores.end());
    for (const PositionScore& score : open.scores) {
      sum_nll_ += score.nll;
      sum_kld_ += score.kld;
    }
    state_.tokens += open.tokens.size();
  }

  void report(int64_t began, const std::function<void(const EvalProgress&)>& progress) {
    state_.windows = set_.windows.size();
    state_.n_windows = n_todo_;
    state_.seconds = seconds_since(began);
    const auto n = static_cast<double>(set_.scores.size());
    state_.mean_nll = sum_nll_ / n;
    state_.mean_kld = sum_kld_ / n;
    progress(state_);
  }

  void run_batch(const std::function<void(const EvalProgress&)>& progress,
                 const std::function<bool()>& stop) {
    const int64_t began = now_ns();
    engine::Windows windows(runtime_);
    std::vector<Open> open;
    std::vector<engine::Window> group;
    for (size_t at = 0; at < todo_.size() && !stop();) {
      open.clear();
      group.clear();
      open.resize(std::min(windows.at_once(), todo_.size() - at));
      for (Open& one : open) {
        begin(&one, todo_[at++]);
        group.push_back({one.tokens, first_scored(set_.window_tokens)});
      }
      try {
        windows.run(group, [&](size_t w, int64_t first, std::span<const float> logits) {
          take(&open[w], first, logits);
        });
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::Numeric) throw;
        for (const Open& one : open) find_bad_layer(one.window);
        throw;
      }
      for (const Open& one : open) end(one);
      report(began, progress);
    }
  }

  void run_steps(const std::function<void(const EvalProgress&)>& progress,
                 const std::function<bool()>& stop) {
    const int64_t began = now_ns();
    engine::Session session(runtime_);
    for (const uint64_t window : todo_) {
      if (stop()) return;
      Open open;
      begin(&open, window);
      session.reset();
      for (int64_t i = 0; i + 1 < set_.window_tokens; ++i) {
        if (session.out_of_memory()) {
          fail(ErrorKind::Watchdog, "memory has run out: start again with a smaller --memory");
        }
        try {
          session.decode(open.tokens[static_cast<size_t>(i)]);
          if (i >= first_scored(set_.window_tokens)) take(&open, i, session.logits());
        } catch (const Error& error) {
          if (error.kind() != ErrorKind::Numeric) throw;
          find_bad_layer(window);
          throw;
        }
      }
      end(open);
      report(began, progress);
    }
  }

  // Throws naming the first layer and position of something that is not finite, if there is any.
  void find_bad_layer(uint64_t window) {
    const std::string found = engine::find_not_finite(runtime_, corpus_.window(window));
    if (!found.empty()) fail(ErrorKind::Numeric, "window {}, {}", window, found);
  }

  engine::Runtime& runtime_;
  const surgery::Corpus& corpus_;
  const EvalOptions& options_;
  ScoreSet set_;
  std::vector<uint64_t> todo_;
  size_t n_todo_ = 0;  // with those that were there already
  std::unique_ptr<BaseWriter> writer_;
  uint64_t row_bytes_ = 0;
  std::vector<std::byte> rows_;  // of the window that is being scored, for the writer
  EvalProgress state_;
  double sum_nll_ = 0, sum_kld_ = 0;
};

}  // namespace

void prepare(engine::RuntimeOptions* options, EvalMode mode, int64_t window,
             std::optional<BaseRows::Form> written, const BaseReader* base) {
  options->n_ctx = window;
  options->windows = mode == EvalMode::Batch;
  if (options->windows && options->prompt_chunk != 0 && options->prompt_chunk < window) {
    fail(ErrorKind::Usage,
         "--prompt-chunk {} is less than a window of {} tokens: windows are evaluated whole",
         options->prompt_chunk, window);
  }
  // Prompts are not evaluated in steps; the least scratch will do.
  if (!options->windows && options->prompt_chunk == 0) options->prompt_chunk = 32;
  const gguf::Model file = gguf::Model::open(options->model_path, {.allow_missing_experts = true});
  const gguf::Tensor* embedding = file.find("token_embd.weight");
  BaseHeader header;
  header.n_vocab = embedding == nullptr ? 0 : static_cast<int64_t>(embedding->ne[1]);
  header.window_tokens = window;
  options->caller_bytes += engine::Windows::buffer_bytes(std::max<int64_t>(1, header.n_vocab));
  if (written) {
    header.form = *written;
    options->caller_bytes += header.window_bytes();
  }
  if (base != nullptr) options->caller_bytes += base->header().window_bytes();
}

void check_repeatable(const engine::Runtime& runtime, uint32_t n_shards) {
  const experts::MoceOptions& moce = runtime.options().stream.moce;
  if (!moce.on()) return;
  if (moce.residency != experts::MoceResidency::Epoch) {
    fail(ErrorKind::Usage,
         "what cache-aware routing costs can be measured again only with --moce-residency epoch");
  }
  if (n_shards > 1) {
    fail(ErrorKind::Usage,
         "cache-aware routing goes on from what came before: a shard of a text says nothing about "
         "a run over all of it. Leave out --shard, or --moce");
  }
}

ScoreSet evaluate(engine::Runtime& runtime, const surgery::Corpus& corpus,
                  const EvalOptions& options,
                  const std::function<void(const EvalProgress&)>& progress,
                  const std::function<bool()>& stop) {
  return Evaluation(runtime, corpus, options).run(progress, stop);
}

}  // namespace penstock::measure
