#include "measure/sim_replay.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/error.h"
#include "experts/fill.h"
#include "experts/stream.h"
#include "experts/stream_setup.h"

namespace penstock::measure {

using experts::kNoSlot;
using experts::ReadReason;

Replay::Replay(const TraceModel& model, const experts::ArenaShape& shape, const SimSetting& setting,
               std::span<const float> shares, const SimCost* cost)
    : model_(model),
      shape_(shape),
      setting_(setting),
      cost_(cost),
      residency_(model.geometry, shape, evict_of(setting.policy)),
      shares_(shares),
      reads_(model.geometry.layers.size(), 0) {
  const size_t n = experts::most_experts(model.geometry);
  seen_.assign(n, 0);
  admitted_.assign(n, 0);
  probabilities_.resize(n);
  weights_.resize(experts::most_used(model.geometry));
  read_for_step_.assign(residency_.n_slots(), 0);
  if (setting.moce.on() && !shape.holds_all()) router_.emplace(setting.moce, model.geometry);
  const size_t n_layers = model.geometry.layers.size();
  use_s_.assign(n_layers, 0);
  read_s_.assign(n_layers, 0);
  if (cost != nullptr && !model.read_bytes.empty()) {
    double work = 0;
    for (size_t l = 0; l < n_layers; ++l) {
      work += model.read_bytes[l] * model.geometry.layers[l].n_used;
    }
    for (size_t l = 0; l < n_layers; ++l) {
      use_s_[l] = cost->compute.experts_s * model.read_bytes[l] / work;
      read_s_[l] = model.read_bytes[l] / cost->disk.bytes_per_s;
    }
    shared_s_ = cost->compute.shared_s / static_cast<double>(n_layers);
    dense_s_ =
        std::max(0.0, cost->compute.token_s - cost->compute.experts_s - cost->compute.shared_s) /
        static_cast<double>(n_layers);
  } else {
    cost_ = nullptr;
  }
  if (!shares.empty()) residency_.set_prior(shares);
  if (setting.warm) fill();
}

// What the engine does before the first prompt.
void Replay::fill() {
  for (const experts::FillItem& item : experts::fill_list(model_.geometry, shape_, shares_)) {
    const int32_t slot =
        residency_.acquire(item.layer, item.expert, ReadReason::Fill, /*may_evict=*/false);
    if (slot == kNoSlot) continue;
    residency_.complete(slot, true);
    ++counts_.fill_reads;
  }
  if (counts_.fill_reads > 0) residency_.choose_hot(setting_.hot_share);
}

void Replay::run(const TraceChunk& chunk) {
  for (const TraceEvent& event : chunk.events) {
    switch (event.kind) {
      case TraceEventKind::Decode:
        decode(event, chunk);
        break;
      case TraceEventKind::Predicted:
        if (setting_.ahead.on) predicted(event, chunk);
        break;
      case TraceEventKind::Prompt:
        prompt(event, chunk);
        break;
      case TraceEventKind::StepEnd:
        step_end(static_cast<int>(event.rows));
        break;
      case TraceEventKind::TurnEnd:
        turn_end();
        break;
    }
  }
}

void Replay::open_layer(const TraceEvent& event, int n_used) {
  const int index = event.index;
  if (setting_.ahead.on) read_guesses();
  // A step that meets the first layer again was given up half-way, and is not counted.
  if (index == 0 && step_.begun) step_ = {};
  if (index == 0) {
    step_.begun = true;
    last_step_clock_ = std::exchange(step_clock_, clock_ + 1);
    if (setting_.moce.epoch()) residency_.begin_epoch();
  }
  residency_.set_position(index);
  step_.expected += uint64_t{event.rows} * static_cast<uint64_t>(n_used);
  layer_ = index;
  ++clock_;
  if (setting_.ahead.on) land(now_s_);
}

// What cache-aware routing sees of a layer.
std::span<const uint64_t> Replay::routing_bits(int index) const noexcept {
  return setting_.moce.epoch() ? residency_.epoch_bits(index) : residency_.ready_bits(index);
}

// The trace's selection, or what cache-aware routing makes of the logits.
std::span<const int32_t> Replay::selection(const TraceEvent& event, const TraceChunk& chunk) {
  const experts::LayerGeometry& layer = model_.geometry.layers[event.index];
  const auto n_used = static_cast<size_t>(layer.n_used);
  const size_t n = event.rows * n_used;
  ids_.resize(n);
  if (!router_) {
    std::copy_n(chunk.ids.begin() + static_cast<std::ptrdiff_t>(event.at), n, ids_.begin());
    return ids_;
  }
  const auto n_expert = static_cast<size_t>(layer.n_expert);
  const experts::RouteRule rule{layer.n_used, true, 1.0f};
  const std::span<const uint64_t> resident = routing_bits(layer_);
  for (size_t row = 0; row < event.rows; ++row) {
    const std::span<const float> z{chunk.logits.data() + event.logits + row * n_expert, n_expert};
    if (!router_->route(layer_, z, resident, rule, probabilities_.data(),
                        ids_.data() + row * n_used, weights_.data())) {
      fail(ErrorKind::Format, "{}: logits of layer {} that are not finite; record the trace again",
           model_.path, layer.layer);
    }
  }
  return ids_;
}

void Replay::decode(const TraceEvent& event, const TraceChunk& chunk) {
  open_layer(event, model_.geometry.layers[event.index].n_used);
  const std::span<const int32_t> ids = selection(event, chunk);
  if (setting_.ahead.on && event.index == 0) {
    const size_t k = static_cast<size_t>(model_.geometry.layers[0].n_used);
    previous_.assign(ids.end() - static_cast<std::ptrdiff_t>(k), ids.end());
  }
  if (event.rows == 1 && !setting_.ahead.on) return decode_one(ids);
  classify(ids);
  const size_t n_hits = held_.size();
  const size_t n_missing = pending_.size();
  if (n_missing != 0) read_missing();
  for (const int32_t slot : held_) residency_.unpin(slot, clock_);
  held_.clear();
  if (cost_ != nullptr) compute(n_missing, n_hits);
}

// What classify() and read_missing() do, for one row and without guesses: a slot that is used is
// taken out of the victims' order only if it comes up for eviction meanwhile.
void Replay::decode_one(std::span<const int32_t> ids) {
  pending_.clear();
  held_.clear();
  for (const int32_t e : ids) {
    seen_[static_cast<size_t>(e)] = clock_;
    const int32_t slot = residency_.find(layer_, e);
    if (slot == kNoSlot) {
      pending_.push_back(e);
    } else {
      held_.push_back(slot);
    }
  }
  step_.uses.arena += held_.size();
  step_.uses.miss_issued += pending_.size();
  const size_t n_hits = held_.size();
  const size_t n_missing = pending_.size();
  if (n_missing != 0) {
    std::sort(pending_.begin(), pending_.end());
    reads_[static_cast<size_t>(layer_)] += n_missing;
    counts_.demand_reads += n_missing;
    read_.clear();
    for (const int32_t e : pending_) read_.push_back(take_slot(e));
    for (size_t i = 0; i < n_missing; ++i) {
      residency_.count_use(layer_, pending_[i]);
      residency_.complete_used(read_[i], clock_);
    }
  }
  for (const int32_t slot : held_) {
    if (residency_.slot(slot).pin != 0) {
      residency_.count_use(layer_, residency_.slot(slot).expert);
      residency_.unpin(slot, clock_);
    } else {
      residency_.use(slot, clock_);
    }
  }
  held_.clear();
  late_until_s_ = 0;
  if (cost_ != nullptr) compute(n_missing, n_hits);
}

int32_t Replay::take_slot(int32_t expert) {
  for (;;) {
    const int32_t victim = residency_.victim(shape_.class_of[static_cast<size_t>(layer_)]);
    if (victim == kNoSlot) break;
    const experts::Slot& s = residency_.slot(victim);
    if (s.layer != layer_ || seen_[static_cast<size_t>(s.expert)] != clock_) break;
    residency_.pin(victim);
  }
  const int32_t slot = residency_.acquire(layer_, expert, ReadReason::Demand, true);
  if (slot == kNoSlot) fail(ErrorKind::Internal, "simulator: no slot for an expert");
  return slot;
}

void Replay::classify(std::span<const int32_t> ids) {
  pending_.clear();
  late_until_s_ = 0;
  for (const int32_t e : ids) {
    const bool first = std::exchange(seen_[static_cast<size_t>(e)], clock_) != clock_;
    const int32_t slot = residency_.find(layer_, e);
    if (slot == kNoSlot) {
      if (first) {
        ++step_.uses.miss_issued;
        pending_.push_back(e);
      } else {
        ++step_.uses.miss_joined;
      }
    } else {
      const bool unused = residency_.take_unused(slot);
      if (unused) {
        const bool same = read_for_step_[static_cast<size_t>(slot)] == counts_.steps;
        ++(same ? counts_.ahead.used_same_token : counts_.ahead.used_later);
      }
      if (!ready(slot)) {  // being read ahead
        ++step_.uses.ra_late;
      } else {
        ++(unused ? step_.uses.ra_timely : step_.uses.arena);
        if (first) {
          residency_.pin(slot);
          held_.push_back(slot);
        }
      }
    }
    residency_.count_use(layer_, e);
  }
  if (!setting_.ahead.on) return;
  // Awaited reads of this layer arrive before it ends; what was kept for it may go now.
  for (size_t i = 0; i < in_flight_.size();) {
    const InFlight f = in_flight_[i];
    const experts::Slot& s = residency_.slot(f.slot);
    if (s.layer != layer_ || seen_[static_cast<size_t>(s.expert)] != clock_) {
      ++i;
      continue;
    }
    late_until_s_ = std::max(late_until_s_, f.done_s);
    residency_.complete(f.slot, true);
    residency_.pin(f.slot);
    held_.push_back(f.slot);
    in_flight_.erase(in_flight_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  drop_guesses(0, layer_);
  release_ahead(layer_);
}

// Demand reads, in the order of the file. A step of many rows can select more experts than there
// are slots: the others follow when what has a slot was computed on.
void Replay::read_missing() {
  std::sort(pending_.begin(), pending_.end());
  reads_[static_cast<size_t>(layer_)] += pending_.size();
  counts_.demand_reads += pending_.size();
  size_t done = 0;
  while (done < pending_.size()) {
    const size_t from = held_.size();
    for (; done < pending_.size(); ++done) {
      int32_t slot = residency_.acquire(layer_, pending_[done], ReadReason::Demand, true);
      if (slot == kNoSlot && !kept_.empty()) {
        release_ahead(last_layer());
        slot = residency_.acquire(layer_, pending_[done], ReadReason::Demand, true);
      }
      if (slot == kNoSlot) break;
      held_.push_back(slot);
    }
    for (size_t i = from; i < held_.size(); ++i) {
      residency_.complete(held_[i], true);
      residency_.pin(held_[i]);
    }
    if (done == pending_.size()) return;
    if (held_.empty()) fail(ErrorKind::Internal, "simulator: no slot for an expert");
    for (const int32_t slot : held_) residency_.unpin(slot, clock_);
    held_.clear();
  }
}

// Hits first, then what had to be read (spec/streaming.md §M.1): the layer's time and its stall.
void Replay::compute(size_t n_missing, size_t n_hits) {
  const auto l = static_cast<size_t>(layer_);
  const double hits_done_s = now_s_ + shared_s_ + static_cast<double>(n_hits) * use_s_[l];
  double there_s = late_until_s_;
  guesses_from_s_ = now_s_;
  if (n_missing != 0) {
    disk_free_s_ = std::max(disk_free_s_, now_s_) + cost_->disk.latency_s +
                   static_cast<double>(n_missing) * read_s_[l];
    there_s = std::max(there_s, disk_free_s_);
    guesses_from_s_ = disk_free_s_;
  }
  const double stall_s = std::max(0.0, there_s - hits_done_s);
  counts_.stall_s += stall_s;
  now_s_ = hits_done_s + stall_s + static_cast<double>(n_missing) * use_s_[l] + dense_s_;
}

// A prompt leaves the arena as it is, but for each layer's share of the empty slots, which goes to
// the experts it used most (ExpertStream::admit_most_used).
void Replay::prompt(const TraceEvent& event, const TraceChunk& chunk) {
  layer_ = event.index;
  ++clock_;
  if (setting_.ahead.on) settle_for_prompt();
  const auto n_expert = static_cast<size_t>(model_.geometry.layers[event.index].n_expert);
  const std::span<const uint32_t> uses{chunk.uses.data() + event.at, n_expert};
  pending_.clear();
  for (size_t e = 0; e < n_expert; ++e) {
    if (uses[e] == 0) continue;
    ++counts_.prompt_experts_touched;
    const int32_t slot = residency_.find(layer_, static_cast<int>(e));
    if (slot == kNoSlot) {
      pending_.push_back(static_cast<int32_t>(e));
      continue;
    }
    ++counts_.prompt_arena_used;
    if (residency_.take_unused(slot)) ++counts_.ahead.used_later;
  }
  counts_.prompt_reads += pending_.size();
  admit(uses);
  for (const int32_t e : pending_) {
    if (admitted_[static_cast<size_t>(e)] == 0 && shape_.transit != 0) continue;
    const int32_t slot = residency_.acquire(layer_, e, ReadReason::Prompt, false);
    if (slot == kNoSlot) continue;  // through a transit slot
    residency_.complete(slot, true);
    residency_.pin(slot);
    residency_.unpin(slot, clock_);
  }
}

void Replay::admit(std::span<const uint32_t> uses) {
  const uint32_t c = shape_.class_of[static_cast<size_t>(layer_)];
  const auto n_layers =
      static_cast<uint64_t>(std::count(shape_.class_of.begin(), shape_.class_of.end(), c));
  const uint64_t share = (shape_.classes[c].slots + n_layers - 1) / n_layers;
  uint64_t resident = 0;
  for (const uint64_t word : residency_.ready_bits(layer_)) {
    resident += static_cast<uint64_t>(std::popcount(word));
  }
  by_use_.assign(pending_.begin(), pending_.end());
  const size_t n = std::min<size_t>(by_use_.size(), share > resident ? share - resident : 0);
  std::partial_sort(by_use_.begin(), by_use_.begin() + static_cast<std::ptrdiff_t>(n),
                    by_use_.end(), [&](int32_t a, int32_t b) {
                      const uint32_t x = uses[static_cast<size_t>(a)];
                      const uint32_t y = uses[static_cast<size_t>(b)];
                      return x != y ? x > y : a < b;
                    });
  std::fill(admitted_.begin(), admitted_.end(), uint8_t{0});
  for (size_t i = 0; i < n; ++i) admitted_[static_cast<size_t>(by_use_[i])] = 1;
}

void Replay::step_end(int rows) {
  if (setting_.ahead.on) read_guesses();
  if (step_.uses.total() != step_.expected) {
    fail(ErrorKind::Format, "{}: a step of {} uses has {}; record the trace again", model_.path,
         step_.expected, step_.uses.total());
  }
  (counts_.steps == 0 ? counts_.first : counts_.steady) += step_.uses;
  counts_.uses_expected += step_.expected;
  ++counts_.steps;
  counts_.tokens += static_cast<uint64_t>(rows);
  if (turn_tokens_ < kTurnStart) {
    counts_.turn_start_tokens += static_cast<uint64_t>(rows);
    counts_.turn_start_misses += step_.uses.miss_issued + step_.uses.miss_joined;
  }
  turn_tokens_ += static_cast<uint64_t>(rows);
  if (setting_.ahead.on) {
    drop_guesses(0, last_layer());
    residency_.note_median();
    guess_first_layer();
  }
  step_ = {};
  for (since_halving_ += rows; since_halving_ >= setting_.half_life;
       since_halving_ -= setting_.half_life) {
    residency_.halve_frequencies();
  }
  residency_.age(rows);
  if (router_) router_->end_step(rows);
}

void Replay::turn_end() {
  ++counts_.turns;
  turn_tokens_ = 0;
  residency_.choose_hot(setting_.hot_share);
}

SimCounts Replay::counts() const {
  SimCounts out = counts_;
  out.evict_total = residency_.evictions();
  out.evict_hot = residency_.evictions_hot();
  out.hot = residency_.n_hot();
  out.ahead.wasted = residency_.wasted_spec();
  out.ahead.pending = residency_.unused_spec();
  if (router_) out.moce = router_->total();
  for (size_t l = 0; l < reads_.size() && !model_.read_bytes.empty(); ++l) {
    out.decode_bytes += static_cast<double>(reads_[l]) * model_.read_bytes[l];
  }
  return out;
}

}  // namespace penstock::measure
