#include "server/job.h"

#include <utility>

namespace penstock::server {

Job::News Job::wait(std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, patience, [&] { return !news_.empty(); });
  return std::exchange(news_, {});
}

void Job::put(const engine::Output& output) {
  {
    const std::lock_guard lock(mutex_);
    news_.text += output.text;
    news_.tokens.insert(news_.tokens.end(), output.tokens.begin(), output.tokens.end());
  }
  changed_.notify_one();
}

void Job::finish(Outcome outcome) {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(finished_, true)) return;
    news_.outcome = std::move(outcome);
  }
  changed_.notify_one();
}

void Job::cancel(CancelReason reason) noexcept {
  CancelReason none = CancelReason::None;
  cancelled_.compare_exchange_strong(none, reason);
}

ApiError cancel_error(CancelReason reason) {
  switch (reason) {
    case CancelReason::Timeout:
      return {504, "request_timeout",
              "the request took longer than the server allows (--timeout): send a shorter prompt "
              "or a smaller max_tokens"};
    case CancelReason::Stopping:
      return {503, "server_stopping", "the server is being stopped"};
    default:
      return {499, "client_closed_request", "the client went away"};
  }
}

}  // namespace penstock::server
