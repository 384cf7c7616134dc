#include "models/memory_stream.h"

#include <sys/mman.h>

#include <algorithm>

#include "base/error.h"
#include "experts/route.h"

namespace penstock::testing {

MemoryStream::MemoryStream(experts::Geometry geometry, Arrival arrival)
    : geometry_(std::move(geometry)), arrival_(arrival) {
  for (const std::string& path : geometry_.shards) {
    files_.emplace_back(File::open_read(path));
    // Nothing but what is used comes into memory: tests look at what others bring in.
    files_.back().advise(0, files_.back().size(), MADV_RANDOM);
  }
}

experts::Routing MemoryStream::begin(int index, const float* logits, int rows,
                                     const experts::RouteRule& rule, experts::Phase phase) {
  if (open_) fail(ErrorKind::Internal, "begin() before end()");
  open_ = true;
  const experts::LayerGeometry& layer = geometry_.layers[static_cast<size_t>(index)];
  const auto n_expert = static_cast<size_t>(layer.n_expert);
  const auto n_used = static_cast<size_t>(rule.n_used);
  ids_.resize(static_cast<size_t>(rows) * n_used);
  weights_.resize(ids_.size());
  probabilities_.resize(n_expert);
  std::vector<bool> touched(n_expert, false);
  for (int r = 0; r < rows; ++r) {
    const size_t at = static_cast<size_t>(r) * n_used;
    experts::route_row({logits + static_cast<size_t>(r) * n_expert, n_expert}, rule,
                       probabilities_.data(), ids_.data() + at, weights_.data() + at);
    for (size_t i = 0; i < n_used; ++i) touched[static_cast<size_t>(ids_[at + i])] = true;
    if (observer_ != nullptr) {
      observer_->selected(index, r, phase, {ids_.data() + at, n_used},
                          {logits + static_cast<size_t>(r) * n_expert, n_expert});
    }
  }
  ready_.clear();
  delivered_ = 0;
  const auto data = [&](const experts::MatrixGeometry& m, size_t expert) {
    return files_[m.shard].data() + m.offset + expert * m.stride;
  };
  for (size_t e = 0; e < n_expert; ++e) {
    if (!touched[e]) continue;
    ready_.push_back(
        {static_cast<int>(e), {data(layer.gate, e), data(layer.up, e), data(layer.down, e)}});
  }
  if (arrival_ == Arrival::Backwards) std::reverse(ready_.begin(), ready_.end());
  return {ids_, weights_};
}

std::span<const experts::ReadyExpert> MemoryStream::next() {
  if (fail_after_ == 0) {
    open_ = false;
    fail(ErrorKind::Io, "a read failed because the test wanted it to");
  }
  if (fail_after_ > 0) --fail_after_;
  const size_t n = arrival_ == Arrival::AllAtOnce ? ready_.size() - delivered_
                                                  : std::min<size_t>(1, ready_.size() - delivered_);
  const std::span<const experts::ReadyExpert> batch{ready_.data() + delivered_, n};
  delivered_ += n;
  return batch;
}

void MemoryStream::end() {
  open_ = false;
}

void MemoryStream::end_step(int rows) {
  ++counters_.steps;
  counters_.tokens += static_cast<uint64_t>(rows);
}

}  // namespace penstock::testing
