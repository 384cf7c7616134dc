// From router logits to a selection (spec/streaming.md §F.1, exact), and the steps of it that
// cache-aware routing shares (moce.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace penstock::experts {

struct RouteRule;

// p = softmax(logits): maximum subtracted, fp32, summed in index order. The largest n_used are
// selected, ties to the larger logit (of two that underflowed), then to the lower index, written in
// rank order with their weights. p has room for logits.size() values; ids and weights for n_used,
// at most logits.size(). False when the logits give no probabilities (NaN, infinity).
bool route_row(std::span<const float> logits, const RouteRule& rule, float* p, int32_t* ids,
               float* weights) noexcept;

bool route_probabilities(std::span<const float> logits, float* p) noexcept;
// The n of the largest p, in rank order.
void select_best(std::span<const float> logits, const float* p, int n, int32_t* ids) noexcept;
// p of the selected, renormalised over them if the rule says so, then scaled.
void route_weights(const float* p, const RouteRule& rule, const int32_t* ids,
                   float* weights) noexcept;

// Whether a goes before b: by value, then by logit. Equal ones keep the order of their indices.
inline bool more_probable(std::span<const float> logits, const float* value, int32_t a,
                          int32_t b) noexcept {
  if (value[a] != value[b]) return value[a] > value[b];
  const float za = logits[static_cast<size_t>(a)];
  const float zb = logits[static_cast<size_t>(b)];
  return za != zb ? za > zb : a < b;
}

// Puts e into the list ids[first..n), which is sorted and holds *listed - first entries; the last
// one drops out when the list is full.
template <typename Before>
void insert_ranked(int32_t e, int n, int32_t* ids, int* listed, int first,
                   const Before& before) noexcept {
  if (first == n || (*listed == n && !before(e, ids[n - 1]))) return;
  int at = *listed < n ? (*listed)++ : n - 1;
  for (; at > first && before(e, ids[at - 1]); --at) ids[at] = ids[at - 1];
  ids[at] = e;
}

}  // namespace penstock::experts
