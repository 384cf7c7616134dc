// The memory behind the slots: one anonymous mapping, on huge pages as far as the kernel gives them
// in time, never released slot by slot (spec/streaming.md §A, design/machine.md §1).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/memory.h"
#include "experts/io.h"
#include "experts/shape.h"

namespace penstock::experts {

class Arena {
 public:
  // io_uring registers at most 1 GiB at once.
  static constexpr uint64_t kMaxRange = (uint64_t{1} << 30) - 1;

  // Maps and faults in every slot: on huge pages until `huge_seconds` have passed, the rest on 4
  // KiB pages; none on huge pages with 0. Slots are numbered as Residency numbers them.
  Arena(const ArenaShape& shape, double huge_seconds, uint64_t max_range = kMaxRange);

  std::byte* slot(int32_t id) const noexcept {
    const Group& group = group_of(static_cast<uint32_t>(id));
    return mapping_.data() + group.offset +
           (static_cast<uint32_t>(id) - group.first) * group.slot_bytes;
  }
  uint64_t slot_bytes(int32_t id) const noexcept {
    return group_of(static_cast<uint32_t>(id)).slot_bytes;
  }
  uint64_t bytes() const noexcept { return mapping_.size(); }
  // Gives the memory of the last `n` slots of the group that holds slot `last` back to the system;
  // they must not be used again. Returns the bytes given back. Nothing of it may be registered.
  uint64_t give_back(int32_t last, uint64_t n);
  uint64_t huge() const noexcept { return huge_; }  // measured

  // Ranges of whole slots, each of at most max_range bytes, to register with io_uring; and the
  // index of the range that holds a slot.
  std::vector<MemoryRange> ranges() const;
  int32_t range_of(int32_t id) const noexcept;

 private:
  struct Group {
    uint32_t first = 0;  // slot number
    uint32_t n = 0;
    uint64_t offset = 0;
    uint64_t slot_bytes = 0;
    uint32_t per_range = 0;    // slots in a range
    uint32_t first_range = 0;  // its index
  };
  const Group& group_of(uint32_t id) const noexcept {
    size_t i = groups_.size() - 1;
    while (groups_[i].first > id) --i;
    return groups_[i];
  }
  void fault_in(double huge_seconds);
  void number_ranges();
  uint64_t max_range_;

  std::vector<Group> groups_;  // those with slots, in order
  Mapping mapping_;
  uint64_t huge_ = 0;
};

}  // namespace penstock::experts
