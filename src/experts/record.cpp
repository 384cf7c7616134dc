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
  layout.alignment = alignment;
  uint64_t end = 0;
  const auto add = [&](const MatrixGeometry& matrix, uint64_t bytes) {
    if (bytes == 0 || bytes > kMaxRead - 2 * uint64_t{alignment}) {
      fail(ErrorKind::Unsupported, "an expert matrix of layer {} has {} bytes; at most {} are read",
           layer.layer, bytes, kMaxRead);
    }
    layout.parts[layout.n_parts] = {matrix.shard, matrix.offset, matrix.stride, bytes, end};
    // Records are aligned; a matrix may begin up to alignment - 1 bytes into its room.
    const bool aligned = layer.record_bytes != 0 || alignment == 1;
    const uint64_t room = round_up(bytes, alignment) + (aligned ? 0 : alignment);
    end += round_up(room, std::max<uint64_t>(alignment, kCacheLine));
    return layout.n_parts++;
  };
  if (layer.record_bytes != 0) {
    const int record = add(layer.gate, layer.record_bytes);
    layout.gate = {record, 0};
    layout.up = {record, layer.up.offset - layer.gate.offset};
    layout.down = {record, layer.down.offset - layer.gate.offset};
  } else {
    if (layer.merged) {
      const int both = add(layer.gate, layer.gate.bytes + layer.up.bytes);
      layout.gate = {both, 0};
      layout.up = {both, layer.gate.bytes};
    } else {
      layout.gate = {add(layer.gate, layer.gate.bytes), 0};
      layout.up = {add(layer.up, layer.up.bytes), 0};
    }
    layout.down = {add(layer.down, layer.down.bytes), 0};
  }
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
  const auto start = [&](const MatrixPlace& place) {
    const RecordPart& p = layout.parts[place.part];
    const uint64_t from = p.offset + static_cast<uint64_t>(expert) * p.stride;
    return slot + p.region + from % layout.alignment + place.offset;
  };
  return {start(layout.gate), start(layout.up), start(layout.down)};
}

}  // namespace penstock::experts
