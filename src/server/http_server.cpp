#include "server/http_server.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <utility>

#include "base/clock.h"
#include "base/error.h"

namespace penstock::server {
namespace {

// Set while the accepting thread handles a connection itself, because there is no thread for it.
thread_local bool t_overloaded = false;

}  // namespace

class HttpServer::Workers final : public httplib::TaskQueue {
 public:
  explicit Workers(size_t most) : most_(most) {}

  void enqueue(std::function<void()> task) override {
    {
      const std::lock_guard lock(mutex_);
      if (idle_ > tasks_.size()) {
        tasks_.push_back(std::move(task));
        wake_.notify_one();
        return;
      }
      if (threads_.size() < most_) {
        tasks_.push_back(std::move(task));
        threads_.emplace_back([this] { work(); });
        return;
      }
    }
    t_overloaded = true;
    task();
    t_overloaded = false;
  }

  void shutdown() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      ++idle_;
      wake_.wait(lock, [&] { return stop_ || !tasks_.empty(); });
      --idle_;
      if (tasks_.empty()) return;
      const std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
      lock.lock();
    }
  }

  const size_t most_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> tasks_;
  std::vector<std::thread> threads_;
  size_t idle_ = 0;
  bool stop_ = false;
};

HttpServer::HttpServer(const Limits& limits, Refused refused)
    : limits_(limits), refused_(std::move(refused)) {
  new_task_queue = [this] { return new Workers(static_cast<size_t>(limits_.connections)); };
  // What the bodies may be is decided by the connection and the handlers.
  set_payload_max_length(limits_.body_bytes);
}

int HttpServer::bind(const std::string& host, int port) {
  errno = 0;
  const int bound = port == 0 ? bind_to_any_port(host) : (bind_to_port(host, port) ? port : -1);
  if (bound < 0) {
    fail(ErrorKind::Io, "cannot listen on {} port {}: {}; choose another with --port (0: any)",
         host, port, errno_text(errno));
  }
  ::listen(svr_sock_, limits_.connections);  // the library's own queue holds five
  return bound;
}

HttpServer::~HttpServer() {
  if (const int socket = svr_sock_.exchange(INVALID_SOCKET); socket != INVALID_SOCKET) {
    ::close(socket);  // bound and never listened on
  }
}

// The library would break off answers: they come first.
void HttpServer::close(double seconds) {
  constexpr std::chrono::milliseconds kLook{5};
  const int64_t started = now_ns();
  while (answering_ > 0 && seconds_since(started) < seconds) std::this_thread::sleep_for(kLook);
  stop();
  shut_connections(answering_ > 0 ? SHUT_RDWR : SHUT_RD);
}

// Wakes the threads that wait for their clients.
void HttpServer::shut_connections(int how) {
  const std::lock_guard lock(mutex_);
  for (const int socket : sockets_) shutdown(socket, how);
}

void HttpServer::serve(Connection& connection) {
  const auto plain = [](httplib::Request& request) {
    request.headers.erase("Accept-Encoding");  // small replies, and events must not be delayed
  };
  bool closed = false;
  do {
    if (!connection.read_head()) return;
    ++answering_;
    const bool written = process_request(connection, closing_, closed, plain);
    --answering_;
    if (!written) break;
  } while (!closed && connection.reusable());
}

bool HttpServer::process_and_close_socket(socket_t socket) {
  Connection connection(socket, limits_, closing_);
  if (t_overloaded) {  // the accepting thread has no time for courtesy
    const ApiError error(503, "too_many_connections",
                         fmt::format("{} connections are open already", limits_.connections));
    refused_(error);
    connection.reply(error);
    return true;
  }
  {
    const std::lock_guard lock(mutex_);
    sockets_.insert(socket);
  }
  try {
    serve(connection);
  } catch (const ApiError& error) {
    refused_(error);
    connection.reply(error);
  }
  if (!connection.reusable()) connection.linger();
  const std::lock_guard lock(mutex_);
  sockets_.erase(socket);
  return true;
}

}  // namespace penstock::server
