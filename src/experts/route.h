// From router logits to a selection (spec/streaming.md §F.1, exact).
#pragma once

#include <cstdint>
#include <span>

namespace penstock::experts {

struct RouteRule;

// p = softmax(logits): maximum subtracted, fp32, summed in index order. The largest n_used are
// selected, ties to the lower index, written in rank order with their weights. p has room for
// logits.size() values; ids and weights for n_used, at most logits.size(). False when the logits
// give no probabilities (NaN, infinity).
bool route_row(std::span<const float> logits, const RouteRule& rule, float* p, int32_t* ids,
               float* weights) noexcept;

}  // namespace penstock::experts
