// Several runs of one configuration (spec/streaming.md §J.2): median, least, most, and whether two
// configurations differ.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace penstock::measure {

struct Spread {
  size_t n = 0;
  double median = 0, least = 0, most = 0;
  double relative() const noexcept { return median == 0 ? 0 : (most - least) / median; }
};

Spread spread_of(std::vector<double> values);  // none of them: all zero

// "13.80 (12.96 to 13.88, n = 5)"; digits after the point as given.
std::string spread_text(const Spread& spread, int digits);

// Probability, were both of one population, of ranks at least as uneven as these: the two-sided
// Mann-Whitney test, exact up to 20 values together (ties by mid-ranks), else by the normal
// approximation with its correction for ties. 1 where a side is empty.
double mann_whitney(const std::vector<double>& a, const std::vector<double>& b);

}  // namespace penstock::measure
