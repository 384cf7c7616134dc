// What is checked and decided before a stream starts.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "experts/io.h"
#include "experts/read_queue.h"
#include "experts/record.h"
#include "experts/shape.h"

namespace penstock::experts {

inline constexpr int kSlotBits = 28;  // of a slot number, in the tag of a read

// Reads in flight: the whole demand of a layer for as many rows as a decode step usually has at
// most, or a prompt's depth, whichever is more. What exceeds it is handed over in turns.
size_t backend_capacity(const Geometry& geometry, int depth) noexcept;
int pool_threads(int depth) noexcept;

// A backend for these files, direct or buffered as they were opened. `decorate` wraps it if not
// empty. The report says what it is and why.
using Decorate = std::function<std::unique_ptr<IoBackend>(std::unique_ptr<IoBackend>)>;
std::unique_ptr<IoBackend> open_backend(const StreamFiles& files, IoMode mode, size_t capacity,
                                        int threads, const Decorate& decorate, IoReport* report);

// The read of one part of an expert into its slot; reason, buffer and tag are the caller's.
Read expert_read(const StreamFiles& files, const RecordLayout& layout, int part, int expert,
                 std::byte* slot) noexcept;

// The most experts that any layer selects for a token, and that any layer has.
size_t most_used(const Geometry& geometry) noexcept;
size_t most_experts(const Geometry& geometry) noexcept;

std::vector<RecordLayout> layouts_of(const Geometry& geometry, uint32_t alignment);

// Throws Error(Format) for experts outside their file or absurd counts, Error(Internal) for a shape
// that does not belong to the files or cannot work.
void check_inputs(const Geometry& geometry, const StreamFiles& files, const ArenaShape& shape);

}  // namespace penstock::experts
