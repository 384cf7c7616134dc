#include "base/log.h"

#include <atomic>
#include <cstdio>
#include <string>

namespace penstock::log {
namespace {
std::atomic<Level> g_level{Level::Info};
}

void set_level(Level level) noexcept {
  g_level.store(level, std::memory_order_relaxed);
}
Level level() noexcept {
  return g_level.load(std::memory_order_relaxed);
}

void write(Level level, std::string_view message) {
  const char* prefix = level == Level::Warn ? "warning: " : level == Level::Debug ? "debug: " : "";
  const std::string line = fmt::format("penstock: {}{}\n", prefix, message);
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace penstock::log
