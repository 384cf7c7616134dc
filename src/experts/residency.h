// Which expert lies in which slot: the live map, slot states and the choice of victims
// (spec/streaming.md §D). Owned by the scheduling thread; knows nothing of memory or files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "experts/counters.h"
#include "experts/geometry.h"
#include "experts/options.h"
#include "experts/shape.h"
#include "experts/slot_heap.h"

namespace penstock::experts {

// EMPTY -> READING -> READY -> EMPTY; READING -> FAILED, which recycle_failed() ends. RETIRED slots
// were given back to the system.
enum class SlotState : uint8_t { Empty, Reading, Ready, Failed, Retired };

struct Slot {
  int32_t layer = -1;  // index of the layer
  int32_t expert = -1;
  uint32_t gen = 0;  // increases at each reuse
  uint32_t pin = 0;
  uint64_t last_use = 0;
  SlotState state = SlotState::Empty;
  ReadReason reason = ReadReason::Demand;
  bool unused_spec = false;  // read ahead and not used yet
  uint32_t key = 0;          // of layer and expert, for the tables by expert
};

inline constexpr int32_t kNoSlot = -1;

class Residency {
 public:
  // Slots are numbered class by class, in the order of the shape; the transit slots come last.
  Residency(const Geometry& geometry, const ArenaShape& shape, Evict evict);

  size_t n_slots() const noexcept { return slots_.size(); }
  const Slot& slot(int32_t id) const noexcept { return slots_[static_cast<size_t>(id)]; }
  bool is_transit(int32_t id) const noexcept { return static_cast<size_t>(id) >= first_transit_; }
  // The slot that holds, or is being filled with, the expert; or kNoSlot. Transit slots are not in
  // the map.
  int32_t find(int layer, int expert) const noexcept { return map_[key(layer, expert)]; }
  // Bit e of word e / 64: expert e of the layer is READY. For the snapshot only.
  std::span<const uint64_t> ready_bits(int layer) const noexcept;

  // A slot of the layer's class, now READING the expert: an empty one, else, if allowed, that of
  // the victim. kNoSlot when there is none. Precondition: the expert is not in the map.
  int32_t acquire(int layer, int expert, ReadReason reason, bool may_evict);
  int32_t acquire_transit(int layer, int expert);
  // A slot to read ahead into (spec/streaming.md §E.3): an empty one; else one read ahead before
  // `step_began` and not used since; else one whose score is at most the median of note_median()
  // and that was last used before `used_since`. Only the next few victims are looked at.
  int32_t acquire_ahead(int layer, int expert, uint64_t step_began, uint64_t used_since);
  void note_median();
  void complete(int32_t id, bool ok);  // READING -> READY or FAILED
  void release_transit(int32_t id);    // READY -> EMPTY
  void recycle_failed();               // FAILED -> EMPTY, all of them
  // Takes the last `n` slots of the class out of use for good; their experts are evicted.
  // Precondition: none of them is being read or pinned.
  void retire(uint32_t slot_class, uint64_t n);

  // A pinned slot is no victim. `used_at`: the time that unpin records as the last use; 0 leaves
  // it.
  void pin(int32_t id);
  void unpin(int32_t id, uint64_t used_at);

  // The same, at less cost, where nothing is evicted in between. use(): pin(), count_use() and
  // unpin() of a READY slot that nothing pins; complete_used(): complete(), pin() and unpin().
  void use(int32_t id, uint64_t used_at) noexcept;
  void complete_used(int32_t id, uint64_t used_at);

  // The first use of a record read ahead: true once for it.
  bool take_unused(int32_t id) noexcept;
  uint64_t unused_spec() const noexcept { return unused_spec_; }
  uint64_t wasted_spec() const noexcept { return wasted_spec_; }

  // One decode use of an expert, resident or not. Its slot, if READY, must be pinned.
  void count_use(int layer, int expert) noexcept;
  float frequency(int layer, int expert) const noexcept { return frequency_[key(layer, expert)]; }
  void halve_frequencies();

  // What a profile knows: by layer and expert, in the order of the geometry, each expert's share of
  // all uses. The hot set and the policy `profile` look at it.
  void set_prior(std::span<const float> shares);
  // So many tokens were decoded. The policy `profile` trusts the prior less and less: the weight of
  // what was counted here rises from 0.2 to 1 within 256 tokens.
  void age(int tokens);
  // The layer that the token has come to, for the policy `cycle`.
  void set_position(int layer) noexcept { position_ = layer; }

