// A binary heap of slots in which each slot knows where it lies, so that any of them can be taken
// out. The order is the caller's: before(a, b) says that a is evicted before b.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace penstock::experts {

class SlotHeap {
 public:
  void reserve(size_t n) { heap_.reserve(n); }
  void clear() noexcept { heap_.clear(); }
  bool empty() const noexcept { return heap_.empty(); }
  int32_t top() const noexcept { return heap_.front(); }
  // The first ones are among the next to go, in no exact order.
  std::span<const int32_t> items() const noexcept { return heap_; }
  bool holds(int32_t id, const std::vector<uint32_t>& places) const noexcept {
    const size_t at = places[static_cast<size_t>(id)];
    return at < heap_.size() && heap_[at] == id;
  }

  // places[id]: where slot id lies in the heap that holds it.
  template <typename Before>
  void insert(int32_t id, std::vector<uint32_t>& places, const Before& before) {
    heap_.push_back(id);
    sift_up(heap_.size() - 1, places, before);
  }

  template <typename Before>
  void remove(int32_t id, std::vector<uint32_t>& places, const Before& before) noexcept {
    const size_t at = places[static_cast<size_t>(id)];
    const int32_t last = heap_.back();
    heap_.pop_back();
    if (last == id) return;
    put(at, last, places);
    sift_up(at, places, before);
    sift_down(places[static_cast<size_t>(last)], places, before);
  }

  // id, which the heap holds, has come to be evicted later than it was.
  template <typename Before>
  void later(int32_t id, std::vector<uint32_t>& places, const Before& before) noexcept {
    sift_down(places[static_cast<size_t>(id)], places, before);
  }

  // The order has changed under the heap.
  template <typename Before>
  void reorder(std::vector<uint32_t>& places, const Before& before) noexcept {
    for (size_t at = heap_.size() / 2; at-- > 0;) sift_down(at, places, before);
  }

 private:
  void put(size_t at, int32_t id, std::vector<uint32_t>& places) noexcept {
    heap_[at] = id;
    places[static_cast<size_t>(id)] = static_cast<uint32_t>(at);
  }

  template <typename Before>
  void sift_up(size_t at, std::vector<uint32_t>& places, const Before& before) noexcept {
    const int32_t id = heap_[at];
    for (; at > 0 && before(id, heap_[(at - 1) / 2]); at = (at - 1) / 2) {
      put(at, heap_[(at - 1) / 2], places);
    }
    put(at, id, places);
  }

  template <typename Before>
  void sift_down(size_t at, std::vector<uint32_t>& places, const Before& before) noexcept {
    const int32_t id = heap_[at];
    for (;;) {
      size_t child = 2 * at + 1;
      if (child >= heap_.size()) break;
      if (child + 1 < heap_.size() && before(heap_[child + 1], heap_[child])) ++child;
      if (!before(heap_[child], id)) break;
      put(at, heap_[child], places);
      at = child;
    }
    put(at, id, places);
  }

  std::vector<int32_t> heap_;
};

}  // namespace penstock::experts
