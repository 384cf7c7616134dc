#include "measure/quality_stats.h"

#include <algorithm>
#include <cmath>
#include <functional>

namespace penstock::measure {
namespace {

constexpr int kResamples = 2000;

// splitmix64: the intervals of the same scores are the same everywhere.
class Random {
 public:
  size_t below(size_t n) noexcept {
    state_ += 0x9E3779B97F4A7C15ULL;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    z ^= z >> 31;
    __extension__ using Wide = unsigned __int128;
    return static_cast<size_t>((static_cast<Wide>(z) * n) >> 64);
  }

 private:
  uint64_t state_ = 20260101;
};

// Sums over positions; enough for every mean and its error.
struct Sums {
  double n = 0;
  double nll = 0, nll2 = 0, base = 0, base2 = 0, cross = 0;
  double kld = 0, kld2 = 0, dp = 0, dp2 = 0, dp4 = 0, top = 0;

  void add(const PositionScore& s) noexcept {
    n += 1;
    nll += s.nll;
    nll2 += s.nll * s.nll;
    base += s.nll_base;
    base2 += s.nll_base * s.nll_base;
    cross += s.nll * s.nll_base;
    kld += s.kld;
    kld2 += s.kld * s.kld;
    const double square = s.dp * s.dp;
    dp += s.dp;
    dp2 += square;
    dp4 += square * square;
    top += s.same_top;
  }
  void add(const Sums& o) noexcept {
    n += o.n;
    nll += o.nll;
    base += o.base;
    kld += o.kld;
    dp += o.dp;
    dp2 += o.dp2;
    top += o.top;
  }
};

// sqrt((sum x^2 / n - m^2) / (n - 1))
double mean_error(double sum, double squares, double n) noexcept {
  const double mean = sum / n;
  return std::sqrt(std::max(0.0, squares / n - mean * mean) / (n - 1));
}

using Statistic = double (*)(const Sums&);

// The 2.5 and 97.5 % quantiles of statistics over resampled windows.
void add_intervals(const std::vector<Sums>& windows, const std::vector<Statistic>& statistics,
                   const std::vector<Estimate*>& out) {
  std::vector<std::vector<double>> values(statistics.size());
  Random random;
  for (int r = 0; r < kResamples; ++r) {
    Sums sums;
    for (size_t i = 0; i < windows.size(); ++i) sums.add(windows[random.below(windows.size())]);
    for (size_t s = 0; s < statistics.size(); ++s) values[s].push_back(statistics[s](sums));
  }
  for (size_t s = 0; s < statistics.size(); ++s) {
    std::sort(values[s].begin(), values[s].end());
    out[s]->low = quantile(values[s], 0.025);
    out[s]->high = quantile(values[s], 0.975);
  }
}

Quantiles quantiles_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const auto at = [&](double q) { return quantile(values, q); };
  return {values.back(), at(0.999), at(0.99), at(0.95), at(0.9),   at(0.75),      at(0.5),
          at(0.25),      at(0.1),   at(0.05), at(0.01), at(0.001), values.front()};
}

Comparison compare(const Sums& all, std::vector<double> klds, std::vector<double> dps) {
  const double n = all.n;
  const double mean_q = all.nll / n, mean_b = all.base / n;
  const double error_q = mean_error(all.nll, all.nll2, n);
  const double error_b = mean_error(all.base, all.base2, n);
  const double covariance = (all.cross / n - mean_q * mean_b) / (n - 1);
  Comparison c;
  c.ppl_base = {std::exp(mean_b), std::exp(mean_b) * error_b, 0, 0};
  const double error_ln =
      std::sqrt(std::max(0.0, error_q * error_q + error_b * error_b - 2 * covariance));
  c.ln_ratio = {mean_q - mean_b, error_ln, 0, 0};
  c.ppl_ratio = {std::exp(mean_q - mean_b), std::exp(mean_q - mean_b) * error_ln, 0, 0};
  c.correlation = error_q * error_b > 0 ? covariance / (error_q * error_b) : 0;
  c.mean_kld = {all.kld / n, mean_error(all.kld, all.kld2, n), 0, 0};
  c.kld = quantiles_of(std::move(klds));
  const double top = all.top / n;
  c.same_top = {top, std::sqrt(top * (1 - top) / (n - 1)), 0, 0};
  // d exp(m) = exp(m) dm, and the two means vary together.
  const double ppl_q = std::exp(mean_q), ppl_b = std::exp(mean_b);
  const double squares = ppl_q * ppl_q * error_q * error_q + ppl_b * ppl_b * error_b * error_b -
                         2 * ppl_q * ppl_b * covariance;
  c.ppl_difference = {ppl_q - ppl_b, std::sqrt(std::max(0.0, squares)), 0, 0};
  c.dp = quantiles_of(std::move(dps));
  c.mean_dp = {all.dp / n, mean_error(all.dp, all.dp2, n), 0, 0};
  const double rms = std::sqrt(all.dp2 / n);
  c.rms_dp = {rms, rms > 0 ? mean_error(all.dp2, all.dp4, n) / (2 * rms) : 0, 0, 0};
  return c;
}

}  // namespace

