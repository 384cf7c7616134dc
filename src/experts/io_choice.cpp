#include "experts/io_choice.h"

#include <fmt/format.h>

namespace penstock::experts {
namespace {

// Measured (docs/decisions/013-mmap.md): what was gained before the first token is lost in decode
// after 150 to 900 tokens.
constexpr int64_t kShortRun = 128;
constexpr uint64_t kWorthIt = uint64_t{1} << 30;  // less is read into an arena at once
constexpr double kCached = 0.99;  // pages at the ends of tensors may hold something else too

}  // namespace

bool mapping_pays(const IoFacts& facts) noexcept {
  return facts.holds_all && facts.expert_bytes >= kWorthIt && facts.max_tokens > 0 &&
         facts.max_tokens <= kShortRun &&
         static_cast<double>(facts.cached_bytes) >=
             kCached * static_cast<double>(facts.expert_bytes);
}

std::string io_choice(const StreamOptions& options, const ArenaShape& shape, bool automatic) {
  if (options.io == IoMode::Mmap) {
    return automatic ? fmt::format(
                           "in the page cache (--io auto: the experts are there already, memory "
                           "has room for them all, and a run of at most {} tokens ends before "
                           "an arena would have paid)",
                           kShortRun)
                     : "in the page cache (--io mmap)";
  }
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
