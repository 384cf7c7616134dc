// One replay of a trace (spec/streaming.md §K): the engine's residency, its cache-aware router and
// its ranking of reads ahead, driven by what a trace says was selected. With the run's own policy,
// arena and profile and nothing read ahead the counters are those of the run, all of them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "experts/moce.h"
#include "experts/residency.h"
#include "measure/sim_setting.h"
#include "measure/sim_trace.h"

namespace penstock::measure {

class Replay {
 public:
  // `shares`: of a profile, by layer and expert; may be empty. `cost` may be null; all of them must
  // outlive the replay.
  Replay(const TraceModel& model, const experts::ArenaShape& shape, const SimSetting& setting,
         std::span<const float> shares, const SimCost* cost);

  // The next chunk of the trace. Throws Error(Format) for records that no run writes.
  void run(const TraceChunk& chunk);
  SimCounts counts() const;

 private:
  struct Guess {
    int32_t layer;
    int32_t expert;
  };
  struct InFlight {
    int32_t slot;
    double done_s;
  };
  struct Kept {
    int32_t slot;
    int32_t layer;
  };
  struct Step {
    experts::UseCounts uses;
    uint64_t expected = 0;
    bool begun = false;
  };

  void fill();
  void decode(const TraceEvent& event, const TraceChunk& chunk);
  void open_layer(const TraceEvent& event, int n_used);
  std::span<const uint64_t> routing_bits(int index) const noexcept;
  std::span<const int32_t> selection(const TraceEvent& event, const TraceChunk& chunk);
  void decode_one(std::span<const int32_t> ids);
  int32_t take_slot(int32_t expert);
  void classify(std::span<const int32_t> ids);
  void read_missing();
  void compute(size_t n_missing, size_t n_hits);
  void prompt(const TraceEvent& event, const TraceChunk& chunk);
  void admit(std::span<const uint32_t> uses);
  void step_end(int rows);
  void turn_end();
  bool ready(int32_t slot) const noexcept {
    return residency_.slot(slot).state == experts::SlotState::Ready;
  }
  // sim_ahead.cpp: what is read before it is asked for, on a clock of its own.
  void predicted(const TraceEvent& event, const TraceChunk& chunk);
  void read_guesses();
  void land(double until_s);
  void keep_ahead(int32_t slot);
  void release_ahead(int upto);
  void drop_guesses(int first, int last);
  void settle_for_prompt();
  void guess_first_layer();
  int width_of(int distance, int n_used) const noexcept;
  int reads_of(int distance) const noexcept;
  int last_layer() const noexcept { return static_cast<int>(model_.geometry.layers.size()) - 1; }

  const TraceModel& model_;
  const experts::ArenaShape shape_;
  const SimSetting setting_;
  const SimCost* cost_;
  experts::Residency residency_;
  std::optional<experts::CacheRouter> router_;
  std::span<const float> shares_;
  SimCounts counts_;
  Step step_;
  uint64_t clock_ = 0;
  int layer_ = 0;
  int since_halving_ = 0;
  uint64_t turn_tokens_ = 0;
  std::vector<uint64_t> reads_;  // by layer, in decode

  // The current layer.
  std::vector<uint64_t> seen_;  // by expert: the clock when it was last selected
  std::vector<int32_t> ids_, pending_, held_, read_, by_use_;
  std::vector<uint8_t> admitted_;
  std::vector<float> probabilities_, weights_;
  double late_until_s_ = 0;  // when the last read ahead that this layer waits for is there

  // The clock of reads ahead, in seconds. Without a cost every guess arrives before its layer.
  double now_s_ = 0;
  double disk_free_s_ = 0;
  double guesses_from_s_ = 0;           // when the current layer's demand is read
  double dense_s_ = 0;                  // computing of one layer beside its experts
  double shared_s_ = 0;                 // of it, while reads run
  std::vector<double> use_s_, read_s_;  // by layer: computing with one expert, reading one
  std::vector<Guess> guesses_;
  std::vector<InFlight> in_flight_;
  std::vector<Kept> kept_;
  std::vector<uint64_t> read_for_step_;  // by slot
  std::vector<int32_t> previous_, ranked_, row_ranked_;
  uint64_t step_clock_ = 0, last_step_clock_ = 0;
};

}  // namespace penstock::measure
