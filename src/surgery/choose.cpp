#include "surgery/choose.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "surgery/block_fill.h"

namespace penstock::surgery {
namespace {

constexpr std::string_view kNames[] = {"reap", "reap-sum", "ean", "frequency", "mass", "random"};
constexpr double kOutlierQuantile = 0.995;
constexpr double kOutlierShare = 0.1;
constexpr uint64_t kLeastPerLayer = 16;

// How many experts a layer keeps when each keeps its own share.
uint64_t uniform_count(const MoeLayer& layer, const ChooseOptions& options) {
  if (options.keep != 0) return options.keep;
  const double wanted = options.share * static_cast<double>(layer.n_expert);
  const double groups = static_cast<double>(layer.n_groups);
  return static_cast<uint64_t>(std::llround(wanted / groups) * std::llround(groups));
}

void check_count(const MoeLayer& layer, uint64_t count) {
  if (count > layer.n_expert) {
    fail(ErrorKind::Usage, "--keep: {} experts are to be kept, but layer {} has {}", count,
         layer.layer, layer.n_expert);
  }
  if (count < layer.n_used) {
    fail(ErrorKind::Usage,
         "--keep: layer {} would keep {} experts, but every token uses {}: keep at least that many",
         layer.layer, count, layer.n_used);
  }
  if (layer.n_groups <= 1) return;
  const uint64_t per_group = count / layer.n_groups;
  if (count % layer.n_groups != 0 || per_group < 2 ||
      per_group * layer.n_groups_used < layer.n_used) {
    fail(ErrorKind::Usage,
         "--keep: layer {} routes within {} groups, {} of them per token, so it must keep a "
         "multiple "
         "of {}, at least {}; not {}",
         layer.layer, layer.n_groups, layer.n_groups_used, layer.n_groups,
         layer.n_groups *
             std::max<uint64_t>(2, (layer.n_used + layer.n_groups_used - 1) / layer.n_groups_used),
         count);
  }
}

// One layer while it is being chosen from.
struct Candidate {
  std::vector<double> scores;
  std::vector<bool> is_protected;
  std::vector<uint32_t> order;  // best first; those protected before all others
  uint64_t n_protected = 0;
};

Candidate make_candidate(const MoeLayer& layer, const LayerStats* stats,
                         const ChooseOptions& options, double outlier) {
  Candidate c;
  c.scores = expert_scores(stats, layer.layer, layer.n_expert, options.method, options.seed);
  c.is_protected.assign(layer.n_expert, false);
  for (size_t e = 0; options.protect_outliers && stats != nullptr && e < layer.n_expert; ++e) {
    c.is_protected[e] = static_cast<double>(stats->experts[e].max_abs) > outlier;
    c.n_protected += c.is_protected[e] ? 1 : 0;
  }
  c.order.resize(layer.n_expert);
  std::iota(c.order.begin(), c.order.end(), 0u);
  std::stable_sort(c.order.begin(), c.order.end(), [&](uint32_t a, uint32_t b) {
    if (c.is_protected[a] != c.is_protected[b]) return static_cast<bool>(c.is_protected[a]);
    return c.scores[a] > c.scores[b];
  });
  return c;
}

// The best `count`, the same number of each routing group.
std::vector<uint32_t> take(const MoeLayer& layer, const Candidate& c, uint64_t count) {
  const uint64_t group = layer.n_expert / layer.n_groups;
  const uint64_t most = count / layer.n_groups;
  std::vector<uint64_t> taken(layer.n_groups, 0);
  std::vector<uint32_t> kept;
  for (const uint32_t e : c.order) {
    if (taken[e / group] == most) {
      if (c.is_protected[e]) {
        fail(ErrorKind::Usage,
             "--protect-outliers: layer {} has {} experts with outliers, more than the {} that it "
             "would keep: keep more",
             layer.layer, c.n_protected, count);
      }
      continue;
    }
    ++taken[e / group];
    kept.push_back(e);
  }
  std::sort(kept.begin(), kept.end());
  return kept;
}

// One budget for all layers: each has its floor, the rest goes to the largest shares of their
// layer's sum of scores, wherever they are.
std::vector<uint64_t> shared_counts(std::span<const MoeLayer> layers,
                                    const std::vector<Candidate>& candidates,
                                    const ChooseOptions& options) {
  struct Next {
    double share;
    size_t layer;
    size_t rank;
  };
  std::vector<uint64_t> counts;
  std::vector<Next> rest;
  uint64_t budget = 0, floors = 0;
  for (size_t l = 0; l < layers.size(); ++l) {
    const MoeLayer& layer = layers[l];
    if (layer.n_groups > 1) {
      fail(ErrorKind::Usage,
           "--per-layer: layer {} routes within groups, which must keep equal numbers: leave "
           "--per-layer out",
           layer.layer);
    }
    budget += uniform_count(layer, options);
    const Candidate& c = candidates[l];
    const uint64_t floor =
        std::min(layer.n_expert, std::max({2 * layer.n_used, kLeastPerLayer, c.n_protected}));
    counts.push_back(floor);
    floors += floor;
    const double sum = std::accumulate(c.scores.begin(), c.scores.end(), 0.0);
    for (size_t rank = floor; rank < c.order.size(); ++rank) {
      rest.push_back({sum > 0 ? c.scores[c.order[rank]] / sum : 0, l, rank});
    }
  }
  if (budget < floors) {
    fail(ErrorKind::Usage,
         "--keep: {} experts in all layers together are fewer than the {} that the layers' floors "
         "(twice what a token uses, at least {}) take: keep more, or leave --per-layer out",
         budget, floors, kLeastPerLayer);
  }
  // Within a layer shares fall with the rank, so taking the largest takes ranks in order.
  std::stable_sort(rest.begin(), rest.end(),
                   [](const Next& a, const Next& b) { return a.share > b.share; });
  const uint64_t more = std::min<uint64_t>(budget - floors, rest.size());
  for (uint64_t i = 0; i < more; ++i) ++counts[rest[i].layer];
  return counts;
}

double share_of(double part, double all) noexcept {
  return all > 0 ? part / all : 1.0;
}

}  // namespace

std::string_view method_name(Method method) noexcept {
  return kNames[static_cast<size_t>(method)];
}

bool parse_method(std::string_view name, Method* out) noexcept {
  const auto found = std::find(std::begin(kNames), std::end(kNames), name);
  if (found == std::end(kNames)) return false;
  *out = static_cast<Method>(found - std::begin(kNames));
  return true;
}

std::vector<double> expert_scores(const LayerStats* stats, int layer, uint64_t n_expert,
                                  Method method, uint64_t seed) {
  std::vector<double> scores(n_expert, 0.0);
  for (size_t e = 0; e < n_expert; ++e) {
    if (method == Method::Random) {
      const uint64_t bits = Random::mix(Random::mix(seed, static_cast<uint64_t>(layer) + 1), e + 1);
      scores[e] = static_cast<double>(bits >> 11) * 0x1p-53;
      continue;
    }
    const ExpertSums& sums = stats->experts[e];
    const auto n = static_cast<double>(sums.n);
    switch (method) {
      case Method::Reap:
        scores[e] = sums.reap();
        break;
      case Method::ReapSum:
        scores[e] = sums.ga.value();
        break;
      case Method::Ean:
        scores[e] = sums.n == 0 ? 0 : sums.a.value() / n;
        break;
      case Method::Frequency:
        scores[e] = n;
        break;
      case Method::Mass:
        scores[e] = sums.p.value();
        break;
      case Method::Random:
        break;
    }
  }
  return scores;
}

double outlier_threshold(const ExpertStats& stats) {
  std::vector<double> all;
  for (const LayerStats& layer : stats.layers) {
    for (const ExpertSums& expert : layer.experts)
      all.push_back(static_cast<double>(expert.max_abs));
  }
  if (all.empty()) return std::numeric_limits<double>::infinity();
  std::sort(all.begin(), all.end());
  // Linear between the two neighbours, as spec/streaming.md §I.2 takes quantiles.
  const double at = kOutlierQuantile * static_cast<double>(all.size() - 1);
  const auto low = static_cast<size_t>(at);
  const size_t high = std::min(low + 1, all.size() - 1);
  const double quantile = all[low] + (at - static_cast<double>(low)) * (all[high] - all[low]);
  return std::max(quantile, kOutlierShare * all.back());
}

std::vector<LayerChoice> judge(std::span<const KeptLayer> kept, const ExpertStats* stats) {
  std::vector<LayerChoice> choices;
  for (size_t l = 0; l < kept.size(); ++l) {
    LayerChoice choice;
    choice.kept = kept[l];
    if (stats != nullptr) {
      double mass = 0, all_mass = 0, reap = 0, all_reap = 0;
      for (const ExpertSums& sums : stats->layers[l].experts) {
        all_mass += sums.p.value();
        all_reap += sums.ga.value();
        choice.n_never += sums.n == 0 ? 1 : 0;
      }
      for (const uint32_t e : kept[l].kept) {
        mass += stats->layers[l].experts[e].p.value();
        reap += stats->layers[l].experts[e].ga.value();
      }
      choice.retained_mass = share_of(mass, all_mass);
      choice.retained_reap = share_of(reap, all_reap);
    }
    choices.push_back(std::move(choice));
  }
  return choices;
}

std::vector<LayerChoice> choose(std::span<const MoeLayer> layers, const ExpertStats* stats,
                                const ChooseOptions& options) {
  if (stats == nullptr && (options.method != Method::Random || options.protect_outliers)) {
    fail(ErrorKind::Usage,
         "--method {} chooses by statistics: give --stats FILE, which `penstock "
         "calibrate` writes",
         method_name(options.method));
  }
  if (stats != nullptr && stats->layers.size() != layers.size()) {
    fail(ErrorKind::Internal, "statistics of {} layers for {}", stats->layers.size(),
         layers.size());
  }
  const double outlier = options.protect_outliers ? outlier_threshold(*stats)
                                                  : std::numeric_limits<double>::infinity();
  std::vector<Candidate> candidates;
  std::vector<uint64_t> counts;
  for (size_t l = 0; l < layers.size(); ++l) {
    candidates.push_back(make_candidate(layers[l], stats == nullptr ? nullptr : &stats->layers[l],
                                        options, outlier));
    counts.push_back(uniform_count(layers[l], options));
    if (!options.per_layer || counts.back() > layers[l].n_expert) check_count(layers[l], counts[l]);
  }
  if (options.per_layer) counts = shared_counts(layers, candidates, options);
  std::vector<KeptLayer> kept;
  for (size_t l = 0; l < layers.size(); ++l) {
    kept.push_back(
        {layers[l].layer, layers[l].n_expert, take(layers[l], candidates[l], counts[l])});
  }
  std::vector<LayerChoice> choices = judge(kept, stats);
  for (size_t l = 0; l < layers.size(); ++l) choices[l].n_protected = candidates[l].n_protected;
  return choices;
}

std::string rule_text(const ChooseOptions& options) {
  std::string text = options.keep != 0 ? fmt::format("{} per layer", options.keep)
                                       : fmt::format("{} of each layer", options.share);
  if (options.per_layer) text += " on average, shared out by score";
  if (options.protect_outliers) text += ", outliers protected";
  return text;
}

}  // namespace penstock::surgery
