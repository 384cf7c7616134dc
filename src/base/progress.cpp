#include "base/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/clock.h"
#include "base/log.h"

namespace penstock {
namespace {

constexpr int64_t kTerminalPeriod = 100'000'000;
constexpr int64_t kLogPeriod = 10'000'000'000;

std::string amount(double value, const std::string& unit) {
  if (unit != "B") return fmt::format("{:.0f} {}", value, unit);
  if (value >= 1e9) return fmt::format("{:.2f} GB", value * 1e-9);
  return fmt::format("{:.1f} MB", value * 1e-6);
}

}  // namespace

Progress::Progress(std::string label, uint64_t total, std::string unit)
    : label_(std::move(label)),
      unit_(std::move(unit)),
      total_(total),
      start_(now_ns()),
      terminal_(isatty(STDERR_FILENO) == 1) {
  last_print_ = start_;
}

Progress::~Progress() {
  finish();
}

void Progress::set(uint64_t done) {
  done_ = done;
  const int64_t now = now_ns();
  if (now - last_print_ >= (terminal_ ? kTerminalPeriod : kLogPeriod)) print(now, false);
}

void Progress::finish() {
  if (finished_) return;
  finished_ = true;
  if (printed_) print(now_ns(), true);
}

void Progress::print(int64_t now, bool last) {
  last_print_ = now;
  if (log::level() < log::Level::Info) return;
  printed_ = true;
  const double elapsed = std::max(1e-9, static_cast<double>(now - start_) * 1e-9);
  const double rate = static_cast<double>(done_) / elapsed;
  std::string line = fmt::format("{}: {} of {}", label_, amount(static_cast<double>(done_), unit_),
                                 amount(static_cast<double>(total_), unit_));
  if (total_ != 0) {
    line += fmt::format(" ({:.0f} %)",
                        100.0 * static_cast<double>(done_) / static_cast<double>(total_));
  }
  line += fmt::format(", {}/s", amount(rate, unit_));
  if (!last && rate > 0 && total_ >= done_) {
    line += fmt::format(", {:.0f} s left", static_cast<double>(total_ - done_) / rate);
  }
  if (terminal_) {
    std::fprintf(stderr, "\r\033[K%s%s", line.c_str(), last ? "\n" : "");
  } else {
    std::fprintf(stderr, "penstock: %s\n", line.c_str());
  }
}

}  // namespace penstock
