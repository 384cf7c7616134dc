#include "server/options.h"

namespace penstock::server {

uint64_t Limits::memory_bytes() const noexcept {
  // A thread's touched stack and its connection's buffers; while one body is being parsed, its
  // JSON values take about sixteen times the bytes in the worst case (an array of one-digit numbers
  // is 2 bytes of text and 16 of value, and arrays grow by doubling).
  constexpr uint64_t kThreadBytes = uint64_t{96} << 10;
  constexpr uint64_t kParseFactor = 16;
  return static_cast<uint64_t>(connections) * kThreadBytes + bodies_bytes +
         kParseFactor * body_bytes;
}

}  // namespace penstock::server
