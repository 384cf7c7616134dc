#include "experts/expert_scan.h"

#include <algorithm>

#include "base/error.h"
#include "experts/stream.h"
#include "experts/stream_setup.h"

namespace penstock::experts {
namespace {

uint64_t largest_slot(const std::vector<RecordLayout>& layouts) {
  uint64_t largest = kPageSize;
  for (const RecordLayout& layout : layouts) largest = std::max(largest, layout.slot_bytes);
  return largest;
}

}  // namespace

std::string ExpertScan::Item::error_text() const {
  return fmt::format("offset {} of {}: {}", offset, path, read_error_text(error));
}

ExpertScan::ExpertScan(Geometry geometry, const StreamOptions& options, uint64_t first)
    : geometry_(std::move(geometry)),
      files_(open_expert_files(geometry_, options.io)),
      layouts_(layouts_of(geometry_, files_->alignment())),
      slot_bytes_(largest_slot(layouts_)),
      head_(first),
      issued_(first),
      places_(static_cast<size_t>(options.depth)),
      memory_(places_.size() * slot_bytes_, Pages::Small),
      queue_(open_backend(*files_, options.io, places_.size() * kMaxParts,
                          pool_threads(options.depth), options.decorate, &report_),
             files_->alignment(), places_.size() * kMaxParts) {
  for (const LayerGeometry& layer : geometry_.layers) end_ += static_cast<uint64_t>(layer.n_expert);
  for (uint64_t left = first; left > 0 && first < end_;) {
    const auto n =
        static_cast<uint64_t>(geometry_.layers[static_cast<size_t>(next_index_)].n_expert);
    if (left < n) {
      next_expert_ = static_cast<int>(left);
      break;
    }
    left -= n;
    ++next_index_;
  }
}

void ExpertScan::issue(uint64_t position) {
  const size_t at = position % places_.size();
  const RecordLayout& layout = layouts_[static_cast<size_t>(next_index_)];
  places_[at] = {next_index_, next_expert_, layout.n_parts, 0, 0, 0};
  for (int p = 0; p < layout.n_parts; ++p) {
    Read read = expert_read(*files_, layout, p, next_expert_, memory(at));
    read.reason = ReadReason::Fill;
    read.tag = at * kMaxParts + static_cast<uint64_t>(p);
    queue_.push(read);
  }
  if (++next_expert_ == geometry_.layers[static_cast<size_t>(next_index_)].n_expert) {
    ++next_index_;
    next_expert_ = 0;
  }
}

void ExpertScan::handle(std::span<const ReadDone> done) {
  for (const ReadDone& d : done) {
    Place& place = places_[d.tag / kMaxParts];
    --place.parts_left;
    if (d.error == 0 || place.error != 0) continue;
    const RecordLayout& layout = layouts_[static_cast<size_t>(place.index)];
    place.error = d.error;
    place.shard = layout.parts[d.tag % kMaxParts].shard;
    place.offset = d.offset;
  }
}

const ExpertScan::Item* ExpertScan::next() {
  if (head_ == end_) return nullptr;
  // The item handed out last is given back: its place is free again.
  while (issued_ < end_ && issued_ < head_ + places_.size()) issue(issued_++);
  queue_.submit();
  const size_t at = head_++ % places_.size();
  while (places_[at].parts_left > 0) handle(queue_.wait());
  const Place& place = places_[at];
  item_ = {place.index,
           place.expert,
           locate(layouts_[static_cast<size_t>(place.index)], place.expert, memory(at)),
           place.error,
           place.offset,
           place.error == 0 ? std::string() : files_->path(place.shard)};
  return &item_;
}

}  // namespace penstock::experts
