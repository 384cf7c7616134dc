// Who writes down what a request did, on the engine's thread; the server itself keeps counters
// only.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "engine/session.h"
#include "server/job.h"

namespace penstock::server {

class JobWatch {
 public:
  virtual ~JobWatch() = default;
  virtual void prefilled(engine::Session& session) = 0;  // the prompt was evaluated
  virtual void step(engine::Session& session) = 0;       // often, while tokens are generated
  virtual void done(engine::Session& session, const engine::GenerateResult& result) = 0;
  virtual void failed(engine::Session& session, const std::string& why) = 0;
};

// Called when a request's turn comes; null: it is not watched.
using WatchJob = std::function<std::unique_ptr<JobWatch>(engine::Session&, const Job&)>;

}  // namespace penstock::server
