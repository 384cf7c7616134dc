#include "experts/residency.h"

#include <algorithm>
#include <tuple>

#include "base/error.h"

namespace penstock::experts {
namespace {

size_t words_of(const LayerGeometry& layer) noexcept {
  return (static_cast<size_t>(layer.n_expert) + 63) / 64;
}

constexpr int kTrustTokens = 256;    // after which `profile` is `lfu`
constexpr float kFirstTrust = 0.2f;  // in what was counted, at the first token
constexpr uint64_t kColdSlots = 32;  // beside a whole layer

void require(bool condition, const char* what) {
  if (!condition) fail(ErrorKind::Internal, "residency: {}", what);
}

}  // namespace

Residency::Residency(const Geometry& geometry, const ArenaShape& shape, Evict evict)
    : evict_(evict), class_of_layer_(shape.class_of) {
  size_t keys = 0;
  size_t words = 0;
  for (const LayerGeometry& layer : geometry.layers) {
    layer_base_.push_back(keys);
    word_base_.push_back(words);
    keys += static_cast<size_t>(layer.n_expert);
    words += words_of(layer);
  }
  layer_base_.push_back(keys);
  word_base_.push_back(words);
  map_.assign(keys, kNoSlot);
  frequency_.assign(keys, 0.0f);
  hot_.assign(keys, 0);
  ready_.assign(words, 0);
  epoch_.assign(words, 0);

  size_t n = 0;
  for (const SlotClass& c : shape.classes) {
    first_.push_back(static_cast<uint32_t>(n));
    n += c.slots;
  }
  first_transit_ = n;
  first_.push_back(static_cast<uint32_t>(n));
  end_.assign(first_.begin() + 1, first_.end());
  n += shape.transit;
  slots_.resize(n);
  heap_at_.assign(n, 0);
  failed_.reserve(n);
  scores_.reserve(first_transit_);
  for (size_t c = 0; c < first_.size(); ++c) {
    const size_t end = c + 1 < first_.size() ? first_[c + 1] : n;
    std::vector<int32_t>& empty = empty_.emplace_back();
    for (size_t id = end; id > first_[c]; --id) empty.push_back(static_cast<int32_t>(id - 1));
  }
  victims_.resize(2 * (evict == Evict::Cycle ? geometry.layers.size() : shape.classes.size()));
  for (size_t h = 0; h < victims_.size(); ++h) {
    const size_t group = h % (victims_.size() / 2);
    const size_t c = evict == Evict::Cycle ? class_of_layer_[group] : group;
    const auto slots = static_cast<size_t>(shape.classes[c].slots);
    victims_[h].reserve(evict == Evict::Cycle
                            ? std::min(slots, static_cast<size_t>(geometry.layers[group].n_expert))
                            : slots);
  }
}

uint64_t Residency::memory_bytes(const Geometry& geometry, const ArenaShape& shape) noexcept {
  uint64_t bytes = 0;
  for (const LayerGeometry& layer : geometry.layers) {
    bytes += static_cast<uint64_t>(layer.n_expert) *
                 (sizeof(int32_t) + 2 * sizeof(float) + sizeof(uint8_t)) +
             2 * words_of(layer) * sizeof(uint64_t) + 2 * sizeof(size_t) + sizeof(uint32_t) +
             2 * sizeof(SlotHeap);
  }
  return bytes + (shape.slots() + shape.transit) *
                     (sizeof(Slot) + 4 * sizeof(int32_t) + sizeof(uint32_t) + sizeof(float));
}

std::span<const uint64_t> Residency::ready_bits(int layer) const noexcept {
  const auto l = static_cast<size_t>(layer);
  return {ready_.data() + word_base_[l], word_base_[l + 1] - word_base_[l]};
}

std::span<const uint64_t> Residency::epoch_bits(int layer) const noexcept {
  const auto l = static_cast<size_t>(layer);
  return {epoch_.data() + word_base_[l], word_base_[l + 1] - word_base_[l]};
}

uint32_t Residency::class_of(int32_t id) const noexcept {
  return class_of_layer_[static_cast<size_t>(slot(id).layer)];
}

void Residency::set_ready(const Slot& slot, bool ready) noexcept {
  const size_t word =
      word_base_[static_cast<size_t>(slot.layer)] + static_cast<size_t>(slot.expert) / 64;
  const uint64_t bit = uint64_t{1} << (slot.expert % 64);
  if (ready) {
    ready_[word] |= bit;
    n_hot_resident_ += hot_[slot.key];
  } else {
    ready_[word] &= ~bit;
    n_hot_resident_ -= hot_[slot.key];
    epoch_[word] &= ~bit;
  }
}

void Residency::start(int32_t id, int layer, int expert, ReadReason reason) {
  Slot& s = slots_[static_cast<size_t>(id)];
  s.layer = layer;
  s.expert = expert;
  s.state = SlotState::Reading;
  s.reason = reason;
  s.unused_spec = reason == ReadReason::Spec;
  s.key = static_cast<uint32_t>(key(layer, expert));
  unused_spec_ += s.unused_spec ? 1 : 0;
  ++s.gen;
}

int32_t Residency::acquire(int layer, int expert, ReadReason reason, bool may_evict) {
  const uint32_t c = class_of_layer_[static_cast<size_t>(layer)];
  return acquire_from(c, may_evict ? victim(c) : kNoSlot, layer, expert, reason);
}

int32_t Residency::acquire_ahead(int layer, int expert, uint64_t step_began, uint64_t used_since) {
  const uint32_t c = class_of_layer_[static_cast<size_t>(layer)];
  const int32_t victim = empty_[c].empty() ? victim_ahead(c, step_began, used_since) : kNoSlot;
  return acquire_from(c, victim, layer, expert, ReadReason::Spec);
}

// An empty slot of the class, else that of the victim, if there is one.
int32_t Residency::acquire_from(uint32_t c, int32_t victim, int layer, int expert,
                                ReadReason reason) {
  require(find(layer, expert) == kNoSlot, "an expert is read twice");
  int32_t id = victim;
  if (!empty_[c].empty()) {
    id = empty_[c].back();
    empty_[c].pop_back();
  } else if (id != kNoSlot) {
    evict(id);
  } else {
    return kNoSlot;
  }
  start(id, layer, expert, reason);
  map_[key(layer, expert)] = id;
  return id;
}

int32_t Residency::victim_ahead(uint32_t c, uint64_t step_began,
                                uint64_t used_since) const noexcept {
  constexpr size_t kLook = 15;  // four levels of a heap
  int32_t best = kNoSlot;
  bool stale = false;  // best was read ahead for an older token
  const auto look = [&](int32_t id) {
    const Slot& s = slot(id);
    const bool old_guess = s.unused_spec && s.last_use < step_began;
    const bool counted = evict_ == Evict::Lfu || evict_ == Evict::Profile;
    const bool cold =
        !s.unused_spec && s.last_use < used_since && (!counted || score(s) <= median_);
    if (!old_guess && (!cold || stale)) return;
    if (best != kNoSlot && old_guess == stale && !before(id, best)) return;
    best = id;
    stale = old_guess;
  };
  if (evict_ != Evict::Cycle) {
    const std::span<const int32_t> heap = victims_[c].items();
    for (const int32_t id : heap.first(std::min(heap.size(), kLook))) look(id);
    return best;
  }
  for (int l = 0; l <= position_; ++l) {
    const SlotHeap& heap = victims_[static_cast<size_t>(l)];
    if (class_of_layer_[static_cast<size_t>(l)] == c && !heap.empty()) look(heap.top());
  }
  return best;
}

void Residency::note_median() {
  scores_.clear();
  for (size_t id = 0; id < first_transit_; ++id) {
    const Slot& s = slots_[id];
    if (s.state == SlotState::Ready) scores_.push_back(score(s));
  }
  if (scores_.empty()) return;
  const auto middle = scores_.begin() + static_cast<std::ptrdiff_t>(scores_.size() / 2);
  std::nth_element(scores_.begin(), middle, scores_.end());
  median_ = *middle;
}

// Takes a READY slot out of the map.
void Residency::evict(int32_t id) {
  heap_remove(id);
  Slot& old = slots_[static_cast<size_t>(id)];
  set_ready(old, false);
  map_[key(old.layer, old.expert)] = kNoSlot;
  waste(old);
  ++evictions_;
  evictions_hot_ += hot_[key(old.layer, old.expert)];
}

void Residency::waste(Slot& slot) noexcept {
  if (!slot.unused_spec) return;
  slot.unused_spec = false;
  --unused_spec_;
  ++wasted_spec_;
}

bool Residency::take_unused(int32_t id) noexcept {
  Slot& s = slots_[static_cast<size_t>(id)];
  if (!s.unused_spec) return false;
  s.unused_spec = false;
  --unused_spec_;
  return true;
}

int32_t Residency::acquire_transit(int layer, int expert) {
  std::vector<int32_t>& empty = empty_.back();
  if (empty.empty()) return kNoSlot;
  const int32_t id = empty.back();
  empty.pop_back();
  start(id, layer, expert, ReadReason::Prompt);
  return id;
}

void Residency::complete(int32_t id, bool ok) {
  Slot& s = slots_[static_cast<size_t>(id)];
  require(s.state == SlotState::Reading, "a completed slot was not being read");
  if (!ok) {
    s.state = SlotState::Failed;
    waste(s);
    if (!is_transit(id)) map_[key(s.layer, s.expert)] = kNoSlot;
    failed_.push_back(id);
    return;
  }
  s.state = SlotState::Ready;
  if (is_transit(id)) return;
  set_ready(s, true);
  heap_insert(id);
}

void Residency::release_transit(int32_t id) {
  Slot& s = slots_[static_cast<size_t>(id)];
  require(s.state == SlotState::Ready && is_transit(id), "a transit slot is released in use");
  s.state = SlotState::Empty;
  empty_.back().push_back(id);
}

void Residency::recycle_failed() {
  for (const int32_t id : failed_) {
    slots_[static_cast<size_t>(id)].state = SlotState::Empty;
    (is_transit(id) ? empty_.back() : empty_[class_of(id)]).push_back(id);
  }
  failed_.clear();
}

void Residency::retire(uint32_t slot_class, uint64_t n) {
  const uint32_t end = end_[slot_class];
  require(n <= end - first_[slot_class], "more slots are given back than there are");
  const auto first = static_cast<int32_t>(end - static_cast<uint32_t>(n));
  for (int32_t id = first; id < static_cast<int32_t>(end); ++id) {
    Slot& s = slots_[static_cast<size_t>(id)];
    require(s.pin == 0 && (s.state == SlotState::Ready || s.state == SlotState::Empty),
            "a slot that is given back is in use");
    if (s.state == SlotState::Ready) evict(id);
    s.state = SlotState::Retired;
  }
  std::erase_if(empty_[slot_class], [&](int32_t id) { return id >= first; });
  end_[slot_class] = static_cast<uint32_t>(first);
}

void Residency::pin(int32_t id) {
  Slot& s = slots_[static_cast<size_t>(id)];
  require(s.state == SlotState::Ready, "only a READY slot can be pinned");
  if (s.pin++ == 0 && !is_transit(id)) heap_remove(id);
}

void Residency::unpin(int32_t id, uint64_t used_at) {
  Slot& s = slots_[static_cast<size_t>(id)];
  require(s.pin > 0, "an unpinned slot is unpinned");
  if (used_at != 0) s.last_use = used_at;
  if (--s.pin == 0 && !is_transit(id)) heap_insert(id);
}

void Residency::use(int32_t id, uint64_t used_at) noexcept {
  Slot& s = slots_[static_cast<size_t>(id)];
  frequency_[s.key] += 1.0f;
  total_ += 1.0f;
  s.last_use = used_at;
  // Used more and later: every policy evicts it later than before.
  victims_[heap_of(id)].later(id, heap_at_, [this](int32_t a, int32_t b) { return before(a, b); });
}

void Residency::complete_used(int32_t id, uint64_t used_at) {
  slots_[static_cast<size_t>(id)].last_use = used_at;
  complete(id, true);
}

void Residency::count_use(int layer, int expert) noexcept {
  frequency_[key(layer, expert)] += 1.0f;
  total_ += 1.0f;
}

void Residency::halve_frequencies() {
  for (float& f : frequency_) f *= 0.5f;
  total_ *= 0.5f;
  reorder_heaps();
}

void Residency::set_prior(std::span<const float> shares) {
  require(shares.size() == map_.size(), "a prior for other experts");
  prior_.assign(shares.begin(), shares.end());
  age(0);
}

void Residency::age(int tokens) {
  if (evict_ != Evict::Profile || prior_.empty() || tokens_ >= kTrustTokens) return;
  tokens_ = std::min(tokens_ + tokens, kTrustTokens);
  counted_weight_ = kFirstTrust + (1 - kFirstTrust) * static_cast<float>(tokens_) / kTrustTokens;
  // Scaled to the same total as the counts; before the first of them any scale will do.
  prior_weight_ = (1 - counted_weight_) * std::max(total_, 1.0f);
  reorder_heaps();
}

void Residency::choose_hot(double share) {
  std::fill(hot_.begin(), hot_.end(), uint8_t{0});
  n_hot_ = 0;
  std::vector<std::pair<float, size_t>> ranked;  // a turn is over: there is time to allocate
  for (size_t c = 0; c + 1 < first_.size(); ++c) {
    const uint64_t n_slots = end_[c] - first_[c];
    uint64_t layer = 0;  // the largest of the class
    for (size_t l = 0; l < class_of_layer_.size(); ++l) {
      if (class_of_layer_[l] == c) {
        layer = std::max<uint64_t>(layer, layer_base_[l + 1] - layer_base_[l]);
      }
    }
    const uint64_t cap = std::min(hot_cap(n_slots, layer),
                                  static_cast<uint64_t>(share * static_cast<double>(n_slots)));
    ranked.clear();
    for (size_t id = first_[c]; id < end_[c]; ++id) {
      const Slot& s = slots_[id];
      if (s.state != SlotState::Ready) continue;
      const size_t k = key(s.layer, s.expert);
      const float worth =
          frequency_[k] + (prior_.empty() ? 0.0f : prior_[k] * std::max(total_, 1.0f));
      if (worth > 0) ranked.emplace_back(-worth, k);
    }
    const size_t n = std::min<size_t>(ranked.size(), static_cast<size_t>(cap));
    std::partial_sort(ranked.begin(), ranked.begin() + static_cast<std::ptrdiff_t>(n),
                      ranked.end());
    for (size_t i = 0; i < n; ++i) hot_[ranked[i].second] = 1;
    n_hot_ += n;
  }
  n_hot_resident_ = n_hot_;  // all of them are in memory
  for (SlotHeap& heap : victims_) heap.clear();
  for (size_t id = 0; id < first_transit_; ++id) {
    const Slot& s = slots_[id];
    if (s.state == SlotState::Ready && s.pin == 0) heap_insert(static_cast<int32_t>(id));
  }
}

uint64_t Residency::hot_cap(uint64_t n_slots, uint64_t n_expert) noexcept {
  return n_slots > n_expert + kColdSlots ? n_slots - n_expert - kColdSlots : 0;
}

int32_t Residency::victim(uint32_t slot_class) const noexcept {
  const int32_t cold = victim_in(slot_class, false);
  return cold != kNoSlot ? cold : victim_in(slot_class, true);
}

int32_t Residency::victim_in(uint32_t c, bool hot) const noexcept {
  const size_t base = hot ? victims_.size() / 2 : 0;
  if (evict_ != Evict::Cycle) {
    const SlotHeap& heap = victims_[base + c];
    return heap.empty() ? kNoSlot : heap.top();
  }
  // What the token has gone by is needed again in the next one only: the least recent of it. Of
  // what is still ahead, when there is nothing else, the layer that comes last.
  int32_t best = kNoSlot;
  const auto n_layers = static_cast<int>(class_of_layer_.size());
  for (int i = 0; i < n_layers; ++i) {
    const int l = i <= position_ ? i : n_layers - (i - position_);
    if (l > position_ && best != kNoSlot) break;
    const SlotHeap& heap = victims_[base + static_cast<size_t>(l)];
    if (class_of_layer_[static_cast<size_t>(l)] != c || heap.empty()) continue;
    if (best == kNoSlot || before(heap.top(), best)) best = heap.top();
  }
  return best;
}

inline float Residency::score(const Slot& slot) const noexcept {
  const size_t k = slot.key;
  if (evict_ != Evict::Profile || prior_.empty()) return frequency_[k];
  return counted_weight_ * frequency_[k] + prior_weight_ * prior_[k];
}

bool Residency::before(int32_t a, int32_t b) const noexcept {
  const Slot& x = slot(a);
  const Slot& y = slot(b);
  if (evict_ == Evict::Lfu || evict_ == Evict::Profile) {
    const float fx = score(x);
    const float fy = score(y);
    if (fx != fy) return fx < fy;
  }
  return std::tie(x.last_use, x.layer, x.expert) < std::tie(y.last_use, y.layer, y.expert);
}

size_t Residency::heap_of(int32_t id) const noexcept {
  const Slot& s = slot(id);
  const size_t group = evict_ == Evict::Cycle ? static_cast<size_t>(s.layer) : class_of(id);
  return group + (hot_[s.key] != 0 ? victims_.size() / 2 : 0);
}

void Residency::heap_insert(int32_t id) {
  victims_[heap_of(id)].insert(id, heap_at_, [this](int32_t a, int32_t b) { return before(a, b); });
}

void Residency::heap_remove(int32_t id) {
  SlotHeap& heap = victims_[heap_of(id)];
  require(heap.holds(id, heap_at_), "a slot is not where the heap has it");
  heap.remove(id, heap_at_, [this](int32_t a, int32_t b) { return before(a, b); });
}

void Residency::reorder_heaps() {
  for (SlotHeap& heap : victims_) {
    heap.reorder(heap_at_, [this](int32_t a, int32_t b) { return before(a, b); });
  }
}

}  // namespace penstock::experts
