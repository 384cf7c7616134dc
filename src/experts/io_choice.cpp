#include "experts/io_choice.h"

#include <fmt/format.h>

namespace penstock::experts {

std::string io_choice(const StreamOptions& options, const ArenaShape& shape) {
  if (options.io == IoMode::Mmap) return "in the page cache (--io mmap)";
  if (options.io != IoMode::Auto) {
    return fmt::format("in an arena (--io {})", io_mode_name(options.io));
  }
  // Measured in both cases: decode from the mapping was slower, for its small pages.
  if (shape.holds_all()) {
    return "in an arena (--io auto: every expert has a slot, on huge pages that a mapped file has "
           "not)";
  }
  return fmt::format(
      "in an arena (--io auto: {} of {} experts have a slot; the others are read past the page "
      "cache, which would hold them twice)",
      shape.slots(), shape.n_experts());
}

}  // namespace penstock::experts
