// The policy simulator (spec/streaming.md §K, docs/simulator.md): one trace through many settings.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "measure/sim_setting.h"
#include "measure/sim_trace.h"

namespace penstock::measure {

struct SimResult {
  SimSetting setting;
  uint64_t slots = 0;        // in force
  uint64_t arena_bytes = 0;  // of these slots; 0 where their size is not known
  SimCounts counts;
  // Misses of the clairvoyant policy with the same slots and the same start, where it was replayed
  // too and bounds this setting. What is above it is the policy's doing, the rest is the working
  // set's.
  std::optional<uint64_t> bound_misses;
  double token_s = 0;  // estimated; 0 without a cost

  double tokens_per_s() const noexcept { return token_s > 0 ? 1 / token_s : 0; }
};

using SimProgress = std::function<void(uint64_t done, uint64_t total)>;  // bytes of traces

struct SimRequest {
  std::vector<SimSetting> settings = {};
  std::vector<float> shares = {};  // of a profile, by layer and expert; may be empty
  std::optional<SimCost> cost = {};
  int threads = 1;
  SimProgress progress = {};
};

// Replays the trace with every setting, in one pass. Throws Error(Usage) for a setting that the
// trace has no data for, Error(Io), Error(Format) as read_trace() does.
std::vector<SimResult> simulate(const TraceModel& model, const SimRequest& request);

// The share of uses that an arena of this shape would have found in memory: `setting` but for its
// slots. Precondition: the shape is one of the trace's layers.
double replayed_hit_rate(const TraceModel& model, const experts::ArenaShape& shape,
                         const SimSetting& setting, std::span<const float> shares);

// Sums over traces of the same layers, setting by setting.
void add_results(std::vector<SimResult>& sum, const std::vector<SimResult>& other);
// Fills in what follows from the counts: bounds and token times.
void finish_results(std::vector<SimResult>& results, const std::optional<SimCost>& cost);

// How often each expert was used in the trace, as shares of all uses: a profile that is in-sample.
std::vector<float> shares_of_trace(const TraceModel& model);

// `n` sizes from the fewest slots with which a token can run to all experts, evenly by ratio.
std::vector<uint64_t> sweep_slots(const TraceModel& model, int n);

// The point of a rising curve after which more costs much and brings little: the one farthest above
// the line through its ends (V. Satopää et al., "Finding a 'Kneedle' in a Haystack", 2011, without
// its smoothing). Index into the points; nothing for fewer than three or where none is above.
std::optional<size_t> find_knee(std::span<const double> x, std::span<const double> y);

}  // namespace penstock::measure
