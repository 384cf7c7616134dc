#include "server/server.h"

#include <chrono>
#include <utility>

#include "base/clock.h"

namespace penstock::server {

Server::Server(const ServerOptions& options, Scheduler::Load load)
    : options_(options),
      scheduler_(options_, std::move(load), metrics_),
      http_(options_.limits,
            [this](const ApiError& error) { metrics_.count_response("other", error.status()); }),
      api_(options_, scheduler_, metrics_) {
  api_.install(http_);
  port_ = http_.bind(options_.host, options_.port);
}

Server::~Server() {
  close();
}

void Server::start() {
  listener_ = std::thread([this] { http_.listen_after_bind(); });
  while (!http_.is_running()) std::this_thread::yield();  // stop() would not be heard before
  scheduler_.start();
}

void Server::stop(const std::function<bool()>& hurry) {
  constexpr std::chrono::milliseconds kLook{50};
  scheduler_.refuse_more();
  http_.close_idle();
  const int64_t started = now_ns();
  const auto busy = [&] {
    const Status status = scheduler_.status();
    return status.waiting + status.running > 0;
  };
  while (busy() && seconds_since(started) < options_.limits.drain_seconds && !(hurry && hurry())) {
    std::this_thread::sleep_for(kLook);
  }
  close();
}

void Server::close() {
  constexpr double kSeconds = 2;  // for the last words to the clients
  if (!listener_.joinable()) return;
  scheduler_.refuse_more();
  http_.close_idle();
  scheduler_.cancel_all(CancelReason::Stopping);
  http_.close(kSeconds);
  listener_.join();
}

}  // namespace penstock::server
