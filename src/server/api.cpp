#include "server/api.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "server/prepare.h"

namespace penstock::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kJson = "application/json";
constexpr std::chrono::milliseconds kLook{100};  // at the client and the clock, while waiting

// Events are this far apart (in seconds) at least: where tokens come faster, several share one, or
// the writing would take time from the computing.
constexpr double kPace = 0.01;

struct Route {
  const char* path;
  const char* method;
};
constexpr Route kRoutes[] = {{"/v1/chat/completions", "POST"},
                             {"/v1/completions", "POST"},
                             {"/v1/models", "GET"},
                             {"/health", "GET"},
                             {"/metrics", "GET"}};

const Route* route_of(const std::string& path) {
  const auto found = std::find_if(std::begin(kRoutes), std::end(kRoutes),
                                  [&](const Route& route) { return path == route.path; });
  return found == std::end(kRoutes) ? nullptr : found;
}

void set_error(httplib::Response& response, const ApiError& error) {
  response.status = error.status();
  if (error.status() == 503) response.set_header("Retry-After", "2");
  if (error.status() == 401) response.set_header("WWW-Authenticate", "Bearer");
  response.set_content(error.body(), kJson);
}

void set_error(httplib::Response& response, std::exception_ptr exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const ApiError& error) {
    set_error(response, error);
  } catch (const Error& error) {
    set_error(response, from_engine(error));
  } catch (const std::exception& error) {
    set_error(response, ApiError(500, "internal_error", error.what()));
  }
}

// What the library refuses by itself, in the words of the API.
ApiError library_error(const httplib::Request& request, int status) {
  if (status == 404) {
    if (const Route* route = route_of(request.path)) {
      return {405, "method_not_allowed", fmt::format("{} takes {}", route->path, route->method)};
    }
    std::string known;
    for (const Route& route : kRoutes) known += fmt::format(" {} {},", route.method, route.path);
    known.pop_back();
    return {404, "not_found", fmt::format("there is no such endpoint; there are:{}", known)};
  }
  return {status, "bad_request", "this is not a request that the server understands"};
}

// Part of a bound shared by all requests, given back at the end.
class Share {
 public:
  Share(std::atomic<size_t>& used, size_t most) : used_(used), most_(most) {}
  ~Share() { used_ -= mine_; }
  Share(const Share&) = delete;
  bool take(size_t bytes) {
    mine_ += bytes;
    return (used_ += bytes) <= most_;
  }

 private:
  std::atomic<size_t>& used_;
  const size_t most_;
  size_t mine_ = 0;
};

Json model_json(const Model& model) {
  return {{"id", model.id},
          {"object", "model"},
          {"created", model.created},
          {"owned_by", "penstock"},
          {"context_length", model.n_ctx}};
}

}  // namespace

Api::Api(const ServerOptions& options, Scheduler& scheduler, Metrics& metrics)
    : options_(options), scheduler_(scheduler), metrics_(metrics), guard_(options) {}

void Api::install(HttpServer& http) {
  using Handled = httplib::Server::HandlerResponse;
  http.set_pre_routing_handler([this](const Request& request, Response& response) {
    return admit(request, response) ? Handled::Unhandled : Handled::Handled;
  });
  http.set_exception_handler([](const Request&, Response& response, std::exception_ptr exception) {
    set_error(response, exception);
  });
  http.set_error_handler(
      httplib::Server::HandlerWithResponse([](const Request& request, Response& response) {
        if (response.body.empty()) set_error(response, library_error(request, response.status));
        return Handled::Handled;
      }));
  http.set_post_routing_handler([](const Request&, Response& response) {
    if (Connection::current()->reusable()) return;
    response.headers.erase("Keep-Alive");  // an unread body is in the way of another request
    response.set_header("Connection", "close");
  });
  http.set_logger([this](const Request& request, const Response& response) {
    const Route* route = route_of(request.path);
    metrics_.count_response(route != nullptr ? route->path : "other", response.status);
    log::debug("{} {} {} {}", Connection::current()->remote_address(), request.method,
               request.path.substr(0, 100), response.status);
  });

  http.Get("/health", [this](const Request&, Response& response) { health(response); });
  http.Get("/metrics", [this](const Request&, Response& response) { metrics_text(response); });
  http.Get("/v1/models", [this](const Request&, Response& response) { list_models(response); });
  http.Get("/v1/models/([^/]+)", [this](const Request& request, Response& response) {
    one_model(request.matches[1].str(), response);
  });
  const auto post = [&](Endpoint endpoint) {
    return
        [this, endpoint](const Request&, Response& response, const httplib::ContentReader& reader) {
          generate(endpoint, response, reader);
        };
  };
  http.Post("/v1/chat/completions", post(Endpoint::Chat));
  http.Post("/v1/completions", post(Endpoint::Completions));
}

