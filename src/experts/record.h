// How one expert is read and where its matrices then lie in a slot (spec/streaming.md §B.2-3): from
// a pack by one read of its record; in place by one read per matrix, or per adjacent pair in a
// merged tensor, each widened to the alignment that direct reads need.
#pragma once

#include <cstddef>
#include <cstdint>

#include "experts/geometry.h"

namespace penstock::experts {

inline constexpr int kMaxParts = 3;

struct RecordPart {
  uint32_t shard = 0;
  uint64_t offset = 0;  // of expert 0 in the shard
  uint64_t stride = 0;
  uint64_t bytes = 0;   // of one expert
  uint64_t region = 0;  // where the part's room begins in a slot; a multiple of the alignment
};

// A matrix: the part that brings it and where it begins in that part.
struct MatrixPlace {
  int part = 0;
  uint64_t offset = 0;
};

struct RecordLayout {
  RecordPart parts[kMaxParts];
  int n_parts = 0;
  MatrixPlace gate, up, down;
  uint32_t alignment = 1;
  uint64_t slot_bytes = 0;  // a multiple of the page size
};

// A read that covers one part of an expert.
struct PartRead {
  uint32_t shard = 0;
  uint64_t offset = 0;  // aligned
  uint32_t bytes = 0;   // aligned; may reach past the end of the file
  uint32_t needed = 0;  // of these, the first bytes that the part lies in
  uint64_t at = 0;      // destination within the slot, aligned
};

// Throws Error(Unsupported) for matrices too large for one read.
RecordLayout record_layout(const LayerGeometry& layer, uint32_t alignment);
PartRead part_read(const RecordLayout& layout, int part, int expert) noexcept;
// The matrices of `expert` in a slot that was filled with its part reads.
ExpertData locate(const RecordLayout& layout, int expert, const std::byte* slot) noexcept;

}  // namespace penstock::experts
