// A model's speed on this machine: measured figures out of the machine file, and what
// experts/predict.h makes of them for a plan.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/machine_file.h"
#include "engine/opened_model.h"
#include "experts/predict.h"

namespace penstock::engine {

ComputeKey compute_key(const RuntimeOptions& options);
DiskKey disk_key(const OpenedModel& opened);

// The weights that one decode token multiplies with, by type.
struct TypeWork {
  gguf::TypeId type{};
  uint64_t dense_bytes = 0;
  uint64_t expert_bytes = 0;  // of the routed experts used
  int64_t n_in = 0;           // row length of the matrices with the most bytes
};
std::vector<TypeWork> token_work(const OpenedModel& opened);

// What is known of this model's speed here. What was not measured is absent, with the reason in
// `missing`.
struct SpeedFigures {
  std::vector<experts::LayerLoad> layers;
  std::optional<DiskFigures> disk;
  std::optional<experts::DecodeCost> decode;
  // Decode was measured with this model; otherwise it is the weights' bytes over the kernels'
  // rates, a floor that leaves attention and all else out.
  bool decode_measured = false;
  int decode_tokens = 0;      // of which the measurement is the median
  double prompt_token_s = 0;  // 0: not measured
  int prompt_tokens = 0;      // in the chunk that was measured
  int64_t compute_time = 0;   // when, in seconds since 1970; of an estimate the oldest rate's
  std::vector<std::string> missing;
};
SpeedFigures speed_figures(const OpenedModel& opened, const MachineFile& file);

struct HitRate {
  double rate = 0;   // 0 to 1
  std::string what;  // where it comes from; empty: one of the range
};

struct SpeedPrediction {
  struct Row {
    HitRate hits;
    experts::DecodePrediction decode;
  };
  std::vector<Row> rows;        // by rising hit rate; empty where a figure is missing
  double break_even_reads = 0;  // per token
  // A whole chunk of a prompt; both absent where a figure is missing. Warm: the arena holds its
  // share of what is touched.
  std::optional<experts::PromptPrediction> prompt_cold, prompt_warm;
};
// For the slots of this plan: the rate of uniformly random routing, a range above it, and `given`.
SpeedPrediction predict_speed(const SpeedFigures& figures, const MemoryPlan& plan,
                              const std::vector<HitRate>& given);

}  // namespace penstock::engine