double quantile(const std::vector<double>& sorted, double q) noexcept {
  if (sorted.empty()) return 0;
  const double place = q * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<size_t>(place);
  const size_t high = std::min(low + 1, sorted.size() - 1);
  const double part = place - static_cast<double>(low);
  return (1 - part) * sorted[low] + part * sorted[high];
}

std::optional<Quality> quality_of(const ScoreSet& set, int part) {
  const auto per_window = static_cast<size_t>(set.per_window());
  std::vector<Sums> windows;
  std::vector<double> klds, dps;
  Sums all;
  for (size_t w = 0; w < set.windows.size(); ++w) {
    if (part >= 0 && set.windows[w].part != static_cast<uint32_t>(part)) continue;
    Sums sums;
    for (size_t i = 0; i < per_window; ++i) {
      const PositionScore& score = set.scores[w * per_window + i];
      sums.add(score);
      all.add(score);
      if (!set.has_base) continue;
      klds.push_back(score.kld);
      dps.push_back(score.dp);
    }
    windows.push_back(sums);
  }
  Quality quality;
  quality.positions = static_cast<uint64_t>(all.n);
  quality.windows = windows.size();
  if (quality.positions < kLeastPositions) return std::nullopt;
  const double error = mean_error(all.nll, all.nll2, all.n);
  const double mean = all.nll / all.n;
  quality.mean_nll = {mean, error, 0, 0};
  quality.ppl = {std::exp(mean), std::exp(mean) * error, 0, 0};
  std::vector<Statistic> statistics = {[](const Sums& s) { return s.nll / s.n; },
                                       [](const Sums& s) { return std::exp(s.nll / s.n); }};
  std::vector<Estimate*> estimates = {&quality.mean_nll, &quality.ppl};
  if (set.has_base) {
    Comparison& c = quality.comparison.emplace(compare(all, std::move(klds), std::move(dps)));
    const auto also = [&](Estimate* estimate, Statistic statistic) {
      statistics.push_back(statistic);
      estimates.push_back(estimate);
    };
    also(&c.ppl_base, [](const Sums& s) { return std::exp(s.base / s.n); });
    also(&c.ln_ratio, [](const Sums& s) { return (s.nll - s.base) / s.n; });
    also(&c.ppl_ratio, [](const Sums& s) { return std::exp((s.nll - s.base) / s.n); });
    also(&c.ppl_difference,
         [](const Sums& s) { return std::exp(s.nll / s.n) - std::exp(s.base / s.n); });
    also(&c.mean_kld, [](const Sums& s) { return s.kld / s.n; });
    also(&c.same_top, [](const Sums& s) { return s.top / s.n; });
    also(&c.mean_dp, [](const Sums& s) { return s.dp / s.n; });
    also(&c.rms_dp, [](const Sums& s) { return std::sqrt(s.dp2 / s.n); });
  }
  add_intervals(windows, statistics, estimates);
  return quality;
}

Estimate share_of(const std::vector<bool>& hits) {
  Estimate share;
  if (hits.empty()) return share;
  std::vector<Sums> items(hits.size());
  double n_hits = 0;
  for (size_t i = 0; i < hits.size(); ++i) {
    items[i].n = 1;
    items[i].top = hits[i] ? 1 : 0;
    n_hits += items[i].top;
  }
  const auto n = static_cast<double>(hits.size());
  share.value = n_hits / n;
  share.error = n > 1 ? std::sqrt(share.value * (1 - share.value) / (n - 1)) : 0;
  add_intervals(items, {[](const Sums& s) { return s.top / s.n; }}, {&share});
  return share;
}

namespace {

// Twice the chance of at most `fewer` heads in n throws of a fair coin, at most 1.
double coin_p(uint64_t n, uint64_t fewer) noexcept {
  const double all =
      std::lgamma(static_cast<double>(n) + 1) - static_cast<double>(n) * std::log(2.0);
  double sum = 0;
  for (uint64_t k = 0; k <= fewer; ++k) {
    sum += std::exp(all - std::lgamma(static_cast<double>(k) + 1) -
                    std::lgamma(static_cast<double>(n - k) + 1));
  }
  return std::min(1.0, 2 * sum);
}

}  // namespace

Paired paired(const std::vector<bool>& first, const std::vector<bool>& second) {
  Paired out;
  out.n = first.size();
  std::vector<Sums> items(first.size());
  for (size_t i = 0; i < first.size(); ++i) {
    items[i].n = 1;
    items[i].dp = (first[i] ? 1 : 0) - (second[i] ? 1 : 0);
    out.only_first += first[i] && !second[i];
    out.only_second += !first[i] && second[i];
  }
  const auto n = static_cast<double>(out.n);
  const auto more = static_cast<double>(out.only_first),
             less = static_cast<double>(out.only_second);
  out.difference.value = (more - less) / n;
  out.difference.error = mean_error(more - less, more + less, n);
  add_intervals(items, {[](const Sums& s) { return s.dp / s.n; }}, {&out.difference});
  out.p_value = coin_p(out.only_first + out.only_second, std::min(out.only_first, out.only_second));
  return out;
}

}  // namespace penstock::measure
