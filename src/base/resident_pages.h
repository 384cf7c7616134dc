// What of a mapping lies in memory, as mincore() tells.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace penstock {

// Pages of [data, data + bytes) that are in memory: of a file in the page cache, of anonymous
// memory those that were touched. `data` lies at a page; nothing where the kernel cannot say.
std::optional<uint64_t> resident_pages(const void* data, size_t bytes);

}  // namespace penstock
