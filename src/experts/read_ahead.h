// Read-ahead (spec/streaming.md §E): experts that a later layer will probably select are read
// before its router has spoken. Here is what has no state of the stream: ranking of the candidates,
// the measures, and the choice of auto mode. Nothing here can change a logit.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "experts/counters.h"

namespace penstock::experts {

inline constexpr int kMostAhead = 2;  // layers

// How many candidates of a layer `distance` layers ahead are looked at, and how many of them may be
// read: width K + 2 and 8 reads, then K / 2 and 2 reads (§E.2; §E.3 has 4 reads where 8 were found
// to be better, docs/decisions/011-read-ahead.md).
int ahead_width(int distance, int n_used) noexcept;
int ahead_reads(int distance) noexcept;

// How many experts of so many bytes may be being read ahead at once: 4.5 MB of them, but one at
// least and at most half of `--io-depth`. A demand has to wait for them
// (docs/decisions/011-read-ahead.md).
int ahead_at_once(uint64_t expert_bytes, int depth) noexcept;

// The `width` experts of the largest logits, ties to the lower index, NaN last (§E.2 without
// cache-aware routing; with it CacheRouter::rank()).
void rank_ahead(std::span<const float> logits, int width, std::vector<int32_t>* out);

// How good the predictions are (§E.4), from steps of one row. In probe mode nothing is read ahead,
// so `missing` are all misses, and two controls are measured too: `fresh` ranks a layer's own
// logits and must find its selection, `prev` takes the previous token's selection.
class AheadMeter {
 public:
  AheadMeter(size_t n_layers, size_t most_used);

  // `ranked`: by rank; at least K of them. The first `width` are those that could be read.
  void predicted(int layer, int distance, std::span<const int32_t> ranked, int width);
  // The layer's router has spoken: `missing[i]` says whether ids[i] had to be read for this layer
  // or was read ahead for it. Predictions made for it before are used up.
  void routed(int layer, std::span<const int32_t> ids, std::span<const uint8_t> missing);
  void fresh(std::span<const int32_t> ids, std::span<const int32_t> ranked);
  // An expert of the layer was read ahead, or what was is used for the first time.
  void issued(int layer, int distance) noexcept { ++of(layer, distance).issued; }
  void used(int layer, int distance, bool late) noexcept;
  // The selection of the layer's last routed(); empty before the first.
  std::span<const int32_t> previous(int layer) const noexcept;

  std::span<const AheadMeasures> by_layer(int distance) const noexcept {
    return measures_[static_cast<size_t>(distance - 1)];
  }
  AheadMeasures total(int distance) const noexcept;
  const AheadMeasures& fresh() const noexcept { return fresh_; }
  const AheadMeasures& prev() const noexcept { return prev_; }

  static uint64_t memory_bytes(size_t n_layers, size_t most_used) noexcept;

 private:
  struct Prediction {
    int count = 0;  // 0: none
    int width = 0;
  };
  AheadMeasures& of(int layer, int distance) noexcept {
    return measures_[static_cast<size_t>(distance - 1)][static_cast<size_t>(layer)];
  }
  size_t at(int layer) const noexcept { return static_cast<size_t>(layer) * most_used_; }

  size_t most_used_;
  size_t most_ranked_;
  std::array<std::vector<AheadMeasures>, kMostAhead> measures_;
  std::array<std::vector<Prediction>, kMostAhead> predictions_;
  std::array<std::vector<int32_t>, kMostAhead> ranked_;
  std::vector<int32_t> previous_;
  std::vector<int32_t> n_previous_;
  AheadMeasures fresh_, prev_;
};

// `--read-ahead auto`: windows with and without read-ahead take turns during a trial; whichever
// gave more tokens per second stays for a term, and so on. The first trial comes early and is
// short, so that it costs little where it does not help; what it decides holds for a short term
// only.
class AheadGovernor {
 public:
  struct Lengths {  // tokens
    int window, trial, term;
  };
  static constexpr int kWarmUp = 16;
  static constexpr Lengths kFirst{8, 64, 256};
  static constexpr Lengths kLater{32, 256, 2048};

  bool active() const noexcept;
  // A decode step is over: so many rows, time from its first layer to its end.
  void step(int rows, uint64_t wall_ns) noexcept;

  int trials() const noexcept { return trials_; }
  // Of the last trial, ns per token; 0 before it.
  double with_ns() const noexcept { return with_ns_; }
  double without_ns() const noexcept { return without_ns_; }

 private:
  bool window_is_on() const noexcept {
    return tokens_ / (trials_ == 0 ? kFirst : kLater).window % 2 == 0;
  }
  int stage_length() const noexcept;

  enum class Stage { WarmUp, Trial, Term } stage_ = Stage::WarmUp;
  bool helps_ = true;
  int tokens_ = 0;                         // of the stage
  std::array<uint64_t, 2> ns_{}, rows_{};  // without, with
  int trials_ = 0;
  double with_ns_ = 0, without_ns_ = 0;
};

}  // namespace penstock::experts
