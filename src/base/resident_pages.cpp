#include "base/resident_pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <vector>

#include "base/memory.h"

namespace penstock {

std::optional<uint64_t> resident_pages(const void* data, size_t bytes) {
  std::vector<unsigned char> resident((bytes + kPageSize - 1) / kPageSize);
  if (mincore(const_cast<void*>(data), bytes, resident.data()) != 0) return std::nullopt;
  return static_cast<uint64_t>(
      std::ranges::count_if(resident, [](unsigned char page) { return (page & 1) != 0; }));
}

}  // namespace penstock
