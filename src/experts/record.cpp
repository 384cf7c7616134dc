#include "experts/record.h"

#include <algorithm>

#include "base/error.h"
#include "base/memory.h"

namespace penstock::experts {
namespace {

constexpr uint64_t kMaxRead = uint64_t{1} << 30;
constexpr uint64_t kCacheLine = 64;

}  // namespace

RecordLayout record_layout(const LayerGeometry& layer, uint32_t alignment) {
  RecordLayout layout;
  layout.merged = layer.merged;
  layout.gate_bytes = layer.gate.bytes;
  layout.alignment = alignment;
  uint64_t end = 0;
  const auto add = [&](const MatrixGeometry& matrix, uint64_t bytes) {
    if (bytes == 0 || bytes > kMaxRead - 2 * uint64_t{alignment}) {
      fail(ErrorKind::Unsupported, "an expert matrix of layer {} has {} bytes; at most {} are read",
           layer.layer, bytes, kMaxRead);
    }
    layout.parts[layout.n_parts++] = {matrix.shard, matrix.offset, matrix.stride, bytes, end};
    // The matrix may begin up to alignment - 1 bytes into its room.
    const uint64_t room = round_up(bytes, alignment) + (alignment > 1 ? alignment : 0);
    end += round_up(room, std::max<uint64_t>(alignment, kCacheLine));
  };
  if (layer.merged) {
    add(layer.gate, layer.gate.bytes + layer.up.bytes);
  } else {
    add(layer.gate, layer.gate.bytes);
    add(layer.up, layer.up.bytes);
  }
  add(layer.down, layer.down.bytes);
  layout.slot_bytes = round_up(end, std::max<uint64_t>(alignment, kPageSize));
  return layout;
}

PartRead part_read(const RecordLayout& layout, int part, int expert) noexcept {
  const RecordPart& p = layout.parts[part];
  const uint64_t from = p.offset + static_cast<uint64_t>(expert) * p.stride;
  const uint64_t offset = round_down(from, layout.alignment);
  const uint64_t needed = from + p.bytes - offset;
  return {p.shard, offset, static_cast<uint32_t>(round_up(needed, layout.alignment)),
          static_cast<uint32_t>(needed), p.region};
}

ExpertData locate(const RecordLayout& layout, int expert, const std::byte* slot) noexcept {
  const auto start = [&](int part) {
    const RecordPart& p = layout.parts[part];
    const uint64_t from = p.offset + static_cast<uint64_t>(expert) * p.stride;
    return slot + p.region + from % layout.alignment;
  };
  ExpertData data;
  data.gate = start(0);
  data.up = layout.merged ? data.gate + layout.gate_bytes : start(1);
  data.down = start(layout.n_parts - 1);
  return data;
}

}  // namespace penstock::experts
