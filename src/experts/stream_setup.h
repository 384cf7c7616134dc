// What is checked and decided before a stream starts.
#pragma once

#include <cstddef>
#include <vector>

#include "experts/io.h"
#include "experts/record.h"
#include "experts/shape.h"

namespace penstock::experts {

inline constexpr int kSlotBits = 28;  // of a slot number, in the tag of a read

// Reads in flight: the whole demand of a layer for as many rows as a decode step usually has at
// most, or a prompt's depth, whichever is more. What exceeds it is handed over in turns.
size_t backend_capacity(const Geometry& geometry, int depth) noexcept;
int pool_threads(int depth) noexcept;

std::vector<RecordLayout> layouts_of(const Geometry& geometry, uint32_t alignment);

// Throws Error(Format) for experts outside their file or absurd counts, Error(Internal) for a shape
// that does not belong to the files or cannot work.
void check_inputs(const Geometry& geometry, const StreamFiles& files, const ArenaShape& shape);

}  // namespace penstock::experts
