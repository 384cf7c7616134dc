// Anonymous memory straight from the kernel: page-aligned, on huge pages where they can be had, and
// counted, so that the plan can be compared with what was really taken.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace penstock {

inline constexpr size_t kPageSize = 4096;
inline constexpr size_t kHugePageSize = size_t{2} << 20;

constexpr uint64_t round_up(uint64_t value, uint64_t multiple) noexcept {
  return (value + multiple - 1) / multiple * multiple;
}
constexpr uint64_t round_down(uint64_t value, uint64_t multiple) noexcept {
  return value / multiple * multiple;
}

// Builds that look for mistakes fill memory that must be written before it is read with 0xFF, which
// is NaN as a float.
#if !defined(NDEBUG) || defined(__SANITIZE_ADDRESS__)
inline constexpr bool kPoison = true;
#else
inline constexpr bool kPoison = false;
#endif

enum class Pages { Small, Huge };

// A private anonymous mapping. Contents are zero until written. Move-only; unmapped on destruction.
class Mapping {
 public:
  Mapping() = default;
  // With Pages::Huge the start is 2 MiB aligned and the range is advised MADV_HUGEPAGE; whether the
  // kernel followed is measured by huge_bytes(). Throws Error(Io) when the kernel refuses the map.
  Mapping(size_t bytes, Pages pages);
  ~Mapping();
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;

  std::byte* data() const noexcept { return data_; }
  size_t size() const noexcept { return size_; }
  explicit operator bool() const noexcept { return data_ != nullptr; }

  template <typename T>
  T* as() const noexcept {
    return reinterpret_cast<T*>(data_);
  }

  // Writes one byte per page of [offset, offset + bytes), so that later use cannot fault.
  void prefault(size_t offset, size_t bytes) noexcept;

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// Bytes of [data, data + size) that the kernel backs with transparent huge pages, read from
// /proc/self/smaps (AnonHugePages of the mappings inside the range); 0 where it cannot be read.
uint64_t huge_bytes(const void* data, size_t size);

}  // namespace penstock
