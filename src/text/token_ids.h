// Token ids as text: numbers separated by white space or commas.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace penstock::text {

// From a file ("-": standard input). Throws Error(Io), Error(Usage) naming the place of what is no
// token id.
std::vector<int32_t> read_token_ids(const std::string& path);

}  // namespace penstock::text
