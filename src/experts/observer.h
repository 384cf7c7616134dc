// Whoever wants to see what a stream selects: profiles, traces, tests. All calls come from the
// scheduling thread, in the order in which things happen.
#pragma once

#include <cstdint>
#include <span>

namespace penstock::experts {

enum class Phase { Decode, Prompt };

class RouteObserver {
 public:
  virtual ~RouteObserver() = default;
  // A row of a begin(): the ids in rank order, the logits of all experts of the layer.
  virtual void selected(int index, int row, Phase phase, std::span<const int32_t> ids,
                        std::span<const float> logits) = 0;
  // What a predict() said about a layer `distance` layers after the one begun.
  virtual void predicted(int index, int distance, int row, std::span<const float> logits) {
    static_cast<void>(index), static_cast<void>(distance), static_cast<void>(row);
    static_cast<void>(logits);
  }
  virtual void step_ended(int rows) { static_cast<void>(rows); }
  virtual void turn_ended() {}
};

}  // namespace penstock::experts
