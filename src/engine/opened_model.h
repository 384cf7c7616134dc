// A model whose headers were read: what it is, where its experts lie, and what memory it would
// take. Nothing large is read or allocated; Runtime goes on from here, `penstock plan` stops here.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/locked_memory.h"
#include "base/machine.h"
#include "experts/expert_source.h"
#include "experts/options.h"
#include "experts/plan.h"
#include "experts/profile.h"
#include "experts/row_store.h"
#include "experts/watchdog.h"
#include "models/model.h"

namespace penstock::engine {

struct RuntimeOptions {
  std::string model_path;
  std::string ple_path;  // a separate file with the n-gram table; empty: in the model file
  // An expert profile; "auto": MODEL.profile.json beside the model if it was made from this model;
  // "none".
  std::string profile = "auto";
  quant::Precision precision = quant::Precision::Fast;
  int threads = 0;    // 0: one per physical performance core
  int64_t n_ctx = 0;  // 0: 4096, or what the model was trained for if that is less
  // 0: the largest of 512, 256, 128, 64, 32 with which the plan fits; where experts are streamed up
  // to 4096, as long as that takes little from the arena.
  int prompt_chunk = 0;
  // Independent windows of n_ctx tokens instead of a conversation (engine/windows.h): a prompt
  // chunk is then a number of whole windows, each with a state of its own.
  bool windows = false;
  std::optional<models::KvType> kv;  // default: f16, or f32 with Precision::Exact
  models::DenseMode dense = models::DenseMode::Copy;
  std::vector<models::ConvertRule> dense_convert = {};  // lossy
  bool lock_dense = true;                               // a shortfall is a warning
  bool require_lock = false;                            // with lock_dense: it is an Error(Io)
  MemoryLocker memory_locker = lock_memory;             // or another, for tests
  std::optional<uint64_t> memory;                       // bytes; default: what is available
  std::optional<uint64_t> arena_slots;                  // instead of what the memory allows
  uint64_t caller_bytes = 0;  // what the caller needs beside the model, for the plan
  int64_t max_tokens = 0;     // that will be generated, for `--io auto`; 0: nobody knows
  int watchdog_ms = 100;      // how often memory is looked at; 0: never
  uint64_t swap_limit = experts::WatchdogPolicy{}.swap_limit;
  experts::Watchdog::Sampler memory_sampler = {};  // in place of the machine's, for tests
  experts::StreamOptions stream{.read_ahead = experts::ReadAhead::Auto};
};

struct MemoryPlan {
  experts::PlanRequest request;
  experts::PlanOutcome outcome;
  int prompt_chunk = 0;  // the one in force: as asked for, or the largest that fits
};

struct OpenedModel {
  RuntimeOptions options;  // context, KV type and threads decided; the prompt chunk as asked for
  std::shared_ptr<const gguf::Model> file;
  std::shared_ptr<const gguf::Model> table_file;  // null: no separate n-gram table
  std::unique_ptr<models::Model> model;
  experts::ExpertSource source;
  std::optional<experts::Profile> profile;
  std::string profile_path;

  bool io_automatic = false;  // the mapping was chosen by `--io auto`

  // `--io auto`: takes the mapping instead of an arena where that pays (experts::mapping_pays), and
  // nothing that was asked for needs an arena. True when it did: the plan is another one then.
  bool choose_mapping(const MemoryPlan& plan);

  // The n-gram table as the row store wants it; none where the model has no such table.
  std::optional<experts::RowTable> row_table() const;
  experts::RowStoreOptions row_store_options() const;
  // States that a prompt chunk of so many tokens needs.
  int64_t n_states(int prompt_chunk) const noexcept;

  // The plan on a machine with these facts, of which `taken` bytes are this model's already. Tries
  // smaller prompt chunks while none was asked for; a refusal is that of the last one tried.
  MemoryPlan plan(const MemoryFacts& machine, uint64_t taken) const;
};

// Whether the long prompt chunk of a plan is worth the memory that its scratch takes from the
// arena.
bool long_chunk_pays(const experts::Plan& plan) noexcept;

// MODEL.profile.json beside MODEL.gguf: where `auto` looks.
std::string default_profile_path(const gguf::Model& model);

// Throws Error(Io, Format, Unsupported, Usage) as gguf::Model, models::open and
// experts::open_expert_source do.
OpenedModel open_model(const RuntimeOptions& options);

}  // namespace penstock::engine
