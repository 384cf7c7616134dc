// The HTTP library's server on our connections and threads.
#pragma once

#include <httplib.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "server/connection.h"
#include "server/options.h"

namespace penstock::server {

class HttpServer final : public httplib::Server {
 public:
  using Refused = std::function<void(const ApiError&)>;  // a request that no handler saw

  HttpServer(const Limits& limits, Refused refused);
  ~HttpServer() override;

  // Throws Error(Io) when the address cannot be had. Returns the port.
  int bind(const std::string& host, int port);
  // From now on connections end after the request they are at; new ones get one answer.
  void close_idle() noexcept { closing_ = true; }
  // Ends the listening and, when answers still take longer than `seconds`, the connections.
  void close(double seconds);

 private:
  // One thread per connection, started when needed, kept for the next one.
  class Workers;

  bool process_and_close_socket(socket_t socket) override;
  void serve(Connection& connection);
  void shut_connections(int how);

  const Limits limits_;
  const Refused refused_;
  std::atomic<bool> closing_{false};
  std::atomic<int> answering_{0};  // requests that the library has
  std::mutex mutex_;
  std::set<int> sockets_;  // of the connections
};

}  // namespace penstock::server
