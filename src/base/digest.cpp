#include "base/digest.h"

#include <algorithm>
#include <span>
#include <vector>

#include "base/file.h"

namespace penstock {

Sha256 sha256(std::string_view bytes) {
  Sha256Stream hash;
  hash.update(bytes.data(), bytes.size());
  return hash.finish();
}

Sha256 sha256_file(const std::string& path) {
  const File file = File::open_read(path);
  Sha256Stream hash;
  std::vector<std::byte> block(size_t{1} << 20);
  const uint64_t size = file.size();
  for (uint64_t at = 0; at < size; at += block.size()) {
    const auto n = static_cast<size_t>(std::min<uint64_t>(block.size(), size - at));
    file.read_at(at, std::span(block).first(n));
    hash.update(block.data(), n);
  }
  return hash.finish();
}

bool parse_sha256(std::string_view digits, Sha256* out) noexcept {
  if (digits.size() != 2 * out->size()) return false;
  out->fill(0);
  for (size_t i = 0; i < digits.size(); ++i) {
    const char c = digits[i];
    const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    if (digit < 0) return false;
    (*out)[i / 2] = static_cast<uint8_t>((*out)[i / 2] << 4 | digit);
  }
  return true;
}

}  // namespace penstock
