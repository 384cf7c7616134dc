// Which experts to keep, from what calibration measured of them (spec/streaming.md §H.1, §H.2,
// docs/surgery.md). Pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "surgery/expert_stats.h"
#include "surgery/keep_map.h"
#include "surgery/moe_layout.h"

namespace penstock::surgery {

enum class Method {
  Reap,       // mean over an expert's tokens of weight times output norm (arXiv 2510.13999)
  ReapSum,    // the sum of the same
  Ean,        // mean norm of its output
  Frequency,  // tokens that selected it
  Mass,       // router probability over all tokens
  Random,     // seeded: the baseline
};
std::string_view method_name(Method method) noexcept;
bool parse_method(std::string_view name, Method* out) noexcept;

struct ChooseOptions {
  Method method = Method::Reap;
  uint64_t keep = 0;       // experts per layer; 0: by `share`
  double share = 0;        // of each layer's experts, 0..1, rounded to the nearest count
  bool per_layer = false;  // share one budget out over the layers by score
  bool protect_outliers = false;
  uint64_t seed = 1;
};

// What the choice costs one layer, as shares of the layer's sums. Without statistics: 0.
struct LayerChoice {
  KeptLayer kept;
  double retained_mass = 0;  // router probability
  double retained_reap = 0;  // sum of weight times output norm
  uint64_t n_never = 0;      // experts that no token selected
  uint64_t n_protected = 0;  // kept for their outliers whatever their score
};

// Scores of a layer's experts; higher is kept. `stats` may be null for Method::Random.
std::vector<double> expert_scores(const LayerStats* stats, int layer, uint64_t n_expert,
                                  Method method, uint64_t seed);

// max |f| above which an expert counts as an outlier: above the 99.5th percentile of all experts
// and above a tenth of the largest. Infinity when there are no experts.
double outlier_threshold(const ExpertStats& stats);

// Ties go to the lower id. `stats` may be null for Method::Random without protection; its layers
// must be those of `layers` (check_stats). Throws Error(Usage) when a count is below what a token
// uses, above what there is, does not divide among routing groups, or cannot hold the protected
// experts.
std::vector<LayerChoice> choose(std::span<const MoeLayer> layers, const ExpertStats* stats,
                                const ChooseOptions& options);

// The same figures for lists that were given.
std::vector<LayerChoice> judge(std::span<const KeptLayer> kept, const ExpertStats* stats);

// "256 per layer", "0.5 of the experts over all layers, outliers protected"
std::string rule_text(const ChooseOptions& options);

}  // namespace penstock::surgery
