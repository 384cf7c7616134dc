// `--shard I/N`, of the commands whose work can be spread over machines.
#pragma once

#include <charconv>
#include <cstdint>
#include <string>

#include "base/error.h"

namespace penstock::cli {

// "" is 0/1: all of it. Throws Error(Usage).
inline void parse_shard(const std::string& text, uint32_t* index, uint32_t* of) {
  if (text.empty()) return;
  const char* const end = text.data() + text.size();
  const auto [slash, bad_index] = std::from_chars(text.data(), end, *index);
  if (bad_index == std::errc() && slash != end && *slash == '/') {
    const auto [last, bad_of] = std::from_chars(slash + 1, end, *of);
    if (bad_of == std::errc() && last == end && *index < *of) return;
  }
  fail(ErrorKind::Usage, "--shard {}: write it as I/N with I from 0 to N - 1, such as 0/4", text);
}

}  // namespace penstock::cli
