// Ctrl-C as a flag: the run ends cleanly, with its summary.
#pragma once

#include <atomic>

namespace penstock::cli {

// Installs the handler (once) and returns the flag that SIGINT and SIGTERM set. A second signal
// while the flag is still set ends the process at once.
std::atomic<bool>& interrupt_flag();

}  // namespace penstock::cli
