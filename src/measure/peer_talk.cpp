#include "measure/peer_talk.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "measure/formula.h"

namespace penstock::measure {
namespace {

using Json = nlohmann::json;

constexpr size_t kMostSaid = size_t{64} << 20;
constexpr std::chrono::milliseconds kLook{50};

}  // namespace

void EventLog::line(std::string_view text, double at_ms) {
  while (!text.empty() && text.back() == '\r') text.remove_suffix(1);
  log_ += fmt::format("{:.6f} {}\n", at_ms, text);
}

bool EventLog::take(std::string_view bytes, double at_ms) {
  if (log_.size() + pending_.size() + bytes.size() > most_) return false;
  pending_.append(bytes);
  size_t begin = 0;
  for (size_t end = pending_.find('\n'); end != std::string::npos;
       end = pending_.find('\n', begin)) {
    line(std::string_view(pending_).substr(begin, end - begin), at_ms);
    begin = end + 1;
  }
  pending_.erase(0, begin);
  return log_.size() <= most_;
}

std::string EventLog::finish(double at_ms) {
  if (!pending_.empty()) line(pending_, at_ms);
  pending_.clear();
  return std::move(log_);
}

Talk::Talk(const PeerRequest& request, const std::string& host, Child* child,
           const std::atomic<bool>* interrupted)
    : request_(request), client_(host), child_(child), interrupted_(interrupted) {
  client_.set_connection_timeout(5);
  client_.set_read_timeout(static_cast<time_t>(request.timeout_s));
  client_.set_write_timeout(60);
  cutter_ = std::thread([this] {
    while (!done_) {
      if (this->interrupted()) client_.stop();
      std::this_thread::sleep_for(kLook);
    }
  });
}

Talk::~Talk() {
  done_ = true;
  cutter_.join();
}

bool Talk::interrupted() const {
  return interrupted_ != nullptr && *interrupted_;
}

bool Talk::ready() {
  const int64_t started = now_ns();
  while (seconds_since(started) < request_.timeout_s) {
    if (interrupted() || (child_ != nullptr && !child_->running())) return false;
    const auto answer = client_.Get("/health");
    // Servers without /health say 404 when they are there.
    if (answer && (answer->status == 200 || answer->status == 404)) {
      load_ms = seconds_since(started) * 1e3;
      return true;
    }
    std::this_thread::sleep_for(kLook);
  }
  return false;
}

void Talk::ask_llama_server() {
  const Json body = {{"prompt", request_.ids}, {"n_predict", request_.tokens},
                     {"temperature", 0},       {"ignore_eos", true},
                     {"cache_prompt", false},  {"stream", false},
                     {"n_probs", 0},           {"seed", 1}};
  const auto answer = client_.Post("/completion", body.dump(), "application/json");
  if (!answer) {
    error = "no answer from /completion: " + httplib::to_string(answer.error());
  } else if (answer->status != 200) {
    error = fmt::format("/completion answered {}: {}", answer->status, answer->body.substr(0, 300));
  } else {
    said = answer->body;
  }
}

void Talk::ask_stream() {
  Json body = {{"model", first_model()}, {"max_tokens", request_.tokens},
               {"temperature", 0},       {"ignore_eos", true},
               {"stream", true},         {"stream_options", {{"include_usage", true}}}};
  body["prompt"] = request_.text.empty() ? Json(request_.ids) : Json(request_.text);
  EventLog log(kMostSaid);
  bool too_long = false;
  std::string refusal;
  const int64_t started = now_ns();
  const auto now_ms = [&] { return seconds_since(started) * 1e3; };
  httplib::Request post;
  post.method = "POST";
  post.path = "/v1/completions";
  post.body = body.dump();
  post.set_header("Content-Type", "application/json");
  post.content_receiver = [&](const char* data, size_t size, uint64_t, uint64_t) {
    if (refusal.size() < 1000) refusal.append(data, std::min<size_t>(size, 1000));
    too_long = !log.take({data, size}, now_ms());
    return !too_long;
  };
  const auto answer = client_.send(post);
  if (too_long) {
    error = fmt::format("/v1/completions answered more than {} bytes", kMostSaid);
  } else if (!answer) {
    error = "no answer from /v1/completions: " + httplib::to_string(answer.error());
  } else if (answer->status != 200) {
    error = fmt::format("/v1/completions answered {}", answer->status);
    if (!refusal.empty()) error += ": " + refusal.substr(0, 300);
  }
  said = log.finish(now_ms());
}

// Many servers answer only to the name of a model that they have.
std::string Talk::first_model() {
  const auto answer = client_.Get("/v1/models");
  if (!answer || answer->status != 200) return "default";
  const Json list = Json::parse(answer->body, nullptr, false);
  const Json* id = list.is_object() ? resolve_pointer(list, "/data/0/id") : nullptr;
  return id != nullptr && id->is_string() ? id->get<std::string>() : "default";
}

}  // namespace penstock::measure
