// The options that every command shares which runs a model, and what they mean.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "engine/runtime.h"
#include "text/token_ids.h"

namespace penstock::cli {

class RuntimeFlags {
 public:
  void add_to(CLI::App& app);
  void set_model(const std::string& path) { model_ = path; }
  // The flags as options; the sample model when none was named. Throws Error(Usage).
  engine::RuntimeOptions options() const;

 private:
  void add_dense(CLI::App& app);
  void add_moce(CLI::App& app);

  std::string model_, ple_,
      precision_ = "fast", kv_ = "auto", io_ = "auto", memory_ = "auto", dense_ = "copy",
      evict_ = "lfu", read_ahead_ = "auto", predictor_ = "auto", pack_ = "auto", verify_ = "none",
      profile_ = "auto", fill_ = "warm", moce_ = "off", moce_residency_ = "live", lock_ = "auto";
  std::vector<std::string> dense_convert_;
  bool require_lock_ = false;
  int watchdog_ms_ = 100;
  std::string swap_limit_;
  std::optional<int> half_life_;
  double hot_cap_ = 100 * experts::kDefaultHotShare;
  experts::MoceOptions moce_options_;
  int threads_ = 0;
  int64_t ctx_ = 0;
  int prompt_chunk_ = 0;
  int64_t arena_slots_ = 0;
  int depth_ = 8;
  std::string huge_pages_ = "auto";
  bool alias_ = false;
  bool pack_unchecked_ = false;
};

// Progress of opening a runtime, on stderr.
engine::Runtime::Progress progress_line();

// Opens the runtime with progress on stderr.
std::unique_ptr<engine::Runtime> open_runtime(const RuntimeFlags& flags);

// Throws Error(Io) when one of the files was written to or cut while it was in use.
void check_unchanged(const engine::Runtime& runtime);

// models/ beside the program or two folders above it; throws Error(Usage) when it is not there.
std::string sample_model_path();

}  // namespace penstock::cli
