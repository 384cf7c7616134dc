#include "experts/residency.h"

#include <algorithm>
#include <tuple>

#include "base/error.h"

namespace penstock::experts {
namespace {

size_t words_of(const LayerGeometry& layer) noexcept {
  return (static_cast<size_t>(layer.n_expert) + 63) / 64;
}

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
  ready_.assign(words, 0);

  size_t n = 0;
  for (const SlotClass& c : shape.classes) {
    first_.push_back(static_cast<uint32_t>(n));
    n += c.slots;
  }
  first_transit_ = n;
  first_.push_back(static_cast<uint32_t>(n));
  n += shape.transit;
  slots_.resize(n);
  heap_at_.assign(n, 0);
  failed_.reserve(n);
  scores_.reserve(first_transit_);
  for (size_t c = 0; c < first_.size(); ++c) {
    const size_t end = c + 1 < first_.size() ? first_[c + 1] : n;
    std::vector<int32_t>& empty = empty_.emplace_back();
    for (size_t id = end; id > first_[c]; --id) empty.push_back(static_cast<int32_t>(id - 1));
    victims_.emplace_back().reserve(end - first_[c]);
  }
}

uint64_t Residency::memory_bytes(const Geometry& geometry, const ArenaShape& shape) noexcept {
  uint64_t bytes = 0;
  for (const LayerGeometry& layer : geometry.layers) {
    bytes += static_cast<uint64_t>(layer.n_expert) * (sizeof(int32_t) + sizeof(float)) +
             words_of(layer) * sizeof(uint64_t) + 2 * sizeof(size_t) + sizeof(uint32_t);
  }
  return bytes + (shape.slots() + shape.transit) *
                     (sizeof(Slot) + 3 * sizeof(int32_t) + sizeof(uint32_t) + sizeof(float));
}

std::span<const uint64_t> Residency::ready_bits(int layer) const noexcept {
  const auto l = static_cast<size_t>(layer);
  return {ready_.data() + word_base_[l], word_base_[l + 1] - word_base_[l]};
}

uint32_t Residency::class_of(int32_t id) const noexcept {
  return class_of_layer_[static_cast<size_t>(slot(id).layer)];
}

void Residency::set_ready(const Slot& slot, bool ready) noexcept {
  uint64_t& word =
      ready_[word_base_[static_cast<size_t>(slot.layer)] + static_cast<size_t>(slot.expert) / 64];
  const uint64_t bit = uint64_t{1} << (slot.expert % 64);
  word = ready ? word | bit : word & ~bit;
}

void Residency::start(int32_t id, int layer, int expert, ReadReason reason) {
  Slot& s = slots_[static_cast<size_t>(id)];
  s.layer = layer;
  s.expert = expert;
  s.state = SlotState::Reading;
  s.reason = reason;
  s.unused_spec = reason == ReadReason::Spec;
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
    evict(c, id);
  } else {
    return kNoSlot;
  }
  start(id, layer, expert, reason);
  map_[key(layer, expert)] = id;
  return id;
}

int32_t Residency::victim_ahead(uint32_t c, uint64_t step_began,
                                uint64_t used_since) const noexcept {
  constexpr size_t kLook = 15;  // four levels of the heap
  const std::vector<int32_t>& heap = victims_[c];
  int32_t id = kNoSlot;
  bool stale = false;  // id was read ahead for an older token
  for (size_t i = 0; i < std::min(heap.size(), kLook); ++i) {
    const Slot& s = slot(heap[i]);
    const bool old_guess = s.unused_spec && s.last_use < step_began;
    const bool cold = !s.unused_spec && s.last_use < used_since &&
                      (evict_ == Evict::Lru || frequency_[key(s.layer, s.expert)] <= median_);
    if (!old_guess && (!cold || stale)) continue;
    if (id != kNoSlot && old_guess == stale && !before(heap[i], id)) continue;
    id = heap[i];
    stale = old_guess;
  }
  return id;
}

void Residency::note_median() {
  scores_.clear();
  for (size_t id = 0; id < first_transit_; ++id) {
    const Slot& s = slots_[id];
    if (s.state == SlotState::Ready) scores_.push_back(frequency_[key(s.layer, s.expert)]);
  }
  if (scores_.empty()) return;
  const auto middle = scores_.begin() + static_cast<std::ptrdiff_t>(scores_.size() / 2);
  std::nth_element(scores_.begin(), middle, scores_.end());
  median_ = *middle;
}

