#include "cli/interrupt.h"

#include <csignal>
#include <cstdlib>

namespace penstock::cli {
namespace {

std::atomic<bool> g_interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free);

void on_signal(int) {
  if (g_interrupted.exchange(true)) std::_Exit(130);
}

}  // namespace

std::atomic<bool>& interrupt_flag() {
  static const bool installed = [] {
    struct sigaction action {};
    action.sa_handler = on_signal;  // without SA_RESTART: a read of the terminal returns
    sigemptyset(&action.sa_mask);
    return sigaction(SIGINT, &action, nullptr) == 0 && sigaction(SIGTERM, &action, nullptr) == 0;
  }();
  static_cast<void>(installed);
  return g_interrupted;
}

}  // namespace penstock::cli
