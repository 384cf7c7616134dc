// A sum whose result does not depend on the order of its terms: fixed point, 128 bits.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

namespace penstock::surgery {

// Terms are rounded to multiples of 2^-64 and may reach 2^60 in magnitude; so may their sum.
class ExactSum {
 public:
  constexpr ExactSum() = default;
  static constexpr ExactSum from_words(int64_t high, uint64_t low) noexcept {
    ExactSum s;
    s.units_ = static_cast<Units>((static_cast<Unsigned>(static_cast<uint64_t>(high)) << 64) | low);
    return s;
  }

  // False when the term is no number or the sum would leave the range: it is then unchanged.
  bool add(double term) noexcept {
    constexpr double kLimit = 0x1p60;
    if (!(std::abs(term) < kLimit)) return false;
    // Both halves of the conversion are exact: a double has 53 bits.
    const double whole = std::trunc(term);
    const Units units = (static_cast<Units>(whole) << 32 << 32) +
                        static_cast<Units>(std::nearbyint((term - whole) * 0x1p64));
    return add(units);
  }
  bool add(const ExactSum& other) noexcept { return add(other.units_); }

  double value() const noexcept { return static_cast<double>(units_) * 0x1p-64; }
  int64_t high() const noexcept { return static_cast<int64_t>(units_ >> 64); }
  uint64_t low() const noexcept { return static_cast<uint64_t>(units_); }
  bool operator==(const ExactSum&) const = default;

 private:
  __extension__ using Units = __int128;
  __extension__ using Unsigned = unsigned __int128;

  bool add(Units units) noexcept {
    constexpr Units kLimit = static_cast<Units>(1) << 124;
    const Units sum = units_ + units;
    if (sum >= kLimit || sum <= -kLimit) return false;
    units_ = sum;
    return true;
  }

  Units units_ = 0;
};

}  // namespace penstock::surgery
