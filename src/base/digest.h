// SHA-256 of texts and files in one call, and from its digits.
#pragma once

#include <string>
#include <string_view>

#include "base/hash.h"

namespace penstock {

Sha256 sha256(std::string_view bytes);
Sha256 sha256_file(const std::string& path);  // of all its bytes; throws Error(Io)

// From 64 hexadecimal digits in lower case, as hex() writes them; false for anything else.
bool parse_sha256(std::string_view digits, Sha256* out) noexcept;

}  // namespace penstock