// Takes a READY slot out of the map.
void Residency::evict(uint32_t c, int32_t id) {
  heap_remove(c, id);
  Slot& old = slots_[static_cast<size_t>(id)];
  set_ready(old, false);
  map_[key(old.layer, old.expert)] = kNoSlot;
  waste(old);
  ++evictions_;
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
  heap_insert(class_of(id), id);
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

void Residency::pin(int32_t id) {
  Slot& s = slots_[static_cast<size_t>(id)];
  require(s.state == SlotState::Ready, "only a READY slot can be pinned");
  if (s.pin++ == 0 && !is_transit(id)) heap_remove(class_of(id), id);
}

void Residency::unpin(int32_t id, uint64_t used_at) {
  Slot& s = slots_[static_cast<size_t>(id)];
  require(s.pin > 0, "an unpinned slot is unpinned");
  if (used_at != 0) s.last_use = used_at;
  if (--s.pin == 0 && !is_transit(id)) heap_insert(class_of(id), id);
}

void Residency::halve_frequencies() {
  for (float& f : frequency_) f *= 0.5f;
  // Halving keeps the order but for counts so small that they become equal.
  for (std::vector<int32_t>& heap : victims_) {
    for (size_t at = heap.size() / 2; at-- > 0;) sift_down(heap, at);
  }
}

int32_t Residency::victim(uint32_t slot_class) const noexcept {
  const std::vector<int32_t>& heap = victims_[slot_class];
  return heap.empty() ? kNoSlot : heap.front();
}

bool Residency::before(int32_t a, int32_t b) const noexcept {
  const Slot& x = slot(a);
  const Slot& y = slot(b);
  if (evict_ == Evict::Lfu) {
    const float fx = frequency_[key(x.layer, x.expert)];
    const float fy = frequency_[key(y.layer, y.expert)];
    if (fx != fy) return fx < fy;
  }
  return std::tie(x.last_use, x.layer, x.expert) < std::tie(y.last_use, y.layer, y.expert);
}

void Residency::heap_insert(uint32_t c, int32_t id) {
  std::vector<int32_t>& heap = victims_[c];
  heap.push_back(id);
  heap_at_[static_cast<size_t>(id)] = static_cast<uint32_t>(heap.size() - 1);
  sift_up(heap, heap.size() - 1);
}

void Residency::heap_remove(uint32_t c, int32_t id) {
  std::vector<int32_t>& heap = victims_[c];
  const size_t at = heap_at_[static_cast<size_t>(id)];
  require(at < heap.size() && heap[at] == id, "a slot is not where the heap has it");
  const int32_t last = heap.back();
  heap.pop_back();
  if (last == id) return;
  heap[at] = last;
  heap_at_[static_cast<size_t>(last)] = static_cast<uint32_t>(at);
  sift_up(heap, at);
  sift_down(heap, heap_at_[static_cast<size_t>(last)]);
}

void Residency::sift_up(std::vector<int32_t>& heap, size_t at) noexcept {
  const int32_t id = heap[at];
  while (at > 0 && before(id, heap[(at - 1) / 2])) {
    heap[at] = heap[(at - 1) / 2];
    heap_at_[static_cast<size_t>(heap[at])] = static_cast<uint32_t>(at);
    at = (at - 1) / 2;
  }
  heap[at] = id;
  heap_at_[static_cast<size_t>(id)] = static_cast<uint32_t>(at);
}

void Residency::sift_down(std::vector<int32_t>& heap, size_t at) noexcept {
  const int32_t id = heap[at];
  for (;;) {
    size_t child = 2 * at + 1;
    if (child >= heap.size()) break;
    if (child + 1 < heap.size() && before(heap[child + 1], heap[child])) ++child;
    if (!before(heap[child], id)) break;
    heap[at] = heap[child];
    heap_at_[static_cast<size_t>(heap[at])] = static_cast<uint32_t>(at);
    at = child;
  }
  heap[at] = id;
  heap_at_[static_cast<size_t>(id)] = static_cast<uint32_t>(at);
}

}  // namespace penstock::experts
