// Ways to get at a file's bytes that leave the rest of the file alone.
#pragma once

#include <cstdint>
#include <functional>

#include "base/file.h"
#include "gguf/model.h"

namespace penstock::models {

// Reads page-aligned stretches, around the page cache where the file system allows it. May be used
// from several threads.
class DenseReader {
 public:
  explicit DenseReader(const gguf::Shard& shard);
  // [start, start + bytes), cut at the end of the file. Throws Error(Io) naming file and offset.
  void read(uint64_t start, uint64_t bytes, std::byte* out) const;

 private:
  File direct_, buffered_;
  uint64_t size_;
};

// Brings the pages of a mapping into memory, and none beside them: the mapping must be advised
// MADV_RANDOM, or a fault reads around itself. `report` gets the bytes of each piece. Throws
// Error(Io) naming the path.
void fault_in(const std::byte* start, uint64_t bytes, const std::string& path,
              const std::function<void(uint64_t bytes)>& report);

}  // namespace penstock::models
