// The engine's thread: loads the model, then works on one job after the other. Clients take turns:
// among those that wait, the next is the one whose last turn is longest ago.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "engine/conversation.h"
#include "engine/runtime.h"
#include "server/job.h"
#include "server/metrics.h"
#include "server/model.h"

namespace penstock::server {

enum class Phase {
  Loading,
  Ready,
  Failed,   // to load
  Changed,  // loaded, but its file was written to or cut since: nothing is answered any more
  Stopping,
};

struct Status {
  Phase phase = Phase::Loading;
  std::string step;  // of the loading
  uint64_t done = 0, total = 0;
  std::string error;  // Failed, Changed
  size_t waiting = 0;
  size_t running = 0;
};

class Scheduler {
 public:
  using Load = std::function<std::unique_ptr<engine::Runtime>(const engine::Runtime::Progress&)>;

  Scheduler(const ServerOptions& options, Load load, Metrics& metrics);
  ~Scheduler();  // cuts what is still there
  Scheduler(const Scheduler&) = delete;

  void start();
  Status status() const;
  std::exception_ptr failure() const;  // of the loading; null: none

  // Throws ApiError while there is none to rely on: 503, or 500 when its file has changed.
  std::shared_ptr<const Model> model() const;
  // Throws ApiError as model() does, and 503 when the queue is full.
  void submit(const std::shared_ptr<Job>& job);
  // Ends the job within a layer or a token, at once if it still waits.
  void cancel(const std::shared_ptr<Job>& job, CancelReason reason);

  void refuse_more();  // from now on submit() throws
  void cancel_all(CancelReason reason);

 private:
  void run();
  void load();
  std::shared_ptr<Job> next();
  void execute(Job& job, engine::Session& session, engine::Conversation& conversation);
  void generate(Job& job, engine::Session& session, engine::Conversation& conversation,
                Outcome* outcome);
  std::optional<ApiError> file_error();
  bool keep_going(Job& job, engine::Session& session);
  void publish(engine::Session& session);
  ModelFacts facts() const;

  const ServerOptions options_;
  const Load load_;
  Metrics& metrics_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Status status_;
  bool stop_ = false;
  std::exception_ptr failure_;
  std::shared_ptr<const Model> model_;
  struct Waiting {
    std::shared_ptr<Job> job;
    int64_t since_ns;
  };
  std::map<std::string, std::deque<Waiting>> queues_;  // by client; none is empty
  std::map<std::string, uint64_t> last_turn_;          // of the clients in queues_
  uint64_t turn_ = 0;
  std::shared_ptr<Job> running_;
  double waited_s_ = 0;  // the running job

  int64_t published_ns_ = 0;
  std::unique_ptr<engine::Runtime> runtime_;
  std::thread thread_;
};

}  // namespace penstock::server
