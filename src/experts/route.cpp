#include "experts/route.h"

#include <algorithm>
#include <cmath>

#include "experts/stream.h"

namespace penstock::experts {

bool route_probabilities(std::span<const float> logits, float* p) noexcept {
  const size_t n = logits.size();
  float maximum = logits[0];
  for (size_t e = 1; e < n; ++e) maximum = std::max(maximum, logits[e]);
  float sum = 0.0f;
  for (size_t e = 0; e < n; ++e) {
    p[e] = std::exp(logits[e] - maximum);
    sum += p[e];
  }
  if (!std::isfinite(sum)) return false;
  for (size_t e = 0; e < n; ++e) p[e] /= sum;
  return true;
}

void select_best(std::span<const float> logits, const float* p, int n, int32_t* ids) noexcept {
  int listed = 0;
  for (int32_t e = 0; static_cast<size_t>(e) < logits.size(); ++e) {
    insert_ranked(e, n, ids, &listed, 0,
                  [&](int32_t a, int32_t b) { return more_probable(logits, p, a, b); });
  }
}

void route_weights(const float* p, const RouteRule& rule, const int32_t* ids,
                   float* weights) noexcept {
  float selected = 1.0f;
  if (rule.renormalise) {
    selected = 0.0f;
    for (int i = 0; i < rule.n_used; ++i) selected += p[ids[i]];
  }
  for (int i = 0; i < rule.n_used; ++i) weights[i] = p[ids[i]] / selected * rule.scale;
}

bool route_row(std::span<const float> logits, const RouteRule& rule, float* p, int32_t* ids,
               float* weights) noexcept {
  if (!route_probabilities(logits, p)) return false;
  select_best(logits, p, rule.n_used, ids);
  route_weights(p, rule, ids, weights);
  return true;
}

}  // namespace penstock::experts
