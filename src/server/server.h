// An OpenAI-compatible HTTP server around one model.
//
//   Server server(options, [](const auto& progress) { return engine::Runtime::open(…, progress);
//   }); server.start();   // listens at once; the model is loaded meanwhile … server.stop();    //
//   finishes what is there, within a time limit
//
// The engine runs in a thread of its own and does one request after the other; every connection has
// a thread that waits for it. The room reads and writes HTTP and JSON and leaves models and their
// memory to the engine.
#pragma once

#include <exception>
#include <memory>
#include <thread>

#include "server/api.h"
#include "server/http_server.h"
#include "server/metrics.h"
#include "server/options.h"
#include "server/scheduler.h"

namespace penstock::server {

class Server {
 public:
  // Takes the address. Throws Error(Usage) for options that contradict each other, Error(Io) when
  // the address cannot be had.
  Server(const ServerOptions& options, Scheduler::Load load);
  ~Server();  // as stop(), without waiting for requests
  Server(const Server&) = delete;

  int port() const noexcept { return port_; }
  void start();
  Phase phase() const { return scheduler_.status().phase; }
  std::exception_ptr failure() const { return scheduler_.failure(); }  // of the loading

  // New requests are refused; those that are there are finished, or cut after
  // Limits::drain_seconds or as soon as `hurry` says so.
  void stop(const std::function<bool()>& hurry = {});

 private:
  void close();

  const ServerOptions options_;
  Metrics metrics_;
  Scheduler scheduler_;
  HttpServer http_;
  Api api_;
  int port_ = 0;
  std::thread listener_;
};

}  // namespace penstock::server