  // The hot set (spec/streaming.md §D.4): of the resident experts the `share` of each class's slots
  // that are most used, by equal parts of prior and aged counts, but never so many that less than
  // one whole layer and 32 slots stay cold. Reads ahead do not evict hot experts, demand does when
  // nothing cold is left.
  void choose_hot(double share);
  bool is_hot(int layer, int expert) const noexcept { return hot_[key(layer, expert)] != 0; }
  // The most of `n_slots` slots of a class that can be hot, if its largest layer has `n_expert`.
  static uint64_t hot_cap(uint64_t n_slots, uint64_t n_expert) noexcept;
  uint64_t n_hot() const noexcept { return n_hot_; }
  uint64_t n_hot_resident() const noexcept { return n_hot_resident_; }

  // Residency by epochs (§F.5): what was resident when the epoch began and has stayed so.
  std::span<const uint64_t> epoch_bits(int layer) const noexcept;
  void begin_epoch() noexcept { epoch_ = ready_; }

  // The slot that the next eviction of this class would take, or kNoSlot.
  int32_t victim(uint32_t slot_class) const noexcept;
  uint64_t evictions() const noexcept { return evictions_; }
  uint64_t evictions_hot() const noexcept { return evictions_hot_; }

  static uint64_t memory_bytes(const Geometry& geometry, const ArenaShape& shape) noexcept;

 private:
  size_t key(int layer, int expert) const noexcept {
    return layer_base_[static_cast<size_t>(layer)] + static_cast<size_t>(expert);
  }
  bool before(int32_t a, int32_t b) const noexcept;  // a is evicted before b
  float score(const Slot& slot) const noexcept;
  size_t heap_of(int32_t id) const noexcept;
  int32_t victim_in(uint32_t c, bool hot) const noexcept;
  void heap_insert(int32_t id);
  void heap_remove(int32_t id);
  void reorder_heaps();
  void set_ready(const Slot& slot, bool ready) noexcept;
  void start(int32_t id, int layer, int expert, ReadReason reason);
  int32_t acquire_from(uint32_t c, int32_t victim, int layer, int expert, ReadReason reason);
  int32_t victim_ahead(uint32_t c, uint64_t step_began, uint64_t used_since) const noexcept;
  void evict(int32_t id);
  void waste(Slot& slot) noexcept;
  uint32_t class_of(int32_t id) const noexcept;

  Evict evict_;
  std::vector<Slot> slots_;
  size_t first_transit_ = 0;
  std::vector<uint32_t> class_of_layer_;
  std::vector<uint32_t> first_;     // first slot of each class
  std::vector<uint32_t> end_;       // behind the last one in use
  std::vector<size_t> layer_base_;  // first key of each layer
  std::vector<size_t> word_base_;   // first word of each layer in ready_
  std::vector<int32_t> map_;        // by key
  std::vector<float> frequency_;    // by key; survives eviction
  std::vector<uint64_t> ready_;
  std::vector<uint64_t> epoch_;
  std::vector<float> prior_;                 // by key; empty without a profile
  std::vector<uint8_t> hot_;                 // by key
  std::vector<std::vector<int32_t>> empty_;  // by class; the last entry is the transit slots
  // The READY, unpinned slots: those of cold experts, then those of hot ones, each by class, or by
  // layer under `cycle`.
  std::vector<SlotHeap> victims_;
  std::vector<uint32_t> heap_at_;  // by slot: position in its heap
  std::vector<int32_t> failed_;
  std::vector<float> scores_;  // for the median
  float median_ = 0;
  float total_ = 0;         // of frequency_
  float prior_weight_ = 0;  // what a prior of 1 is worth in uses, under `profile`
  float counted_weight_ = 1;
  int tokens_ = 0;
  int position_ = 0;
  uint64_t n_hot_ = 0;
  uint64_t n_hot_resident_ = 0;
  uint64_t evictions_ = 0;
  uint64_t evictions_hot_ = 0;
  uint64_t unused_spec_ = 0;
  uint64_t wasted_spec_ = 0;
};

}  // namespace penstock::experts
