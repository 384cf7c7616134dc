#include "measure/spread.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace penstock::measure {
namespace {

// Twice the mid-ranks, so that they are whole numbers.
std::vector<int> doubled_ranks(const std::vector<double>& values) {
  std::vector<int> ranks(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    int below = 0, equal = 0;
    for (const double other : values) {
      below += other < values[i];
      equal += other == values[i];
    }
    ranks[i] = 2 * below + equal + 1;
  }
  return ranks;
}

// Share of the ways to choose `n` of the ranks whose sum is at least as far from the middle.
double exact_share(const std::vector<int>& ranks, size_t n, int sum) {
  const int total = static_cast<int>(ranks.size() * (ranks.size() + 1));  // of doubled ranks
  // ways[k][s]: choices of k ranks with sum s.
  std::vector<std::vector<double>> ways(n + 1, std::vector<double>(static_cast<size_t>(total) + 1));
  ways[0][0] = 1;
  for (const int rank : ranks) {
    for (size_t k = n; k > 0; --k) {
      for (size_t s = static_cast<size_t>(total); s >= static_cast<size_t>(rank); --s) {
        ways[k][s] += ways[k - 1][s - static_cast<size_t>(rank)];
      }
    }
  }
  const double middle = static_cast<double>(n) * (static_cast<double>(ranks.size()) + 1);
  const double distance = std::fabs(sum - middle);
  double extreme = 0, all = 0;
  for (size_t s = 0; s <= static_cast<size_t>(total); ++s) {
    all += ways[n][s];
    if (std::fabs(static_cast<double>(s) - middle) >= distance - 1e-9) extreme += ways[n][s];
  }
  return extreme / all;
}

}  // namespace

Spread spread_of(std::vector<double> values) {
  Spread out;
  out.n = values.size();
  if (values.empty()) return out;
  std::sort(values.begin(), values.end());
  out.least = values.front();
  out.most = values.back();
  const size_t middle = values.size() / 2;
  out.median = values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
  return out;
}

std::string spread_text(const Spread& spread, int digits) {
  if (spread.n == 0) return "-";
  if (spread.n == 1) return fmt::format("{:.{}f} (n = 1)", spread.median, digits);
  return fmt::format("{:.{}f} ({:.{}f} to {:.{}f}, n = {})", spread.median, digits, spread.least,
                     digits, spread.most, digits, spread.n);
}

double mann_whitney(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.empty() || b.empty()) return 1;
  std::vector<double> all = a;
  all.insert(all.end(), b.begin(), b.end());
  const std::vector<int> ranks = doubled_ranks(all);
  int sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += ranks[i];
  if (all.size() <= 20) return exact_share(ranks, a.size(), sum);
  const double n = static_cast<double>(a.size()), m = static_cast<double>(b.size()), t = n + m;
  double ties = 0;
  std::sort(all.begin(), all.end());
  for (size_t i = 0; i < all.size();) {
    size_t end = i;
    while (end < all.size() && all[end] == all[i]) ++end;
    const double run = static_cast<double>(end - i);
    ties += run * run * run - run;
    i = end;
  }
  const double variance = n * m / 12 * (t + 1 - ties / (t * (t - 1)));
  if (variance <= 0) return 1;
  const double u = sum / 2.0 - n * (n + 1) / 2;
  const double z = (std::fabs(u - n * m / 2) - 0.5) / std::sqrt(variance);
  return std::erfc(std::max(z, 0.0) / std::sqrt(2.0));
}

}  // namespace penstock::measure
