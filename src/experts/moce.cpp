#include "experts/moce.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>

#include "experts/read_ahead.h"
#include "experts/route.h"
#include "experts/stream.h"
#include "experts/stream_setup.h"

namespace penstock::experts {
namespace {

constexpr int kGuardTokens = 256;

bool has(std::span<const uint64_t> bits, int32_t e) noexcept {
  return (bits[static_cast<size_t>(e) / 64] >> (e % 64) & 1) != 0;
}

bool among(const int32_t* ids, int n, int32_t e) noexcept {
  return std::find(ids, ids + n, e) != ids + n;
}

// How many of the most probable experts make up the window. They, and `width` experts at least,
// come first in `order`.
size_t sort_window(std::span<const float> logits, const float* p, int n_used,
                   const CacheRule& cache, int width, int32_t* order) noexcept {
  const size_t n = logits.size();
  const auto least = static_cast<size_t>(n_used);
  std::iota(order, order + n, 0);
  const auto before = [&](int32_t a, int32_t b) { return more_probable(logits, p, a, b); };
  if (cache.mode == Moce::MaxRank) {
    const size_t window = std::clamp(static_cast<size_t>(cache.window), least, n);
    std::partial_sort(order, order + std::max(window, static_cast<size_t>(width)), order + n,
                      before);
    return window;
  }
  std::sort(order, order + n, before);
  size_t window = 0;
  for (float sum = 0; window < n && (window < least || sum < cache.mass); ++window) {
    sum += p[order[window]];
  }
  return window;
}

void list_in_window(std::span<const float> logits, std::span<const uint64_t> resident,
                    const float* p, int n_used, const CacheRule& cache, int width, int32_t* order,
                    int32_t* ids) noexcept {
  const size_t window = sort_window(logits, p, n_used, cache, width, order);
  const int protect = std::min(cache.protect, n_used);
  int n = protect;
  std::copy_n(order, protect, ids);
  for (size_t i = static_cast<size_t>(protect); i < window && n < width; ++i) {
    if (has(resident, order[i])) ids[n++] = order[i];
  }
  for (size_t i = static_cast<size_t>(protect); n < width; ++i) {
    if (i >= window || !has(resident, order[i])) ids[n++] = order[i];
  }
}

void list_by_key(std::span<const float> logits, std::span<const uint64_t> resident, const float* p,
                 int n_used, const CacheRule& cache, int width, float* key, int32_t* ids) noexcept {
  const int protect = std::min(cache.protect, n_used);
  select_best(logits, p, protect, ids);
  const size_t n = logits.size();
  for (size_t e = 0; e < n; ++e) {
    const bool in = has(resident, static_cast<int32_t>(e));
    key[e] = cache.mode == Moce::Prior ? logits[e] + (in ? cache.bonus : 0.0f)
                                       : p[e] * (in ? cache.factor : 1.0f);
  }
  int listed = protect;
  for (int32_t e = 0; static_cast<size_t>(e) < n; ++e) {
    if (among(ids, protect, e)) continue;
    insert_ranked(e, width, ids, &listed, protect,
                  [&](int32_t a, int32_t b) { return more_probable(logits, key, a, b); });
  }
}

}  // namespace

void list_cached(std::span<const float> logits, std::span<const uint64_t> resident, int n_used,
                 const CacheRule& cache, int width, const float* p, float* key, int32_t* order,
                 int32_t* ids) noexcept {
  if (cache.mode == Moce::MaxRank || cache.mode == Moce::CumProb) {
    list_in_window(logits, resident, p, n_used, cache, width, order, ids);
  } else {
    list_by_key(logits, resident, p, n_used, cache, width, key, ids);
  }
}

bool route_row_cached(std::span<const float> logits, std::span<const uint64_t> resident,
                      const RouteRule& rule, const CacheRule& cache, float* p, float* key,
                      int32_t* order, int32_t* ids, float* weights) noexcept {
  if (!route_probabilities(logits, p)) return false;
  list_cached(logits, resident, rule.n_used, cache, rule.n_used, p, key, order, ids);
  route_weights(p, rule, ids, weights);
  return true;
}

MoceMeasures& MoceMeasures::operator+=(const MoceMeasures& other) noexcept {
  rows += other.rows;
  slots += other.slots;
  replaced += other.replaced;
  mass_lost += other.mass_lost;
  route_kl += other.route_kl;
  logit_range += other.logit_range;
  return *this;
}

CacheRouter::CacheRouter(const MoceOptions& options, const Geometry& geometry)
    : options_(options), measures_(geometry.layers.size()) {
  const size_t n = most_experts(geometry);
  p_.resize(n);
  key_.resize(n);
  order_.resize(n);
  exact_.resize(n);
  set_factor();
}

uint64_t CacheRouter::memory_bytes(const Geometry& geometry) noexcept {
  return most_experts(geometry) * (2 * sizeof(float) + 2 * sizeof(int32_t)) +
         geometry.layers.size() * sizeof(MoceMeasures);
}

void CacheRouter::set_factor() noexcept {
  factor_ = std::exp(options_.bonus);
}

bool CacheRouter::route(int layer, std::span<const float> logits,
                        std::span<const uint64_t> resident, const RouteRule& rule, float* p,
                        int32_t* ids, float* weights) noexcept {
  MoceMeasures& m = measures_[static_cast<size_t>(layer)];
  // The mean range begins with the first row's own (§F.2).
  const auto [low, high] = std::minmax_element(logits.begin(), logits.end());
  const double range = static_cast<double>(*high) - static_cast<double>(*low);
  if (std::isfinite(range)) m.logit_range += range;
  ++m.rows;
  m.slots += static_cast<uint64_t>(rule.n_used);

  if (exact(rule.n_used)) return route_row(logits, rule, p, ids, weights);
  if (!route_row_cached(logits, resident, rule, rule_of(layer), p, key_.data(), order_.data(), ids,
                        weights)) {
    return false;
  }
  measure(m, logits, rule, p, ids);
  return true;
}

void CacheRouter::rank(int layer, std::span<const float> logits, std::span<const uint64_t> resident,
                       int n_used, int width, std::vector<int32_t>* out) noexcept {
  // Without probabilities nothing is selected: the order is of no account then.
  if (exact(n_used) || !route_probabilities(logits, p_.data())) {
    rank_ahead(logits, width, out);
    return;
  }
  width = std::min(std::max(width, n_used), static_cast<int>(logits.size()));
  out->resize(static_cast<size_t>(width));
  list_cached(logits, resident, n_used, rule_of(layer), width, p_.data(), key_.data(),
              order_.data(), out->data());
}

bool CacheRouter::exact(int n_used) const noexcept {
  return options_.protect >= n_used || (options_.mode == Moce::Bonus && options_.bonus == 0) ||
         (options_.mode == Moce::Prior && options_.lambda == 0);
}

CacheRule CacheRouter::rule_of(int layer) const noexcept {
  return {options_.mode, options_.protect, bonus(layer), factor_, options_.window, options_.mass};
}

void CacheRouter::measure(MoceMeasures& m, std::span<const float> logits, const RouteRule& rule,
                          const float* p, const int32_t* ids) noexcept {
  select_best(logits, p, rule.n_used, exact_.data());
  double best = 0;
  double selected = 0;
  for (int i = 0; i < rule.n_used; ++i) {
    best += static_cast<double>(p[exact_[static_cast<size_t>(i)]]);
    selected += static_cast<double>(p[ids[i]]);
    if (!among(exact_.data(), rule.n_used, ids[i])) ++m.replaced;
  }
  // In another order the same experts may differ in the last bit.
  const double kept = std::min(1.0, selected / best);
  m.mass_lost += 1 - kept;
  guard_lost_ += 1 - kept;
  ++guard_rows_;
  if (kept > 0) m.route_kl -= std::log(kept);
}

void CacheRouter::end_step(int rows) noexcept {
  if (options_.guard <= 0) return;
  guard_tokens_ += rows;
  if (guard_tokens_ < kGuardTokens) return;
  if (guard_rows_ > 0 &&
      guard_lost_ / static_cast<double>(guard_rows_) > static_cast<double>(options_.guard)) {
    options_.bonus /= 2;
    options_.lambda /= 2;
    options_.mass /= 2;
    options_.window = std::max(1, options_.window / 2);
    set_factor();
    ++guard_events_;
  }
  guard_tokens_ = 0;
  guard_rows_ = 0;
  guard_lost_ = 0;
}

float CacheRouter::bonus(int layer) const noexcept {
  if (options_.mode == Moce::Bonus) return options_.bonus;
  if (options_.mode != Moce::Prior) return 0;
  const MoceMeasures& m = measures_[static_cast<size_t>(layer)];
  if (m.rows == 0) return 0;
  return options_.lambda * static_cast<float>(m.logit_range / static_cast<double>(m.rows));
}

MoceMeasures CacheRouter::total() const noexcept {
  MoceMeasures total;
  for (const MoceMeasures& m : measures_) total += m;
  return total;
}

}  // namespace penstock::experts
