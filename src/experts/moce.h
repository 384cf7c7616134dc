// Cache-aware routing (spec/streaming.md §F): which experts a token uses depends a little on which
// are in memory. Lossy, off unless asked for, in decode only. The weights of what is selected are
// those of the unperturbed probabilities.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "experts/geometry.h"
#include "experts/options.h"

namespace penstock::experts {

struct RouteRule;

// How one row is routed: MoceOptions with the numbers that are in force for it.
struct CacheRule {
  Moce mode = Moce::Off;
  int protect = 3;
  float bonus = 0;   // Bonus: b; Prior: lambda * D
  float factor = 1;  // exp(bonus), in fp32
  int window = 0;
  float mass = 0;
};

// Experts in the order in which they are selected, `width` of them, at least n_used and at most
// all; a selection is the first n_used. First the `protect` of the largest p; then by
//   Bonus    p * (resident ? factor : 1)
//   Prior    logit + (resident ? bonus : 0)
//   MaxRank  resident ones among the `window` of the largest p in their order, then the others
//   CumProb  the same, the window being the fewest experts whose p sum up to `mass`, at least
//   n_used
// Ties go to the larger logit, then to the lower index. `resident` has one bit per expert; nothing
// else says what is in memory. `p` is what route_probabilities() gave, `key` has room for as many
// values, `order` for as many indices, `ids` for `width`.
void list_cached(std::span<const float> logits, std::span<const uint64_t> resident, int n_used,
                 const CacheRule& cache, int width, const float* p, float* key, int32_t* order,
                 int32_t* ids) noexcept;

// Like route_row(), but selects by list_cached().
bool route_row_cached(std::span<const float> logits, std::span<const uint64_t> resident,
                      const RouteRule& rule, const CacheRule& cache, float* p, float* key,
                      int32_t* order, int32_t* ids, float* weights) noexcept;

// What cache-aware routing cost (§F.6), by layer, over the rows it routed.
struct MoceMeasures {
  uint64_t rows = 0;
  uint64_t slots = 0;      // experts selected
  uint64_t replaced = 0;   // of these, not among the n_used most probable
  double mass_lost = 0;    // sum over rows of 1 - p(selected) / p(most probable)
  double route_kl = 0;     // sum over rows of ln(p(most probable) / p(selected)), nats
  double logit_range = 0;  // sum over rows of max - min of the logits
  MoceMeasures& operator+=(const MoceMeasures& other) noexcept;
};

// Routes rows of a model's layers and keeps what the variants need between them.
class CacheRouter {
 public:
  CacheRouter(const MoceOptions& options, const Geometry& geometry);

  // As in force: a guard may have halved what was asked for.
  const MoceOptions& options() const noexcept { return options_; }
  bool route(int layer, std::span<const float> logits, std::span<const uint64_t> resident,
             const RouteRule& rule, float* p, int32_t* ids, float* weights) noexcept;
  void end_step(int rows) noexcept;
  // The candidates of reads ahead (§E.2): the first `width`, n_used at least, of what route() would
  // select from.
  void rank(int layer, std::span<const float> logits, std::span<const uint64_t> resident,
            int n_used, int width, std::vector<int32_t>* out) noexcept;

  // What a resident expert's logit gains in a layer; 0 for the variants that add nothing.
  float bonus(int layer) const noexcept;
  std::span<const MoceMeasures> by_layer() const noexcept { return measures_; }
  MoceMeasures total() const noexcept;
  uint64_t guard_events() const noexcept { return guard_events_; }

  static uint64_t memory_bytes(const Geometry& geometry) noexcept;

 private:
  void set_factor() noexcept;
  // Whether routing is as without a cache.
  bool exact(int n_used) const noexcept;
  CacheRule rule_of(int layer) const noexcept;
  void measure(MoceMeasures& m, std::span<const float> logits, const RouteRule& rule,
               const float* p, const int32_t* ids) noexcept;

  MoceOptions options_;
  float factor_ = 1;
  std::vector<MoceMeasures> measures_;
  std::vector<float> p_, key_;
  std::vector<int32_t> order_, exact_;
  // Since the guard last looked.
  int guard_tokens_ = 0;
  uint64_t guard_rows_ = 0;
  double guard_lost_ = 0;
  uint64_t guard_events_ = 0;
};

}  // namespace penstock::experts
