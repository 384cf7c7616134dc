#include "experts/layer_router.h"

#include "base/error.h"
#include "experts/route.h"
#include "experts/stream_setup.h"

namespace penstock::experts {

LayerRouter::LayerRouter(const Geometry& geometry)
    : geometry_(geometry), probabilities_(most_experts(geometry)) {}

void LayerRouter::check(int index, int rows, const RouteRule& rule) const {
  if (index < 0 || static_cast<size_t>(index) >= geometry_.layers.size() || rows < 1 ||
      rows >= 65536 || rule.n_used != geometry_.layers[static_cast<size_t>(index)].n_used) {
    fail(ErrorKind::Internal, "stream: layer {} begun with {} rows, {} experts used", index, rows,
         rule.n_used);
  }
}

Routing LayerRouter::route(int index, const float* logits, int rows, const RouteRule& rule,
                           Phase phase, CacheRouter* cache, std::span<const uint64_t> resident) {
  const LayerGeometry& layer = geometry_.layers[static_cast<size_t>(index)];
  const auto n_used = static_cast<size_t>(rule.n_used);
  const auto n_expert = static_cast<size_t>(layer.n_expert);
  const size_t n = static_cast<size_t>(rows) * n_used;
  if (ids_.size() < n) {
    ids_.resize(n);
    weights_.resize(n);
  }
  for (size_t row = 0; row < static_cast<size_t>(rows); ++row) {
    int32_t* ids = ids_.data() + row * n_used;
    float* weights = weights_.data() + row * n_used;
    const std::span<const float> z{logits + row * n_expert, n_expert};
    const bool good = cache != nullptr ? cache->route(index, z, resident, rule,
                                                      probabilities_.data(), ids, weights)
                                       : route_row(z, rule, probabilities_.data(), ids, weights);
    if (!good) {
      fail(ErrorKind::Numeric, "the router of layer {} gave values that are not finite",
           layer.layer);
    }
    for (RouteObserver* observer : observers_) {
      observer->selected(index, static_cast<int>(row), phase, {ids, n_used}, z);
    }
  }
  return {{ids_.data(), n}, {weights_.data(), n}};
}

}  // namespace penstock::experts
