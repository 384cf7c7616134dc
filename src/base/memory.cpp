#include "base/memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <utility>

#include "base/error.h"

namespace penstock {

Mapping::Mapping(size_t bytes, Pages pages) {
  if (bytes == 0) return;
  const size_t want = round_up(bytes, kPageSize);
  const size_t slack = pages == Pages::Huge ? kHugePageSize : 0;
  void* raw = mmap(nullptr, want + slack, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) {
    fail(ErrorKind::Io, "cannot map {} bytes of memory: {}", want, errno_text(errno));
  }
  auto* start = static_cast<std::byte*>(raw);
  if (slack != 0) {
    // Keep the aligned part, give the rest of the over-long mapping back.
    const auto address = reinterpret_cast<uintptr_t>(start);
    const size_t head = round_up(address, kHugePageSize) - address;
    if (head != 0) munmap(start, head);
    if (slack != head) munmap(start + head + want, slack - head);
    start += head;
    madvise(start, want, MADV_HUGEPAGE);
  }
  data_ = start;
  size_ = want;
}

Mapping::~Mapping() {
  if (data_ != nullptr) munmap(data_, size_);
}

Mapping::Mapping(Mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

void Mapping::prefault(size_t offset, size_t bytes) noexcept {
  volatile std::byte* base = data_;
  for (size_t at = offset; at < offset + bytes; at += kPageSize) base[at] = base[at];
}

uint64_t huge_bytes(const void* data, size_t size) {
  FILE* smaps = std::fopen("/proc/self/smaps", "re");
  if (smaps == nullptr) return 0;
  const auto low = reinterpret_cast<uintptr_t>(data);
  const auto high = low + size;
  uint64_t total = 0;
  bool inside = false;
  char line[512];
  while (std::fgets(line, sizeof line, smaps) != nullptr) {
    uint64_t from = 0;
    uint64_t to = 0;
    uint64_t kib = 0;
    if (std::sscanf(line, "%" SCNx64 "-%" SCNx64 " ", &from, &to) == 2) {
      // The kernel may have joined our range with a neighbour; overlap is what can be known.
      inside = from < high && to > low;
    } else if (inside && std::sscanf(line, "AnonHugePages: %" SCNu64 " kB", &kib) == 1) {
      total += kib * 1024;
    }
  }
  std::fclose(smaps);
  return total < size ? total : size;
}

}  // namespace penstock
