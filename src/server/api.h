// The endpoints.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "server/guard.h"
#include "server/http_server.h"
#include "server/metrics.h"
#include "server/reply.h"
#include "server/request.h"
#include "server/scheduler.h"

namespace penstock::server {

class Api {
 public:
  Api(const ServerOptions& options, Scheduler& scheduler, Metrics& metrics);

  void install(HttpServer& http);

 private:
  using Request = httplib::Request;
  using Response = httplib::Response;
  class Stream;

  bool admit(const Request& request, Response& response);  // false: an answer has been given
  void health(Response& response) const;
  void metrics_text(Response& response) const;
  void list_models(Response& response) const;
  void one_model(const std::string& name, Response& response) const;
  void generate(Endpoint endpoint, Response& response, const httplib::ContentReader& reader);
  GenerationRequest read_request(Endpoint endpoint, const httplib::ContentReader& reader);
  void answer_whole(const std::shared_ptr<Job>& job, Reply reply, Response& response);
  void answer_stream(const std::shared_ptr<Job>& job, Reply reply, Response& response);
  Job::News listen(const std::shared_ptr<Job>& job);
  void log_answer(const Job& job, const Reply& reply) const;

  const ServerOptions& options_;
  Scheduler& scheduler_;
  Metrics& metrics_;
  Guard guard_;
  std::atomic<size_t> body_bytes_{0};  // of the bodies being read
  std::mutex parsing_;                 // one body at a time: its JSON values are many times larger
};

}  // namespace penstock::server
