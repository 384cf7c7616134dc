// Random weights written directly in a block format: random codes under scales chosen so that the
// decoded values have the wanted standard deviation and no mean. Far faster than encoding floats.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gguf/types.h"

namespace penstock::surgery {

// splitmix64: one stream per seed; mix() makes seeds from parts.
class Random {
 public:
  explicit Random(uint64_t seed) noexcept : state_(seed) {}
  uint64_t next() noexcept {
    state_ += 0x9E3779B97F4A7C15;
    uint64_t v = state_;
    v = (v ^ (v >> 30)) * 0xBF58476D1CE4E5B9;
    v = (v ^ (v >> 27)) * 0x94D049BB133111EB;
    return v ^ (v >> 31);
  }
  float gaussian() noexcept;  // bounded at 4 standard deviations
  static uint64_t mix(uint64_t a, uint64_t b) noexcept {
    return Random(a ^ (b * 0xD1342543DE82EF95)).next();
  }

 private:
  uint64_t state_;
};

class BlockFill {
 public:
  // Throws Error(Unsupported) for types that are no weights.
  explicit BlockFill(gguf::TypeId type);

  // n elements, whole blocks. The same seed with -deviation gives exactly the negated values;
  // deviation 0 gives zeros.
  void fill(std::byte* out, uint64_t n, float deviation, uint64_t seed) const noexcept;

  gguf::TypeId type() const noexcept { return type_; }

 private:
  void fill_blocks(std::byte* out, uint64_t n_blocks, float scale, uint64_t seed) const noexcept;

  gguf::TypeId type_;
  float unit_ = 1.0f;  // standard deviation of the values under scale 1
};

}  // namespace penstock::surgery
