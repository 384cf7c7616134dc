#include "experts/shape.h"

#include <algorithm>
#include <cstddef>
#include <limits>

#include "experts/record.h"

namespace penstock::experts {
namespace {

uint64_t slots_at(const SlotClass& c, double cycles, int depth) noexcept {
  const double want = cycles * static_cast<double>(c.cycle);
  const uint64_t slots =
      want >= static_cast<double>(c.n_experts) ? c.n_experts : static_cast<uint64_t>(want);
  return std::clamp(slots, class_floor(c, depth), c.n_experts);
}

void set_all(ArenaShape& shape) {
  for (SlotClass& c : shape.classes) c.slots = c.n_experts;
  shape.transit = 0;
}

// Water filling: the same number of token cycles for every class, between its floor and its number
// of experts; then single slots to the class with the fewest cycles while the budget allows.
template <typename Price>
void fill(ArenaShape& shape, uint64_t budget, int depth, Price price) {
  const auto cost = [&](double cycles) {
    uint64_t sum = 0;
    for (const SlotClass& c : shape.classes) sum += slots_at(c, cycles, depth) * price(c);
    return sum;
  };
  double low = 0.0;
  double high = 1.0;
  for (const SlotClass& c : shape.classes) {
    high = std::max(high, static_cast<double>(c.n_experts));
  }
  for (int i = 0; i < 60; ++i) {
    const double middle = 0.5 * (low + high);
    (cost(middle) <= budget ? low : high) = middle;
  }
  uint64_t spent = 0;
  for (SlotClass& c : shape.classes) {
    c.slots = slots_at(c, low, depth);
    spent += c.slots * price(c);
  }
  for (;;) {
    SlotClass* poorest = nullptr;
    double fewest = std::numeric_limits<double>::max();
    for (SlotClass& c : shape.classes) {
      const double cycles = static_cast<double>(c.slots) / static_cast<double>(c.cycle);
      if (c.slots < c.n_experts && spent + price(c) <= budget && cycles < fewest) {
        poorest = &c;
        fewest = cycles;
      }
    }
    if (poorest == nullptr) return;
    ++poorest->slots;
    spent += price(*poorest);
  }
}

}  // namespace

uint64_t class_floor(const SlotClass& c, int depth) noexcept {
  return std::min<uint64_t>(c.n_experts, static_cast<uint64_t>(c.max_used + depth));
}

uint64_t ArenaShape::slots() const noexcept {
  uint64_t sum = 0;
  for (const SlotClass& c : classes) sum += c.slots;
  return sum;
}

uint64_t ArenaShape::n_experts() const noexcept {
  uint64_t sum = 0;
  for (const SlotClass& c : classes) sum += c.n_experts;
  return sum;
}

uint64_t ArenaShape::cycle() const noexcept {
  uint64_t sum = 0;
  for (const SlotClass& c : classes) sum += c.cycle;
  return sum;
}

uint64_t ArenaShape::largest_slot() const noexcept {
  uint64_t largest = 0;
  for (const SlotClass& c : classes) largest = std::max(largest, c.slot_bytes);
  return largest;
}

uint64_t ArenaShape::arena_bytes() const noexcept {
  uint64_t sum = transit * largest_slot();
  for (const SlotClass& c : classes) sum += c.slots * c.slot_bytes;
  return sum;
}

bool ArenaShape::holds_all() const noexcept {
  for (const SlotClass& c : classes) {
    if (c.slots < c.n_experts) return false;
  }
  return true;
}

ArenaShape arena_shape(const Geometry& geometry, uint32_t alignment) {
  ArenaShape shape;
  shape.alignment = alignment;
  for (const LayerGeometry& layer : geometry.layers) {
    const uint64_t bytes = record_layout(layer, alignment).slot_bytes;
    size_t index = 0;
    while (index < shape.classes.size() && shape.classes[index].slot_bytes != bytes) ++index;
    if (index == shape.classes.size()) shape.classes.push_back({.slot_bytes = bytes});
    SlotClass& c = shape.classes[index];
    c.n_experts += static_cast<uint64_t>(layer.n_expert);
    c.cycle += static_cast<uint64_t>(layer.n_used);
    c.max_used = std::max(c.max_used, layer.n_used);
    shape.class_of.push_back(static_cast<uint32_t>(index));
  }
  return shape;
}

uint64_t hard_floor(const ArenaShape& shape, int depth) noexcept {
  uint64_t sum = 0;
  for (const SlotClass& c : shape.classes) sum += class_floor(c, depth);
  return sum;
}

void share_slots(ArenaShape& shape, uint64_t n_slots, int depth, uint64_t transit) {
  if (n_slots >= shape.n_experts()) return set_all(shape);
  shape.transit = transit;
  fill(shape, n_slots, depth, [](const SlotClass&) { return uint64_t{1}; });
}

bool share_bytes(ArenaShape& shape, uint64_t bytes, int depth, uint64_t transit) {
  uint64_t all = 0;
  for (const SlotClass& c : shape.classes) all += c.n_experts * c.slot_bytes;
  if (all <= bytes) {
    set_all(shape);
    return true;
  }
  shape.transit = transit;
  const uint64_t reserved = transit * shape.largest_slot();
  const uint64_t budget = bytes > reserved ? bytes - reserved : 0;
  fill(shape, budget, depth, [](const SlotClass& c) { return c.slot_bytes; });
  return shape.arena_bytes() <= bytes;
}

}  // namespace penstock::experts
