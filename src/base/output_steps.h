// What every file that this program writes goes through, whoever writes it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/file.h"

namespace penstock {

// Opens or creates `path` for reading and writing and locks it: one process at a time. Throws
// Error(Io), which names `out` as what is being written when another process holds the lock.
File open_locked(const std::string& path, const std::string& out);

// All of `bytes` at `offset`, retrying short writes and EINTR. Throws Error(Io) with `name`, the
// offset and then `hint`.
void write_all_at(int fd, uint64_t offset, std::span<const std::byte> bytes,
                  const std::string& name, std::string_view hint = {});

// `temporary`, open as `fd`, is complete: to the disk with it, to its name `path`, and the name to
// the disk. Closes nothing. Throws Error(Io).
void publish(int fd, const std::string& temporary, const std::string& path);

}  // namespace penstock
