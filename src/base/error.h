// Typed errors. Everything that can fail on a user's machine throws penstock::Error with a kind
// that decides the exit code; the message says what failed, where (file, tensor, layer, offset,
// errno) and what to do about it.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace penstock {

// The numeric values are the process exit codes (documented in `penstock help`).
enum class ErrorKind : int {
  Internal = 1,     // a broken invariant of ours
  Usage = 2,        // arguments that make no sense, unknown option values
  Plan = 3,         // the memory plan does not fit; nothing large was allocated
  Watchdog = 4,     // memory ran out while running
  Io = 5,           // the operating system refused or failed a read, write or mapping
  Format = 6,       // a file's contents are invalid or inconsistent
  Unsupported = 7,  // valid, but this build does not know it (named in the message)
  Numeric = 8,      // non-finite values in the computation
  Cancelled = 130,  // interrupted by the user
};

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const noexcept { return kind_; }
  int exit_code() const noexcept { return static_cast<int>(kind_); }

 private:
  ErrorKind kind_;
};

template <typename... Args>
[[noreturn]] void fail(ErrorKind kind, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(kind, fmt::format(format, std::forward<Args>(args)...));
}

// "Input/output error (errno 5)": the system's words and the number people search for.
std::string errno_text(int error);

}  // namespace penstock
