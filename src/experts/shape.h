// The shape of the arena: which slot sizes a model's experts need, and how many of each.
#pragma once

#include <cstdint>
#include <vector>

#include "experts/geometry.h"

namespace penstock::experts {

// Slots of one size. Layers whose experts need the same slot size share a class.
struct SlotClass {
  uint64_t slot_bytes = 0;
  uint64_t n_experts = 0;  // of the layers of this class
  uint64_t cycle = 0;      // sum of n_used over those layers: what one token can touch
  int max_used = 0;        // the largest n_used of those layers
  uint64_t slots = 0;      // decided by the plan
};

struct ArenaShape {
  uint32_t alignment = 1;  // of file offsets and lengths; 1 for buffered reads
  std::vector<SlotClass> classes;
  std::vector<uint32_t> class_of;  // by layer index
  // Slots of the largest size through which a prompt reads experts that the arena has no room for;
  // none are needed when every expert fits.
  uint64_t transit = 0;

  uint64_t slots() const noexcept;
  uint64_t n_experts() const noexcept;
  uint64_t cycle() const noexcept;
  uint64_t largest_slot() const noexcept;
  uint64_t arena_bytes() const noexcept;  // slots and transit slots
  bool holds_all() const noexcept;
};

// Classes for a model read with this alignment (StreamFiles::alignment()); no slots yet.
ArenaShape arena_shape(const Geometry& geometry, uint32_t alignment);

// The same for one class.
uint64_t class_floor(const SlotClass& slot_class, int depth) noexcept;

// The fewest slots with which a token can run: for each class the most experts of one layer plus
// `depth`, or all experts of the class where they are fewer.
uint64_t hard_floor(const ArenaShape& shape, int depth) noexcept;

// Shares `n_slots` out to the classes in proportion to their token cycles, each at least its hard
// floor and at most its number of experts, and sets `transit` (0 when all experts fit).
// Precondition: n_slots >= hard_floor(shape, depth).
void share_slots(ArenaShape& shape, uint64_t n_slots, int depth, uint64_t transit);

// Like share_slots, with the most slots that keep arena_bytes() within `bytes`. Returns false, with
// the hard floor shared out, when not even that fits.
bool share_bytes(ArenaShape& shape, uint64_t bytes, int depth, uint64_t transit);

}  // namespace penstock::experts