bool Api::admit(const Request& request, Response& response) {
  try {
    if (request.has_header("Host")) guard_.check_host(request.get_header_value("Host"));
    if (request.has_header("Origin")) {
      const std::string origin = request.get_header_value("Origin");
      guard_.check_origin(origin);
      response.set_header("Access-Control-Allow-Origin", origin);
      response.set_header("Vary", "Origin");
    }
    if (request.method == "OPTIONS") {  // a browser asks before it sends
      response.set_header("Access-Control-Allow-Methods", "GET, POST");
      response.set_header("Access-Control-Allow-Headers",
                          request.get_header_value("Access-Control-Request-Headers"));
      response.set_header("Access-Control-Max-Age", "600");
      response.status = 204;
      return false;
    }
    if (request.path != "/health") guard_.check_key(request.get_header_value("Authorization"));
    if (request.has_header("Content-Encoding") || request.is_multipart_form_data()) {
      throw ApiError(415, "unsupported_media_type", "the body must be plain application/json");
    }
    return true;
  } catch (const ApiError& error) {
    set_error(response, error);
    return false;
  }
}

void Api::health(Response& response) const {
  const Status status = scheduler_.status();
  Json json;
  switch (status.phase) {
    case Phase::Loading:
      json["status"] = "loading";
      json["step"] = status.step.empty() ? "reading the file's headers" : status.step;
      json["bytes_done"] = status.done;
      json["bytes_total"] = status.total;
      json["progress"] = status.total == 0
                             ? 0.0
                             : static_cast<double>(status.done) / static_cast<double>(status.total);
      break;
    case Phase::Ready:
      json["status"] = "ok";
      break;
    case Phase::Failed:
    case Phase::Changed:
      json["status"] = "failed";
      json["error"] = status.error;
      break;
    case Phase::Stopping:
      json["status"] = "stopping";
      break;
  }
  json["requests"] = {{"waiting", status.waiting}, {"running", status.running}};
  response.status = status.phase == Phase::Ready ? 200 : 503;
  response.set_content(json.dump(-1, ' ', false, Json::error_handler_t::replace), kJson);
}

void Api::metrics_text(Response& response) const {
  const Status status = scheduler_.status();
  response.set_content(
      metrics_.text({status.phase == Phase::Ready, status.waiting, status.running}),
      "text/plain; version=0.0.4; charset=utf-8");
}

void Api::list_models(Response& response) const {
  const Json json = {{"object", "list"}, {"data", Json::array({model_json(*scheduler_.model())})}};
  response.set_content(json.dump(), kJson);
}

void Api::one_model(const std::string& name, Response& response) const {
  const auto model = scheduler_.model();
  if (!model->is_called(name)) {
    throw ApiError(404, "model_not_found",
                   fmt::format("there is no model '{}' here, but '{}'", name, model->id));
  }
  response.set_content(model_json(*model).dump(), kJson);
}

GenerationRequest Api::read_request(Endpoint endpoint, const httplib::ContentReader& reader) {
  Connection& connection = *Connection::current();
  const size_t most = options_.limits.body_bytes;
  Share share(body_bytes_, options_.limits.bodies_bytes);
  std::string body;
  bool too_large = false, too_many = false;
  const bool complete = reader([&](const char* data, size_t size) {
    too_large = body.size() + size > most;
    too_many = !too_large && !share.take(size);
    if (too_large || too_many) return false;
    body.append(data, size);
    return true;
  });
  if (too_large || connection.body_too_large()) {
    throw ApiError(413, "body_too_large",
                   fmt::format("the body has more than the {} bytes that are taken", most));
  }
  if (too_many) {
    throw ApiError(503, "too_many_bodies", "other requests' bodies fill the memory: try again");
  }
  if (!complete) throw ApiError(400, "bad_request", "the body did not arrive as announced");
  connection.body_taken();
  const std::lock_guard lock(parsing_);
  return parse_request(endpoint, body);
}

