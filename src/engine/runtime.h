// A model that is ready to run: files checked, memory planned and taken, experts streaming.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/thread_pool.h"
#include "engine/opened_model.h"
#include "engine/sampler.h"
#include "experts/row_store.h"
#include "experts/stream.h"
#include "text/tokenizer.h"

namespace penstock::engine {

// What happened while opening, each phase on its own.
struct LoadReport {
  double open_s = 0;   // headers, tokenizer, plan
  double dense_s = 0;  // dense weights
  double arena_s = 0;  // mapping and faulting the arena
  uint64_t dense_bytes = 0;
  models::DenseReport dense;      // what is held of the dense weights, and locked
  uint64_t arena_huge_bytes = 0;  // of the arena, on huge pages, as measured
  experts::FillReport fill;       // a phase of its own: reading what a profile counts most
};

class Runtime {
 public:
  using Progress = std::function<void(std::string_view phase, uint64_t done, uint64_t total)>;

  // Throws Error(Plan) before anything large is taken when the memory does not suffice.
  static std::unique_ptr<Runtime> open(const RuntimeOptions& options, const Progress& progress);
  ~Runtime();

  const RuntimeOptions& options() const noexcept { return opened_.options; }  // in force
  bool io_automatic() const noexcept { return opened_.io_automatic; }
  const gguf::Model& file() const noexcept { return *opened_.file; }
  const text::Tokenizer& tokenizer() const;  // throws Error(Unsupported) if the file has none
  bool has_tokenizer() const noexcept { return tokenizer_ != nullptr; }
  models::Model& model() noexcept { return *opened_.model; }
  ThreadPool& pool() noexcept { return *pool_; }  // between two steps of the model it is free
  const models::Info& info() const noexcept { return opened_.model->info(); }
  experts::Stream& stream() noexcept { return *stream_; }
  experts::Watchdog* watchdog() const noexcept { return watchdog_.get(); }  // null: switched off
  // Between two steps: what the watchdog saw is acted upon by the thread that owns residency.
  void heed_watchdog();
  // Memory has run out: what is running ends after its step, nothing new begins.
  bool out_of_memory() const noexcept;
  const experts::Stream& stream() const noexcept { return *stream_; }
  const experts::RowStore* rows() const noexcept { return rows_.get(); }
  const experts::ExpertSource& source() const noexcept { return opened_.source; }
  const experts::Plan& plan() const noexcept { return plan_; }
  const experts::Profile* profile() const noexcept {  // null: none
    return opened_.profile ? &*opened_.profile : nullptr;
  }
  const std::string& profile_path() const noexcept { return opened_.profile_path; }
  const LoadReport& load() const noexcept { return load_; }
  // What the file recommends (general.sampling.*), else temperature 0.7, top-k 20, top-p 0.95.
  SamplerOptions default_sampling() const;

  // One conversation at a time: sessions take the state and give it back.
  models::State& state() noexcept { return *states_.front(); }
  // With RuntimeOptions::windows: as many as run together.
  std::span<const std::unique_ptr<models::State>> states() const noexcept { return states_; }

  // All bytes asked of the disk after loading, by reason; the n-gram rows included.
  experts::Counters counters() const;

 private:
  Runtime() = default;
  void load_all(const RuntimeOptions& options, const Progress& progress);
  void load_tokenizer();
  void open_rows();
  void lock_dense();

  std::unique_ptr<ThreadPool> pool_;  // the model computes on it
  OpenedModel opened_;
  std::unique_ptr<text::Tokenizer> tokenizer_;
  std::string tokenizer_error_;
  std::vector<std::unique_ptr<models::State>> states_;
  std::unique_ptr<experts::RowStore> rows_;
  std::unique_ptr<experts::Stream> stream_;
  experts::Plan plan_;
  LoadReport load_;
  std::unique_ptr<experts::Watchdog> watchdog_;
};

}  // namespace penstock::engine
