#include "experts/route.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "experts/stream.h"

namespace penstock::experts {

bool route_row(std::span<const float> logits, const RouteRule& rule, float* p, int32_t* ids,
               float* weights) noexcept {
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

  // The list stays sorted; an equal later probability goes behind, so ties fall to the lower index.
  int listed = 0;
  for (size_t e = 0; e < n; ++e) {
    if (listed == rule.n_used && !(p[e] > p[ids[listed - 1]])) continue;
    int at = listed < rule.n_used ? listed++ : listed - 1;
    for (; at > 0 && p[e] > p[ids[at - 1]]; --at) ids[at] = ids[at - 1];
    ids[at] = static_cast<int32_t>(e);
  }

  float selected = 1.0f;
  if (rule.renormalise) {
    selected = 0.0f;
    for (int i = 0; i < rule.n_used; ++i) selected += p[ids[i]];
  }
  for (int i = 0; i < rule.n_used; ++i) weights[i] = p[ids[i]] / selected * rule.scale;
  return true;
}

}  // namespace penstock::experts
