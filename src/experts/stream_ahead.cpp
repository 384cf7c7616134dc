// Reads before they are asked for: guesses about the next layers (spec/streaming.md §E) and what a
// profile counts most (§D.5).
#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "experts/expert_stream.h"
#include "experts/fill.h"

namespace penstock::experts {

bool ExpertStream::reads_ahead() const noexcept {
  if (!alias_.empty() || !speculation_allowed_) return false;
  if (options_.read_ahead == ReadAhead::Auto) return governor_.active();
  return options_.read_ahead == ReadAhead::On;
}

int ExpertStream::look_ahead() const {
  if (phase_ != Phase::Decode) return 0;
  if (options_.read_ahead == ReadAhead::Probe) return kMostAhead;
  if (!reads_ahead()) return 0;
  return disk_idle_ ? kMostAhead : 1;
}

void ExpertStream::predict(int index, const float* logits, int rows) {
  const int distance = index - layer_;
  if (!open_ || phase_ != Phase::Decode || distance < 1 || distance > kMostAhead ||
      static_cast<size_t>(index) >= geometry_.layers.size()) {
    fail(ErrorKind::Internal, "stream: layer {} predicted at layer {}", index, layer_);
  }
  const LayerGeometry& layer = geometry_.layers[static_cast<size_t>(index)];
  const auto n_expert = static_cast<size_t>(layer.n_expert);
  const int width = ahead_width(distance, layer.n_used);
  for (RouteObserver* observer : layer_router_.observers()) {
    for (int row = 0; row < rows; ++row) {
      const float* z = logits + static_cast<size_t>(row) * n_expert;
      observer->predicted(index, distance, row, {z, n_expert});
    }
  }
  ranked_.clear();
  for (size_t row = 0; row < static_cast<size_t>(rows); ++row) {
    rank_candidates(index, {logits + row * n_expert, n_expert}, router_sees(index),
                    std::max(width, layer.n_used));
    if (rows == 1) meter_.predicted(index, distance, row_ranked_, width);
    row_ranked_.resize(std::min(row_ranked_.size(), static_cast<size_t>(width)));
    for (const int32_t e : row_ranked_) {
      if (std::find(ranked_.begin(), ranked_.end(), e) == ranked_.end()) ranked_.push_back(e);
    }
  }
  if (options_.read_ahead == ReadAhead::Probe) return;
  // The nearer prediction is the better one: it replaces what was guessed from further away.
  drop_guesses(index, index);
  int left = ahead_reads(distance);
  for (const int32_t e : ranked_) {
    const int32_t slot = residency_.find(index, e);
    if (slot == kNoSlot) {
      if (left-- > 0) guesses_.push_back({index, e, distance});
    } else if (residency_.slot(slot).state == SlotState::Ready) {
      residency_.pin(slot);
      kept_.push_back({slot, index});
    }
  }
  read_guesses();
}

// By the rule that the layer's router will follow: what is guessed is what it would miss (§E.2).
void ExpertStream::rank_candidates(int index, std::span<const float> logits,
                                   std::span<const uint64_t> resident, int width) {
  if (router_) {
    const int n_used = geometry_.layers[static_cast<size_t>(index)].n_used;
    router_->rank(index, logits, resident, n_used, width, &row_ranked_);
  } else {
    rank_ahead(logits, width, &row_ranked_);
  }
}

// Demand goes first: guesses are read only while no demand is waiting or being read. A disk serves
// what it was given side by side, so that even a later guess would slow an earlier demand; so will
// those that are still being read when it comes, wherefore they are few.
void ExpertStream::read_guesses() {
  if (guesses_.empty() && fill_head_ == fill_.size()) return;
  const bool demand = reading_ > 0 || pending_head_ < pending_.size();
  size_t n = 0;
  while (n < guesses_.size() && !demand && speculating_ < at_once(guesses_[n].layer)) {
    const Guess g = guesses_[n++];
    if (residency_.find(g.layer, g.expert) != kNoSlot) {
      ++counters_.ahead.cancelled;
      continue;
    }
    const int32_t slot = residency_.acquire_ahead(g.layer, g.expert, step_clock_, last_step_clock_);
    if (slot == kNoSlot) {  // nothing here is worth less than a guess
      counters_.ahead.cancelled += guesses_.size() - n + 1;
      n = guesses_.size();
      break;
    }
    ++counters_.ahead.issued;
    meter_.issued(g.layer, g.distance);
    read_for_[static_cast<size_t>(slot)] = {counters_.steps, g.distance};
    read_expert(slot);
    queue_.submit();
  }
  guesses_.erase(guesses_.begin(), guesses_.begin() + static_cast<std::ptrdiff_t>(n));
  if (guesses_.empty() && !demand && phase_ == Phase::Decode && speculation_allowed_ &&
      fill_head_ < fill_.size()) {
    start_fills(at_once(fill_[fill_head_].layer));
  }
}

int ExpertStream::at_once(int index) const noexcept {
  return ahead_at_once(geometry_.layers[static_cast<size_t>(index)].expert_bytes(), options_.depth);
}

void ExpertStream::drop_guesses(int first, int last) {
  counters_.ahead.cancelled +=
      std::erase_if(guesses_, [&](const Guess& g) { return g.layer >= first && g.layer <= last; });
}

// An expert read ahead has arrived; it stays at least until its layer's router has spoken.
void ExpertStream::keep_ahead(int32_t slot) {
  residency_.pin(slot);
  const int32_t layer = residency_.slot(slot).layer;
  const bool to_come = !step_.first_layer_begun || layer > layer_;
  if (to_come) {
    kept_.push_back({slot, layer});
  } else {
    residency_.unpin(slot, clock_);
  }
}

void ExpertStream::release_ahead(int upto) {
  size_t n = 0;
  for (const Kept& kept : kept_) {
    if (kept.layer > upto) {
      kept_[n++] = kept;
    } else {
      // Not a use, but what came as a guess must not look older than it is.
      residency_.unpin(kept.slot, residency_.slot(kept.slot).unused_spec ? clock_ : 0);
    }
  }
  kept_.resize(n);
}

// Before a snapshot: what has arrived joins the map. A prompt waits for what is still being read
// and starts without guesses.
void ExpertStream::settle_ahead() {
  handle(queue_.poll());
  if (phase_ == Phase::Decode) return;
  drop_guesses(0, last_layer());
  while (speculating_ > 0) handle(queue_.wait());
  release_ahead(last_layer());
  residency_.recycle_failed();
}

void ExpertStream::count_spec_use(int32_t slot, bool late) {
  const ReadAheadFor& read = read_for_[static_cast<size_t>(slot)];
  const bool same = phase_ == Phase::Decode && read.step == counters_.steps;
  ++(same ? counters_.ahead.used_same_token : counters_.ahead.used_later);
  meter_.used(layer_, read.distance, late);
}

void ExpertStream::measure_ahead(const float* logits, int n_used) {
  if (options_.read_ahead == ReadAhead::Off) return;
  const auto k = static_cast<size_t>(n_used);
  meter_.routed(layer_, {ids_.data(), k}, {missing_.data(), k});
  if (options_.read_ahead != ReadAhead::Probe) return;
  const auto n = static_cast<size_t>(geometry_.layers[static_cast<size_t>(layer_)].n_expert);
  rank_candidates(layer_, {logits, n}, router_sees(layer_), n_used);
  meter_.fresh({ids_.data(), k}, row_ranked_);
}

// The first layer has no predecessor: what the last token selected there is likely again
// (pred=prev).
void ExpertStream::guess_first_layer() {
  int left = ahead_reads(1);
  for (const int32_t e : meter_.previous(0)) {
    if (residency_.find(0, e) == kNoSlot && left-- > 0) guesses_.push_back({0, e});
  }
  read_guesses();
}

void ExpertStream::end_ahead_step(int rows) {
  if (!step_.first_layer_begun) return;  // a draft alone
  const auto wall = static_cast<uint64_t>(now_ns() - step_.began_ns);
  idle_rows_ += rows;
  idle_wall_ns_ += wall;
  if (idle_rows_ >= AheadGovernor::kLater.window) {
    const uint64_t busy = queue_.busy_ns() - std::exchange(idle_busy_ns_, queue_.busy_ns());
    disk_idle_ = 5 * busy < 3 * idle_wall_ns_;
    idle_rows_ = 0;
    idle_wall_ns_ = 0;
  }
  governor_.step(rows, wall);
  step_.first_layer_begun = false;
  drop_guesses(0, last_layer());
  if (!reads_ahead()) return;
  residency_.note_median();
  guess_first_layer();
  copy_io_counters();
}

// ------------------------------------------------------------------------------- profiles

void ExpertStream::set_prior(std::span<const float> shares) {
  residency_.set_prior(shares);
  fill_.clear();
  fill_head_ = 0;
  if (options_.fill == Fill::None || options_.alias) return;
  for (const FillItem& item : fill_list(geometry_, shape_, shares)) {
    fill_.push_back({item.layer, item.expert});
  }
}

void ExpertStream::start_fills(int most) {
  while (fill_head_ < fill_.size() && speculating_ < most) {
    const Guess g = fill_[fill_head_++];
    if (residency_.find(g.layer, g.expert) != kNoSlot) continue;
    const int32_t slot = residency_.acquire(g.layer, g.expert, ReadReason::Fill, false);
    if (slot != kNoSlot) read_expert(slot);
  }
  queue_.submit();
}

FillReport ExpertStream::fill(const FillProgress& progress) {
  FillReport report;
  if (options_.fill != Fill::Warm || fill_.empty()) return report;
  const int64_t started = now_ns();
  const uint64_t bytes_before = queue_.counts(ReadReason::Fill).bytes;
  const uint64_t read_before = counters_.experts_read;
  while (fill_head_ < fill_.size() || speculating_ > 0) {
    start_fills(options_.depth);
    handle(queue_.wait());
    if (progress) progress(fill_head_ - static_cast<size_t>(speculating_), fill_.size());
  }
  residency_.recycle_failed();
  report.experts = counters_.experts_read - read_before - fills_failed_;
  report.failed = fills_failed_;
  report.bytes = queue_.counts(ReadReason::Fill).bytes - bytes_before;
  report.seconds = seconds_since(started);
  end_turn();
  return report;
}

// ------------------------------------------------------------------------------- memory is short

uint64_t ExpertStream::shrink(double share) {
  if (open_) end();
  drop_guesses(0, last_layer());
  while (queue_.outstanding() > 0) handle(queue_.wait());
  release_ahead(last_layer());
  residency_.recycle_failed();
  const bool registered = io_.registered_bytes != 0;
  if (registered) queue_.backend().unregister_buffers();
  uint64_t given_back = 0;
  uint64_t end = 0;  // behind the class's slots, as they were numbered at first
  for (size_t c = 0; c < shape_.classes.size(); ++c) {
    SlotClass& slots = shape_.classes[c];
    end += slots_at_first_[c];
    const auto most = static_cast<uint64_t>(share * static_cast<double>(slots.slots)) + 1;
    const uint64_t floor = class_floor(slots, options_.depth);
    const uint64_t n = std::min(most, slots.slots > floor ? slots.slots - floor : 0);
    if (n == 0) continue;
    residency_.retire(static_cast<uint32_t>(c), n);
    given_back += arena_.give_back(static_cast<int32_t>(end - 1), n);
    slots.slots -= n;
  }
  if (registered) {
    io_.registered_bytes = 0;
    register_arena();
  }
  copy_io_counters();
  return given_back;
}

void ExpertStream::end_turn() {
  if (open_) end();
  for (RouteObserver* observer : layer_router_.observers()) observer->turn_ended();
  residency_.choose_hot(options_.hot_share);
  copy_io_counters();
}

}  // namespace penstock::experts
