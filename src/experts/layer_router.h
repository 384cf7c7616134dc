// What every Stream does first with a layer: from logits to a selection, shown to the observers.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "experts/stream.h"

namespace penstock::experts {

class LayerRouter {
 public:
  explicit LayerRouter(const Geometry& geometry);

  void observe(RouteObserver* observer) { observers_.push_back(observer); }
  std::span<RouteObserver* const> observers() const noexcept { return observers_; }

  // Throws Error(Internal) for a layer, a number of rows or a rule that cannot be.
  void check(int index, int rows, const RouteRule& rule) const;
  // Cache-aware with `cache`, which then looks at `resident`. Valid until the next call. Throws
  // Error(Numeric) naming the layer when the logits give no probabilities.
  Routing route(int index, const float* logits, int rows, const RouteRule& rule, Phase phase,
                CacheRouter* cache, std::span<const uint64_t> resident);
  std::span<const int32_t> ids() const noexcept { return ids_; }

 private:
  const Geometry& geometry_;
  std::vector<RouteObserver*> observers_;
  std::vector<float> probabilities_;
  std::vector<int32_t> ids_;
  std::vector<float> weights_;
};

}  // namespace penstock::experts
