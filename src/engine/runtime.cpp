#include "engine/runtime.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/machine.h"
#include "text/tokenizer_gguf.h"

namespace penstock::engine {
Runtime::~Runtime() = default;

const text::Tokenizer& Runtime::tokenizer() const {
  if (!tokenizer_) {
    fail(ErrorKind::Unsupported,
         "{} has no tokenizer that can be used ({}): give token ids with --ids",
         opened_.options.model_path, tokenizer_error_);
  }
  return *tokenizer_;
}

std::unique_ptr<Runtime> Runtime::open(const RuntimeOptions& options, const Progress& progress) {
  std::unique_ptr<Runtime> runtime(new Runtime());
  runtime->load_all(options, progress);
  return runtime;
}

void Runtime::load_tokenizer() {
  try {
    tokenizer_ = std::make_unique<text::Tokenizer>(text::load_tokenizer(file().metadata()));
  } catch (const Error& error) {
    tokenizer_error_ = error.what();  // token ids can still be run
  }
}

void Runtime::open_rows() {
  const models::TableGeometry* table = model().table();
  if (table == nullptr) return;
  const std::array<uint64_t, 1> probe = {table->offset};
  rows_ = std::make_unique<experts::RowStore>(
      experts::StreamFiles::open({table->path}, opened_.row_store_options().io, probe),
      *opened_.row_table(), opened_.row_store_options());
  model().attach_table(rows_.get());
}

void Runtime::lock_dense() {
  const RuntimeOptions& options = opened_.options;
  if (options.lock_dense) model().lock_dense(options.memory_locker);
  load_.dense = model().dense();
  const std::string shortfall = models::lock_shortfall(load_.dense);
  if (shortfall.empty()) return;
  if (options.require_lock) fail(ErrorKind::Io, "{}, without --require-lock", shortfall);
  log::warn("{}", shortfall);
}

void Runtime::load_all(const RuntimeOptions& options, const Progress& progress) {
  const auto report = [&](std::string_view phase, uint64_t done, uint64_t total) {
    if (progress) progress(phase, done, total);
  };
  int64_t started = now_ns();
  opened_ = open_model(options);
  load_tokenizer();
  pool_ = std::make_unique<ThreadPool>(opened_.options.threads);
  open_rows();
  MemoryPlan planned = opened_.plan(memory_facts(), 0);
  if (opened_.choose_mapping(planned)) planned = opened_.plan(memory_facts(), 0);
  if (!planned.outcome.fits()) experts::refuse(planned.outcome);  // before anything large is taken
  load_.open_s = seconds_since(started);

  started = now_ns();
  const uint64_t before = footprint().total();
  model().load(*pool_, options.dense,
               [&](uint64_t done, uint64_t total) { report("dense weights", done, total); });
  if (options.dense == models::DenseMode::Copy) {
    // Rows of the embedding are gathered from the mapping one by one: without this advice the
    // kernel reads megabytes around each.
    if (const gguf::Tensor* rows = file().find("token_embd.weight")) {
      file().advise(*rows, MADV_RANDOM);
    }
  }
  for (int64_t i = 0; i < opened_.n_states(planned.prompt_chunk); ++i) {
    states_.push_back(
        model().new_state({.n_ctx = opened_.options.n_ctx, .kv = *opened_.options.kv}));
  }
  load_.dense_s = seconds_since(started);
  lock_dense();
  load_.dense_bytes = planned.outcome.plan.terms.dense;

  // The arena is sized once more from what is available now that the rest has its memory: sizing it
  // from the first look alone over-asks (spec/streaming.md §C.1).
  started = now_ns();
  const uint64_t after = footprint().total();
  planned = opened_.plan(memory_facts(), after > before ? after - before : 0);
  if (!planned.outcome.fits()) experts::refuse(planned.outcome);
  opened_.options.prompt_chunk = planned.prompt_chunk;
  states_.resize(
      std::min(states_.size(), static_cast<size_t>(opened_.n_states(planned.prompt_chunk))));
  plan_ = std::move(planned.outcome.plan);
  stream_ =
      experts::make_stream(source().geometry, source().files, plan_.shape, opened_.options.stream);
  load_.arena_s = seconds_since(started);
  load_.arena_huge_bytes = stream_->arena_huge_bytes();
  if (options.watchdog_ms > 0) {
    experts::WatchdogPolicy policy = experts::watchdog_policy(plan_);
    policy.period_ms = options.watchdog_ms;
    policy.swap_limit = options.swap_limit;
    watchdog_ = std::make_unique<experts::Watchdog>(
        policy, options.memory_sampler ? options.memory_sampler : experts::machine_sampler());
  }
  if (const experts::Profile* known = profile()) {
    stream_->set_prior(known->shares());
    load_.fill = stream_->fill(
        [&](uint64_t done, uint64_t total) { report("warm fill, experts", done, total); });
  }
}

void Runtime::heed_watchdog() {
  if (watchdog_ == nullptr) return;
  stream_->allow_speculation(watchdog_->pressure() == experts::Pressure::None);
  if (!watchdog_->take_shrink()) return;
  const uint64_t bytes = stream_->shrink(watchdog_->report().policy.shrink_share);
  watchdog_->gave_back(bytes);
  log::warn("{} of the arena given back, {} slots are left", format_bytes(bytes),
            stream_->shape().slots());
}

bool Runtime::out_of_memory() const noexcept {
  return watchdog_ != nullptr && watchdog_->pressure() == experts::Pressure::Abort;
}

SamplerOptions Runtime::default_sampling() const {
  constexpr double kTemperature = 0.7;
  constexpr int64_t kTopK = 20;
  constexpr double kTopP = 0.95;
  const gguf::Metadata& metadata = file().metadata();
  SamplerOptions sampling;
  sampling.temperature =
      static_cast<float>(metadata.get_f64("general.sampling.temp", kTemperature));
  sampling.top_k = static_cast<int>(metadata.get_i64("general.sampling.top_k", kTopK));
  sampling.top_p = static_cast<float>(metadata.get_f64("general.sampling.top_p", kTopP));
  return sampling;
}

experts::Counters Runtime::counters() const {
  experts::Counters counters = stream_->counters();
  if (rows_) counters.ple = rows_->counts();
  return counters;
}

}  // namespace penstock::engine
