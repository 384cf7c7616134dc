// Reads ahead in a replay: what stream_ahead.cpp does, on a clock made of the cost model. The disk
// serves one read after the other; demand goes first; without a cost every guess is there in time.
#include <algorithm>
#include <limits>

#include "experts/read_ahead.h"
#include "measure/sim_replay.h"

namespace penstock::measure {

using experts::kNoSlot;

int Replay::width_of(int distance, int n_used) const noexcept {
  return setting_.ahead.width != 0 ? setting_.ahead.width : experts::ahead_width(distance, n_used);
}

int Replay::reads_of(int distance) const noexcept {
  return setting_.ahead.reads != 0 ? setting_.ahead.reads : experts::ahead_reads(distance);
}

void Replay::predicted(const TraceEvent& event, const TraceChunk& chunk) {
  if (event.distance < 1 || event.distance > setting_.ahead.distance) return;
  const int index = event.index;
  const experts::LayerGeometry& layer = model_.geometry.layers[event.index];
  const auto n_expert = static_cast<size_t>(layer.n_expert);
  ranked_.clear();
  for (size_t row = 0; row < event.rows; ++row) {
    const std::span<const float> logits{chunk.logits.data() + event.at + row * n_expert, n_expert};
    const int width = width_of(event.distance, layer.n_used);
    if (router_) {
      router_->rank(index, logits, routing_bits(index), layer.n_used, width, &row_ranked_);
      row_ranked_.resize(std::min(row_ranked_.size(), static_cast<size_t>(width)));
    } else {
      experts::rank_ahead(logits, width, &row_ranked_);
    }
    for (const int32_t e : row_ranked_) {
      if (std::find(ranked_.begin(), ranked_.end(), e) == ranked_.end()) ranked_.push_back(e);
    }
  }
  // The nearer prediction is the better one: it replaces what was guessed from further away.
  drop_guesses(index, index);
  int left = reads_of(event.distance);
  for (const int32_t e : ranked_) {
    const int32_t slot = residency_.find(index, e);
    if (slot == kNoSlot) {
      if (left-- > 0) guesses_.push_back({index, e});
    } else if (ready(slot)) {
      residency_.pin(slot);
      kept_.push_back({slot, index});
    }
  }
}

// What the disk does between the layer's demand and the next layer, which begins at now_s_.
void Replay::read_guesses() {
  double at_s = guesses_from_s_;
  size_t n = 0;
  while (n < guesses_.size()) {
    const experts::LayerGeometry& of =
        model_.geometry.layers[static_cast<size_t>(guesses_[n].layer)];
    const int most = experts::ahead_at_once(of.expert_bytes(), model_.depth);
    if (in_flight_.size() >= static_cast<size_t>(most)) {
      const auto first = std::min_element(
          in_flight_.begin(), in_flight_.end(),
          [](const InFlight& a, const InFlight& b) { return a.done_s < b.done_s; });
      if (first->done_s > now_s_) break;
      at_s = std::max(at_s, first->done_s);
      land(at_s);
    }
    if (at_s > now_s_) break;
    const Guess g = guesses_[n++];
    if (residency_.find(g.layer, g.expert) != kNoSlot) {
      ++counts_.ahead.cancelled;
      continue;
    }
    const int32_t slot = residency_.acquire_ahead(g.layer, g.expert, step_clock_, last_step_clock_);
    if (slot == kNoSlot) {  // nothing here is worth less than a guess
      counts_.ahead.cancelled += guesses_.size() - n + 1;
      n = guesses_.size();
      break;
    }
    ++counts_.ahead.issued;
    ++counts_.spec_reads;
    ++reads_[static_cast<size_t>(g.layer)];
    read_for_step_[static_cast<size_t>(slot)] = counts_.steps;
    if (cost_ != nullptr) {
      const double idle_s = disk_free_s_ <= at_s ? cost_->disk.latency_s : 0;
      disk_free_s_ = std::max(disk_free_s_, at_s) + idle_s + read_s_[static_cast<size_t>(g.layer)];
    }
    in_flight_.push_back({slot, cost_ != nullptr ? disk_free_s_ : now_s_});
  }
  guesses_.erase(guesses_.begin(), guesses_.begin() + static_cast<std::ptrdiff_t>(n));
}

// What has arrived until then joins the map, and stays until its layer's router has spoken.
void Replay::land(double until_s) {
  size_t n = 0;
  for (const InFlight& f : in_flight_) {
    if (f.done_s > until_s) {
      in_flight_[n++] = f;
      continue;
    }
    residency_.complete(f.slot, true);
    keep_ahead(f.slot);
  }
  in_flight_.resize(n);
}

void Replay::keep_ahead(int32_t slot) {
  residency_.pin(slot);
  const int32_t layer = residency_.slot(slot).layer;
  if (!step_.begun || layer > layer_) {
    kept_.push_back({slot, layer});
  } else {
    residency_.unpin(slot, clock_);
  }
}

void Replay::release_ahead(int upto) {
  size_t n = 0;
  for (const Kept& kept : kept_) {
    if (kept.layer > upto) {
      kept_[n++] = kept;
    } else {
      residency_.unpin(kept.slot, residency_.slot(kept.slot).unused_spec ? clock_ : 0);
    }
  }
  kept_.resize(n);
}

void Replay::drop_guesses(int first, int last) {
  counts_.ahead.cancelled +=
      std::erase_if(guesses_, [&](const Guess& g) { return g.layer >= first && g.layer <= last; });
}

// A prompt waits for what is still being read and starts without guesses.
void Replay::settle_for_prompt() {
  drop_guesses(0, last_layer());
  land(std::numeric_limits<double>::infinity());
  release_ahead(last_layer());
}

// The first layer has no predecessor: what the last token selected there is likely again.
void Replay::guess_first_layer() {
  int left = reads_of(1);
  for (const int32_t e : previous_) {
    if (residency_.find(0, e) == kNoSlot && left-- > 0) guesses_.push_back({0, e});
  }
}

}  // namespace penstock::measure
