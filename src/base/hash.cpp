#include "base/hash.h"

#include <fmt/format.h>
#include <openssl/evp.h>
#include <xxhash.h>

#include "base/error.h"

namespace penstock {

uint64_t xxh64(std::span<const std::byte> bytes, uint64_t seed) noexcept {
  return XXH64(bytes.data(), bytes.size(), seed);
}

struct Sha256Stream::Impl {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~Impl() { EVP_MD_CTX_free(context); }
};

Sha256Stream::Sha256Stream() : impl_(std::make_unique<Impl>()) {
  if (impl_->context == nullptr || EVP_DigestInit_ex(impl_->context, EVP_sha256(), nullptr) != 1) {
    fail(ErrorKind::Internal, "the SHA-256 of the crypto library is not available");
  }
}

Sha256Stream::~Sha256Stream() = default;

void Sha256Stream::update(const void* data, size_t bytes) {
  EVP_DigestUpdate(impl_->context, data, bytes);
}

Sha256 Sha256Stream::finish() {
  Sha256 digest{};
  unsigned int length = 0;
  EVP_DigestFinal_ex(impl_->context, digest.data(), &length);
  return digest;
}

std::string hex(const Sha256& digest) {
  std::string text;
  for (const uint8_t byte : digest) text += fmt::format("{:02x}", byte);
  return text;
}

}  // namespace penstock
