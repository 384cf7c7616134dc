// Carries a campaign out: every run in a process of its own, under the campaign's conditions, with
// a record; the manifest says what became of each, is kept up to date and lets an interrupted
// campaign go on (spec/streaming.md §J.2, docs/bench.md).
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "measure/campaign.h"
#include "measure/record_facts.h"

namespace penstock::measure {

struct BenchOptions {
  std::string folder;      // of records and manifest
  std::string executable;  // of this program
  Producer producer;
  const std::atomic<bool>* interrupted = nullptr;
  std::function<void(const std::string&)> say;  // a line of progress
};

class Bench {
 public:
  // Goes on with an unfinished campaign of the same definition in the folder. Throws Error(Usage)
  // if an unfinished one of another definition lies there; Error(Io, Format) for prompts and
  // models that cannot be read.
  Bench(const Campaign& campaign, const BenchOptions& options);

  // Runs what is still waiting; an arm that fails is recorded and the others go on. Returns the
  // manifest's path, or "" if it was interrupted.
  std::string run();
  const nlohmann::json& manifest() const noexcept { return manifest_; }

 private:
  struct Prompt {
    std::vector<int32_t> ids;
    std::string text, sha256, path;
  };
  struct Outcome {
    std::string state, reason, record;
    nlohmann::json group;  // of the memory group it ran in: limit, peak, oom_kills; else null
  };

  void begin();
  void prepare_prompts();
  bool has_roofline(const char* when) const;
  void measure_roofline(const char* when);
  Outcome run_one(const CampaignRun& run);
  Outcome run_penstock(const CampaignArm& arm, const Prompt& prompt);
  std::string why_not_now() const;  // the start conditions that do not hold; "" if all do
  bool wait_for_conditions(std::string* reason);
  void drop_caches(const CampaignArm& arm) const;
  std::string control_figure(const std::vector<nlohmann::json>& records) const;
  void judge_control();
  void note_compute();
  void save() const;
  std::string line_of(size_t index, const CampaignRun& run, const Outcome& outcome,
                      double seconds) const;
  std::string model_of(const CampaignArm& arm) const;
  uint64_t context_of(const Prompt& prompt) const;
  bool stopped() const { return options_.interrupted != nullptr && *options_.interrupted; }

  const Campaign campaign_;
  const BenchOptions options_;
  std::vector<CampaignRun> schedule_;
  std::vector<Prompt> prompts_;
  std::string unfinished_;
  nlohmann::json manifest_;
};

// Files whose pages in the cache would make a run warm: all shards of the model, packs in its
// folder, and every file that the arm's options or command name. Sorted. Throws as
// gguf::Model::open() does.
std::vector<std::string> files_of(const CampaignArm& arm, const std::string& model);

// What a finished manifest and its records come to, as a table for people: a row per arm and
// prompt with medians and ranges, and what the control says.
std::string bench_table(const nlohmann::json& manifest, const std::string& folder);

}  // namespace penstock::measure
