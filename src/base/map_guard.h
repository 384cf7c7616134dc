// What happens when a mapped file can no longer be read: it was cut short by another program, or
// its disk fails. The kernel answers an access with SIGBUS; the guard turns that into an error that
// names the file, and the exit code of an I/O error.
#pragma once

#include <cstddef>
#include <string>

namespace penstock {

// Installs the handler for the whole process, once. Other causes of SIGBUS keep their effect.
void install_map_guard();

// Called by FileMap. At most 1024 mappings are guarded.
void guard_mapping(const void* data, size_t bytes, const std::string& path);
void unguard_mapping(const void* data) noexcept;

}  // namespace penstock
