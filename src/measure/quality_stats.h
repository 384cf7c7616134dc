// Statistics of quality (spec/streaming.md §I.2), defined as llama.cpp's perplexity tool defines
// them, and 95 % intervals from resampling whole windows: neighbouring positions are not
// independent, which the token-level errors assume.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "measure/scores.h"

namespace penstock::measure {

// Fewer positions give no summary.
inline constexpr uint64_t kLeastPositions = 1000;

struct Estimate {
  double value = 0;
  double error = 0;          // standard error over positions
  double low = 0, high = 0;  // 95 % interval over windows
};

struct Quantiles {
  double max = 0, q999 = 0, q99 = 0, q95 = 0, q90 = 0, q75 = 0, median = 0, q25 = 0, q10 = 0,
         q05 = 0, q01 = 0, q001 = 0, min = 0;
};

struct Comparison {
  Estimate ppl_base;
  Estimate ln_ratio;       // ln(PPL / PPL_base)
  Estimate ppl_ratio;      // exp of it
  double correlation = 0;  // of ln PPL and ln PPL_base
  Estimate mean_kld;
  Quantiles kld;
  Estimate same_top;        // share
  Estimate ppl_difference;  // PPL - PPL_base
  Estimate mean_dp, rms_dp;
  Quantiles dp;
};

struct Quality {
  uint64_t positions = 0;
  uint64_t windows = 0;
  Estimate ppl;
  Estimate mean_nll;  // nats
  std::optional<Comparison> comparison;
};

// Of the windows that begin in `part`, or of all (-1). None when there are too few positions.
std::optional<Quality> quality_of(const ScoreSet& set, int part = -1);

// The q-quantile of sorted values, by linear interpolation at q (n - 1).
double quantile(const std::vector<double>& sorted, double q) noexcept;

// An accuracy with the interval of resampled items.
Estimate share_of(const std::vector<bool>& hits);

// Two results over the same items, item by item: the difference of two accuracies is surer than
// each of them.
struct Paired {
  uint64_t n = 0;
  uint64_t only_first = 0, only_second = 0;  // items that one of the two solved
  Estimate difference;                       // share of the first less that of the second
  double p_value = 1;                        // exact McNemar test, two-sided, of no difference
};
// Precondition: as many items in both, at least two.
Paired paired(const std::vector<bool>& first, const std::vector<bool>& second);

}  // namespace penstock::measure
