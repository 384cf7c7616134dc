#include "experts/stream_setup.h"

#include <algorithm>

#include "base/error.h"
#include "experts/residency.h"
#include "experts/stream.h"

namespace penstock::experts {

int pool_threads(int depth) noexcept {
  return std::max(depth, 8);
}

size_t most_used(const Geometry& geometry) noexcept {
  int most = 0;
  for (const LayerGeometry& layer : geometry.layers) most = std::max(most, layer.n_used);
  return static_cast<size_t>(most);
}

size_t most_experts(const Geometry& geometry) noexcept {
  int most = 0;
  for (const LayerGeometry& layer : geometry.layers) most = std::max(most, layer.n_expert);
  return static_cast<size_t>(most);
}

size_t backend_capacity(const Geometry& geometry, int depth) noexcept {
  constexpr int kRows = 8;
  int most = depth;
  for (const LayerGeometry& layer : geometry.layers) {
    most = std::max(most, std::min(layer.n_expert, kRows * layer.n_used));
  }
  return static_cast<size_t>(most) * kMaxParts;
}

std::unique_ptr<IoBackend> open_backend(const StreamFiles& files, IoMode mode, size_t capacity,
                                        int threads, const Decorate& decorate, IoReport* report) {
  *report = files.report();
  report->requested = mode;
  auto backend = make_backend(mode, !files.direct(), capacity, threads, report);
  return decorate ? decorate(std::move(backend)) : std::move(backend);
}

Read expert_read(const StreamFiles& files, const RecordLayout& layout, int part, int expert,
                 std::byte* slot) noexcept {
  const PartRead read = part_read(layout, part, expert);
  return {.fd = files.fd(read.shard),
          .offset = read.offset,
          .data = slot + read.at,
          .bytes = read.bytes,
          .needed = read.needed};
}

std::vector<RecordLayout> layouts_of(const Geometry& geometry, uint32_t alignment) {
  std::vector<RecordLayout> layouts;
  for (const LayerGeometry& layer : geometry.layers) {
    layouts.push_back(record_layout(layer, alignment));
  }
  return layouts;
}

void check_inputs(const Geometry& geometry, const StreamFiles& files, const ArenaShape& shape) {
  if (shape.alignment != files.alignment()) {
    fail(ErrorKind::Internal, "arena planned for alignment {}, files read with {}", shape.alignment,
         files.alignment());
  }
  if (shape.slots() + shape.transit >= uint64_t{1} << kSlotBits) {
    fail(ErrorKind::Unsupported, "{} slots", shape.slots());
  }
  if (shape.transit == 0 && !shape.holds_all()) {
    fail(ErrorKind::Internal, "an arena that does not hold every expert needs transit slots");
  }
  for (const LayerGeometry& layer : geometry.layers) {
    if (layer.n_used < 1 || layer.n_used > layer.n_expert || layer.n_expert >= 65536) {
      fail(ErrorKind::Format, "layer {}: {} of {} experts used", layer.layer, layer.n_used,
           layer.n_expert);
    }
    const RecordLayout layout = record_layout(layer, shape.alignment);
    for (int p = 0; p < layout.n_parts; ++p) {
      const PartRead last = part_read(layout, p, layer.n_expert - 1);
      const uint64_t size = files.bytes(last.shard);
      if (last.offset + last.needed > size) {
        fail(ErrorKind::Format,
             "{} ends at byte {}, but the experts of layer {} reach to byte {}; the file is "
             "truncated: fetch it again",
             files.path(last.shard), size, layer.layer, last.offset + last.needed);
      }
    }
  }
}

std::shared_ptr<const StreamFiles> open_expert_files(const Geometry& geometry, IoMode mode) {
  std::vector<uint64_t> probe_at(geometry.shards.size(), 0);
  for (const LayerGeometry& layer : geometry.layers) {
    for (const MatrixGeometry* matrix : {&layer.gate, &layer.up, &layer.down}) {
      // In the middle: pages at a tensor's ends may be mapped, which the page cache does not drop.
      const auto middle = static_cast<uint64_t>(layer.n_expert / 2);
      probe_at.at(matrix->shard) = matrix->offset + middle * matrix->stride;
    }
  }
  return StreamFiles::open(geometry.shards, mode, probe_at);
}

uint64_t stream_io_bytes(const Geometry& geometry, const StreamOptions& options) {
  const size_t capacity = backend_capacity(geometry, options.depth);
  return backend_bytes(capacity, pool_threads(options.depth)) +
         ReadQueue::memory_bytes(capacity, capacity);
}

uint64_t stream_table_bytes(const Geometry& geometry, const ArenaShape& shape) {
  const auto n_expert = static_cast<uint64_t>(most_experts(geometry));
  uint64_t sums = 0;  // checksums to compare with
  for (const LayerGeometry& layer : geometry.layers) {
    if (layer.sums != nullptr) sums += layer.sums->sums.size() * sizeof(uint64_t);
  }
  constexpr uint64_t kPerSlot = 56;     // failures, marks of the reads under way
  constexpr uint64_t kPerExpert = 256;  // lists of the current layer, probabilities, marks
  return Residency::memory_bytes(geometry, shape) + n_expert * kPerExpert +
         CacheRouter::memory_bytes(geometry) +
         AheadMeter::memory_bytes(geometry.layers.size(), most_used(geometry)) +
         geometry.layers.size() * (sizeof(RecordLayout) + sizeof(uint64_t)) +
         (shape.slots() + shape.transit) * kPerSlot + sums;
}

}  // namespace penstock::experts
