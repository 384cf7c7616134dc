#include "experts/mapped_stream.h"

#include <sys/mman.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/resident_pages.h"
#include "experts/stream_setup.h"

namespace penstock::experts {
namespace {

// A layer's expert matrices lie in one stretch of a shard each (a pack: in one for all).
template <typename Visit>
void for_each_bank(const Geometry& geometry, const Visit& visit) {
  for (const LayerGeometry& layer : geometry.layers) {
    for (const MatrixGeometry* m : {&layer.gate, &layer.up, &layer.down}) {
      const auto last = static_cast<uint64_t>(layer.n_expert - 1);
      visit(*m, m->offset, last * m->stride + m->bytes);
    }
  }
}

}  // namespace

MappedStream::MappedStream(Geometry geometry, const StreamOptions& options)
    : geometry_(std::move(geometry)),
      window_(static_cast<size_t>(options.depth)),
      router_(geometry_),
      layer_stall_ns_(geometry_.layers.size(), 0) {
  for (const std::string& path : geometry_.shards) maps_.emplace_back(File::open_read(path));
  for_each_bank(geometry_, [&](const MatrixGeometry& m, uint64_t offset, uint64_t bytes) {
    const FileMap& map = maps_[m.shard];
    if (offset + bytes > map.size()) {
      fail(ErrorKind::Format,
           "{} ends at byte {}, but its experts reach to byte {}; fetch it again",
           geometry_.shards[m.shard], map.size(), offset + bytes);
    }
    // Without this the kernel reads megabytes around every page that is missing.
    map.advise(offset, bytes, MADV_RANDOM);
  });
  shape_ = arena_shape(geometry_, 1);
  io_.requested = options.io;
  io_.mapped = true;
  const size_t most = most_experts(geometry_);
  touched_.resize(most);
  experts_.reserve(most);
  batch_.reserve(most);
}

void MappedStream::want(int expert) const noexcept {
  const LayerGeometry& layer = geometry_.layers[static_cast<size_t>(layer_)];
  for (const MatrixGeometry* m : {&layer.gate, &layer.up, &layer.down}) {
    maps_[m->shard].advise(m->offset + static_cast<uint64_t>(expert) * m->stride, m->bytes,
                           MADV_WILLNEED);
  }
}

ReadyExpert MappedStream::at(int expert) const noexcept {
  const LayerGeometry& layer = geometry_.layers[static_cast<size_t>(layer_)];
  const auto data = [&](const MatrixGeometry& m) {
    return maps_[m.shard].data() + m.offset + static_cast<uint64_t>(expert) * m.stride;
  };
  return {expert, {data(layer.gate), data(layer.up), data(layer.down)}};
}

Routing MappedStream::begin(int index, const float* logits, int rows, const RouteRule& rule,
                            Phase phase) {
  router_.check(index, rows, rule);
  if (open_) end();
  note(Work::Route);
  open_ = true;
  layer_ = index;
  phase_ = phase;
  const Routing routing = router_.route(index, logits, rows, rule, phase, nullptr, {});
  std::fill(touched_.begin(), touched_.end(), uint8_t{0});
  for (const int32_t e : routing.ids) touched_[static_cast<size_t>(e)] = 1;
  experts_.clear();
  const int n_expert = geometry_.layers[static_cast<size_t>(index)].n_expert;
  for (int e = 0; e < n_expert; ++e) {
    if (touched_[static_cast<size_t>(e)] != 0) experts_.push_back(e);
  }
  delivered_ = 0;
  wanted_ = phase == Phase::Decode ? experts_.size() : std::min(window_, experts_.size());
  for (size_t i = 0; i < wanted_; ++i) want(experts_[i]);
  if (phase == Phase::Decode) {
    step_uses_ += routing.ids.size();
    step_expected_ += static_cast<uint64_t>(rows) * static_cast<uint64_t>(rule.n_used);
  } else {
    counters_.prompt_experts_touched += experts_.size();
  }
  note(Work::Ahead);
  return routing;
}

// In decode all at once; a prompt's in windows, the next of which is asked for while one is
// computed.
std::span<const ReadyExpert> MappedStream::next() {
  if (!open_) fail(ErrorKind::Internal, "stream: next() without begin()");
  note(Work::Experts);
  batch_.clear();
  const size_t end =
      phase_ == Phase::Decode ? experts_.size() : std::min(delivered_ + window_, experts_.size());
  for (; wanted_ < std::min(end + window_, experts_.size()); ++wanted_) want(experts_[wanted_]);
  for (; delivered_ < end; ++delivered_) batch_.push_back(at(experts_[delivered_]));
  return batch_;
}

void MappedStream::end() {
  if (!open_) return;
  note(Work::Dense);
  open_ = false;
  batch_.clear();
}

void MappedStream::end_step(int rows) {
  end();
  counters_.mapped += std::exchange(step_uses_, 0);
  counters_.uses_expected += std::exchange(step_expected_, 0);
  if (counters_.mapped != counters_.uses_expected) {
    fail(ErrorKind::Internal, "counters do not close: {} uses of {} expected", counters_.mapped,
         counters_.uses_expected);
  }
  ++counters_.steps;
  counters_.tokens += static_cast<uint64_t>(rows);
  for (RouteObserver* observer : router_.observers()) observer->step_ended(rows);
  if (timeline_ != nullptr) timeline_->token(now_ns());
}

void MappedStream::end_turn() {
  for (RouteObserver* observer : router_.observers()) observer->turn_ended();
}

void MappedStream::record(Timeline* timeline) {
  timeline_ = timeline;
  if (timeline != nullptr) timeline->start(now_ns());
}

void MappedStream::note(Work next) {
  const Work past = std::exchange(work_, next);
  if (timeline_ == nullptr) return;
  timeline_->work(past, geometry_.layers[static_cast<size_t>(layer_)].layer,
                  static_cast<uint32_t>(batch_.size()), now_ns());
}

uint64_t cached_expert_bytes(const Geometry& geometry) {
  std::vector<FileMap> maps;
  for (const std::string& path : geometry.shards) maps.emplace_back(File::open_read(path));
  uint64_t cached = 0;
  for_each_bank(geometry, [&](const MatrixGeometry& m, uint64_t offset, uint64_t bytes) {
    const uint64_t from = round_down(offset, kPageSize);
    const uint64_t length = std::min(offset + bytes, maps[m.shard].size()) - from;
    cached += resident_pages(maps[m.shard].data() + from, length).value_or(0) * kPageSize;
  });
  return cached;
}

}  // namespace penstock::experts
