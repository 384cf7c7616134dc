// Where experts are held, and why: one cache, never two (docs/decisions/013-mmap.md).
#pragma once

#include <string>

#include "experts/options.h"
#include "experts/shape.h"

namespace penstock::experts {

// One line for people, with the reason where the program chose.
std::string io_choice(const StreamOptions& options, const ArenaShape& shape);

}  // namespace penstock::experts
