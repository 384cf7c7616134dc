// A model that is ready to run: files checked, memory planned and taken, experts streaming.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/thread_pool.h"
#include "engine/sampler.h"
#include "experts/expert_source.h"
#include "experts/options.h"
#include "experts/plan.h"
#include "experts/row_store.h"
#include "experts/stream.h"
#include "models/model.h"
#include "text/tokenizer.h"

namespace penstock::engine {

struct RuntimeOptions {
  std::string model_path;
  std::string ple_path;  // a separate file with the n-gram table; empty: in the model file
  quant::Precision precision = quant::Precision::Fast;
  int threads = 0;       // 0: one per physical performance core
  int64_t n_ctx = 0;     // 0: 4096, or what the model was trained for if that is less
  int prompt_chunk = 0;  // 0: the largest of 512, 256, 128, 64, 32 with which the plan fits
  std::optional<models::KvType> kv;  // default: f16, or f32 with Precision::Exact
  models::DenseMode dense = models::DenseMode::Copy;
  std::optional<uint64_t> memory;       // bytes; default: what is available
  std::optional<uint64_t> arena_slots;  // instead of what the memory allows
  uint64_t caller_bytes = 0;            // what the caller needs beside the model, for the plan
  experts::StreamOptions stream{.read_ahead = experts::ReadAhead::Auto};
};

// What happened while opening, each phase on its own.
struct LoadReport {
  double open_s = 0;   // headers, tokenizer, plan
  double dense_s = 0;  // dense weights
  double arena_s = 0;  // mapping and faulting the arena
  uint64_t dense_bytes = 0;
  uint64_t arena_huge_bytes = 0;  // of the arena, on huge pages, as measured
};

class Runtime {
 public:
  using Progress = std::function<void(std::string_view phase, uint64_t done, uint64_t total)>;

  // Throws Error(Plan) before anything large is taken when the memory does not suffice.
  static std::unique_ptr<Runtime> open(const RuntimeOptions& options, const Progress& progress);
  ~Runtime();

  const RuntimeOptions& options() const noexcept { return options_; }  // as in force
  const gguf::Model& file() const noexcept { return *file_; }
  const text::Tokenizer& tokenizer() const;  // throws Error(Unsupported) if the file has none
  bool has_tokenizer() const noexcept { return tokenizer_ != nullptr; }
  models::Model& model() noexcept { return *model_; }
  const models::Info& info() const noexcept { return model_->info(); }
  experts::Stream& stream() noexcept { return *stream_; }
  const experts::Stream& stream() const noexcept { return *stream_; }
  const experts::RowStore* rows() const noexcept { return rows_.get(); }
  const experts::ExpertSource& source() const noexcept { return source_; }
  const experts::Plan& plan() const noexcept { return plan_; }
  const LoadReport& load() const noexcept { return load_; }
  // What the file recommends (general.sampling.*), else temperature 0.7, top-k 20, top-p 0.95.
  SamplerOptions default_sampling() const;

  // One conversation at a time: sessions take the state and give it back.
  models::State& state() noexcept { return *state_; }

  // All bytes asked of the disk after loading, by reason; the n-gram rows included.
  experts::Counters counters() const;

 private:
  explicit Runtime(const RuntimeOptions& options) : options_(options) {}
  void load_all(const Progress& progress);
  experts::Plan plan_memory(uint64_t taken);

  RuntimeOptions options_;
  std::shared_ptr<const gguf::Model> file_;
  std::shared_ptr<const gguf::Model> table_file_;
  std::unique_ptr<text::Tokenizer> tokenizer_;
  std::string tokenizer_error_;
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<models::Model> model_;
  std::unique_ptr<models::State> state_;
  std::unique_ptr<experts::RowStore> rows_;
  experts::ExpertSource source_;
  std::unique_ptr<experts::Stream> stream_;
  experts::Plan plan_;
  LoadReport load_;
};

}  // namespace penstock::engine
