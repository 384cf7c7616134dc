// Messages for people, on stderr. Standard output belongs to the program's result.
#pragma once

#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace penstock::log {

enum class Level { Quiet, Warn, Info, Debug };

void set_level(Level level) noexcept;
Level level() noexcept;

// Writes "penstock: <prefix><message>\n" to stderr in one call, so that lines of threads do not
// mix.
void write(Level level, std::string_view message);

template <typename... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
  if (level() >= Level::Info) write(Level::Info, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void warn(fmt::format_string<Args...> format, Args&&... args) {
  if (level() >= Level::Warn) write(Level::Warn, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void debug(fmt::format_string<Args...> format, Args&&... args) {
  if (level() >= Level::Debug) {
    write(Level::Debug, fmt::format(format, std::forward<Args>(args)...));
  }
}

}  // namespace penstock::log