void Api::generate(Endpoint endpoint, Response& response, const httplib::ContentReader& reader) {
  std::shared_ptr<const Model> model = scheduler_.model();
  const GenerationRequest request = read_request(endpoint, reader);
  Prepared prepared = prepare(request, *model, options_);
  prepared.job->client = Connection::current()->remote_address();
  Reply reply(request, std::move(model), *prepared.job, prepared.in_reasoning);
  scheduler_.submit(prepared.job);
  if (request.stream) {
    answer_stream(prepared.job, std::move(reply), response);
  } else {
    answer_whole(prepared.job, std::move(reply), response);
  }
}

// Waits a moment for news, and looks whether anybody still waits for them. A client that closes its
// side of the connection is gone, even if it could still read.
Job::News Api::listen(const std::shared_ptr<Job>& job) {
  Job::News news = job->wait(kLook);
  if (!news.outcome && job->cancelled() == CancelReason::None) {
    if (Connection::current()->gone()) {
      scheduler_.cancel(job, CancelReason::ClientGone);
    } else if (now_ns() > job->deadline_ns) {
      scheduler_.cancel(job, CancelReason::Timeout);
    }
  }
  return news;
}

void Api::log_answer(const Job& job, const Reply& reply) const {
  if (options_.log_prompts) log::info("{}: answer: {}", job.id, reply.text());
}

void Api::answer_whole(const std::shared_ptr<Job>& job, Reply reply, Response& response) {
  for (;;) {
    const Job::News news = listen(job);
    reply.add(news);
    if (!news.outcome) continue;
    if (news.outcome->error) throw *news.outcome->error;
    log_answer(*job, reply);
    response.set_content(reply.whole(), kJson);
    return;
  }
}

// Writes a job's events; when it is destroyed before the end, nobody listens any more.
class Api::Stream {
 public:
  Stream(Api& api, std::shared_ptr<Job> job, Reply reply)
      : api_(api), job_(std::move(job)), reply_(std::move(reply)) {}
  Stream(const Stream&) = delete;
  ~Stream() {
    if (!ended_) api_.scheduler_.cancel(job_, CancelReason::ClientGone);
  }

  void add(const Job::News& news) {
    reply_.add(news);
    ended_ |= news.outcome.has_value();
  }

  // One turn of the library's loop; false ends the connection.
  bool write(httplib::DataSink& sink) {
    if (!ended_ && written_ns_ != 0) {
      std::this_thread::sleep_for(
          std::chrono::duration<double>(kPace - seconds_since(written_ns_)));
      add(api_.listen(job_));
    }
    std::string events = reply_.events();
    const double ping = api_.options_.limits.ping_seconds;
    if (events.empty() && seconds_since(written_ns_) > ping) events = ": still working\n\n";
    if (!events.empty()) {
      if (!sink.write(events.data(), events.size())) return false;
      written_ns_ = now_ns();
    }
    if (ended_) {
      api_.log_answer(*job_, reply_);
      sink.done();
    }
    return true;
  }

 private:
  Api& api_;
  std::shared_ptr<Job> job_;
  Reply reply_;
  bool ended_ = false;
  int64_t written_ns_ = 0;  // 0: nothing yet
};

void Api::answer_stream(const std::shared_ptr<Job>& job, Reply reply, Response& response) {
  auto stream = std::make_shared<Stream>(*this, job, std::move(reply));
  // A request that fails at once shall fail with its status.
  const int64_t started = now_ns();
  for (;;) {
    const Job::News news = listen(job);
    stream->add(news);
    if (news.outcome && news.outcome->error) throw *news.outcome->error;
    if (!news.empty() || seconds_since(started) > options_.limits.first_seconds) break;
  }
  response.set_header("Cache-Control", "no-cache");
  response.set_header("X-Accel-Buffering", "no");
  response.set_chunked_content_provider(
      "text/event-stream",
      [stream](size_t, httplib::DataSink& sink) { return stream->write(sink); });
}

}  // namespace penstock::server
