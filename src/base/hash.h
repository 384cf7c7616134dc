// Hashing, from libraries: XXH64 for checksums, SHA-256 for identities.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace penstock {

uint64_t xxh64(std::span<const std::byte> bytes, uint64_t seed = 0) noexcept;

using Sha256 = std::array<uint8_t, 32>;

class Sha256Stream {
 public:
  Sha256Stream();
  ~Sha256Stream();
  Sha256Stream(const Sha256Stream&) = delete;
  Sha256Stream& operator=(const Sha256Stream&) = delete;
  void update(const void* data, size_t bytes);
  Sha256 finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

std::string hex(const Sha256& digest);

}  // namespace penstock
