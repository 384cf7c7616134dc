// Where experts are held, and why: one cache, never two (docs/decisions/013-mmap.md).
#pragma once

#include <cstdint>
#include <string>

#include "experts/options.h"
#include "experts/shape.h"

namespace penstock::experts {

// What `--io auto` knows when it decides.
struct IoFacts {
  bool holds_all = false;     // the plan has a slot for every expert
  uint64_t expert_bytes = 0;  // of all experts
  uint64_t cached_bytes = 0;  // of them in the page cache now
  int64_t max_tokens = 0;     // to be generated at most; 0: nobody knows
};

// Whether using the experts where the page cache has them beats reading them into an arena: memory
// would hold them all, nearly all are cached, reading them would take seconds, and the run ends
// before the mapping's slower decode has cost as much.
bool mapping_pays(const IoFacts& facts) noexcept;

// One line for people, with the reason where the program chose: `automatic`, or with IoMode::Auto.
std::string io_choice(const StreamOptions& options, const ArenaShape& shape,
                      bool automatic = false);

}  // namespace penstock::experts
