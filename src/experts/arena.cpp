#include "experts/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "base/clock.h"

namespace penstock::experts {

Arena::Arena(const ArenaShape& shape, double huge_seconds, uint64_t max_range)
    : max_range_(max_range) {
  uint64_t offset = 0;
  uint32_t first = 0;
  const auto add = [&](uint64_t n, uint64_t slot_bytes) {
    if (n == 0) return;
    groups_.push_back({first, static_cast<uint32_t>(n), offset, slot_bytes, 0, 0});
    offset += n * slot_bytes;
    first += static_cast<uint32_t>(n);
  };
  for (const SlotClass& c : shape.classes) add(c.slots, c.slot_bytes);
  add(shape.transit, shape.largest_slot());
  number_ranges();
  mapping_ = Mapping(offset, huge_seconds > 0 ? Pages::Huge : Pages::Small);
  fault_in(huge_seconds);
  huge_ = huge_bytes(mapping_.data(), mapping_.size());
}

// The kernel clears pages at a few GB/s per core, a hypervisor that has to find them more slowly, so
// several threads take slots in turn.
void Arena::fault_in(double huge_seconds) {
  constexpr unsigned kThreads = 4;
  const int64_t start = now_ns();
  const uint32_t slots = groups_.empty() ? 0 : groups_.back().first + groups_.back().n;
  std::atomic<uint32_t> next{0};
  std::atomic<bool> huge{huge_seconds > 0};
  const auto work = [&] {
    for (uint32_t i = next++; i < slots; i = next++) {
      const Group& group = group_of(i);
      const uint64_t at = group.offset + (i - group.first) * group.slot_bytes;
      if (huge && seconds_since(start) > huge_seconds && huge.exchange(false)) {
        const uint64_t rest = round_up(at, kHugePageSize);
        if (rest < mapping_.size()) {
          madvise(mapping_.data() + rest, mapping_.size() - rest, MADV_NOHUGEPAGE);
        }
      }
      mapping_.prefault(at, group.slot_bytes);
    }
  };
  std::vector<std::thread> threads;
  const unsigned n = std::min({kThreads, std::max(1u, std::thread::hardware_concurrency()), slots});
  for (unsigned t = 1; t < n; ++t) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
}

void Arena::number_ranges() {
  uint32_t range = 0;
  for (Group& group : groups_) {
    group.per_range =
        static_cast<uint32_t>(std::max<uint64_t>(1, max_range_ / group.slot_bytes));
    group.first_range = range;
    range += (group.n + group.per_range - 1) / group.per_range;
  }
}

// Unmapping would leave a hole that a later mapping could take and that ~Mapping would then unmap:
// the addresses stay ours, the pages go.
uint64_t Arena::give_back(int32_t last, uint64_t n) {
  Group* group = &groups_.back();
  while (group->first > static_cast<uint32_t>(last)) --group;
  const uint64_t end = group->offset + uint64_t{group->n} * group->slot_bytes;
  group->n -= static_cast<uint32_t>(n);
  number_ranges();
  const uint64_t from = round_up(end - n * group->slot_bytes, kPageSize);
  const uint64_t to = round_down(end, kPageSize);
  if (from >= to || madvise(mapping_.data() + from, to - from, MADV_DONTNEED) != 0) return 0;
  return to - from;
}

std::vector<MemoryRange> Arena::ranges() const {
  std::vector<MemoryRange> ranges;
  for (const Group& group : groups_) {
    for (uint32_t i = 0; i < group.n; i += group.per_range) {
      const uint64_t n = std::min(group.per_range, group.n - i);
      ranges.push_back(
          {mapping_.data() + group.offset + i * group.slot_bytes, n * group.slot_bytes});
    }
  }
  return ranges;
}

int32_t Arena::range_of(int32_t id) const noexcept {
  const Group& group = group_of(static_cast<uint32_t>(id));
  return static_cast<int32_t>(group.first_range +
                              (static_cast<uint32_t>(id) - group.first) / group.per_range);
}

}  // namespace penstock::experts
