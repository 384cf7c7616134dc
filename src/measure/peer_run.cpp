#include "measure/peer_run.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <httplib.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <filesystem>

#include "base/clock.h"
#include "base/digest.h"
#include "base/error.h"
#include "base/file.h"
#include "measure/archive.h"
#include "measure/formula.h"
#include "measure/json_schema.h"
#include "measure/peer_output.h"
#include "measure/record_facts.h"

namespace penstock::measure {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

// A port that nobody listens on now.
int free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  const bool bound = fd >= 0 &&
                     ::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
                     ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  if (fd >= 0) ::close(fd);
  if (!bound) fail(ErrorKind::Io, "no free port on this machine");
  return ntohs(address.sin_port);
}

std::string replaced(std::string text, const std::string& name, const std::string& value) {
  for (size_t at = text.find(name); at != std::string::npos;
       at = text.find(name, at + value.size())) {
    text.replace(at, name.size(), value);
  }
  return text;
}

// The file that a command names, looked up in PATH.
std::string executable_of(const std::string& name) {
  if (name.find('/') != std::string::npos) return name;
  const char* path = std::getenv("PATH");
  std::string rest = path == nullptr ? "" : path;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find(':'), rest.size());
    const std::string candidate = rest.substr(0, end) + "/" + name;
    if (::access(candidate.c_str(), X_OK) == 0) return candidate;
    rest.erase(0, std::min(end + 1, rest.size()));
  }
  return name;
}

Json producer_of(const PeerRequest& request) {
  Json out = {{"program", request.arm->name},
              {"version", request.arm->version.empty() ? Json() : Json(request.arm->version)},
              {"executable", nullptr},
              {"executable_sha256", nullptr},
              {"executable_modified", nullptr}};
  if (request.arm->command.empty()) return out;
  const std::string path = executable_of(request.arm->command[0]);
  out["executable"] = fs::path(path).filename().string();
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return out;
  out["executable_modified"] = static_cast<double>(info.st_mtim.tv_sec);
  try {
    out["executable_sha256"] = hex(sha256_file(path));
  } catch (const Error&) {
    // Something that may be run and not read: it stays unidentified.
  }
  return out;
}

// Talks to a server: what it said, and the times that go with it.
class Talk {
 public:
  Talk(const PeerRequest& request, const std::string& host, Child* child)
      : request_(request), client_(host), child_(child) {
    client_.set_connection_timeout(5);
    client_.set_read_timeout(static_cast<time_t>(request.timeout_s));
    client_.set_write_timeout(60);
  }

  // Until it answers; false when it ended or time ran out.
  bool ready() {
    const int64_t started = now_ns();
    while (seconds_since(started) < request_.timeout_s) {
      if (child_ != nullptr && !child_->running()) return false;
      const auto answer = client_.Get("/health");
      // Servers without /health say 404 when they are there.
      if (answer && (answer->status == 200 || answer->status == 404)) {
        load_ms = seconds_since(started) * 1e3;
        return true;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return false;
  }

  // llama-server's own endpoint takes token ids and gives its timings.
  void ask_llama_server() {
    const Json body = {{"prompt", request_.ids}, {"n_predict", request_.tokens},
                       {"temperature", 0},       {"ignore_eos", true},
                       {"cache_prompt", false},  {"stream", false},
                       {"n_probs", 0},           {"seed", 1}};
    const auto answer = client_.Post("/completion", body.dump(), "application/json");
    if (!answer) {
      error = "no answer from /completion: " + httplib::to_string(answer.error());
    } else if (answer->status != 200) {
      error =
          fmt::format("/completion answered {}: {}", answer->status, answer->body.substr(0, 300));
    } else {
      said = answer->body;
    }
  }

  // Any server: the times at which pieces of text arrive.
  void ask_stream() {
    Json body = {{"model", first_model()}, {"max_tokens", request_.tokens},
                 {"temperature", 0},       {"ignore_eos", true},
                 {"stream", true},         {"stream_options", {{"include_usage", true}}}};
    body["prompt"] = request_.text.empty() ? Json(request_.ids) : Json(request_.text);
    Json noted = {{"sent_ms", 0.0},
                  {"arrived_ms", Json::array()},
                  {"prompt_tokens", nullptr},
                  {"completion_tokens", nullptr}};
    const int64_t started = now_ns();
    std::string pending, refusal;
    httplib::Request post;
    post.method = "POST";
    post.path = "/v1/completions";
    post.body = body.dump();
    post.set_header("Content-Type", "application/json");
    post.content_receiver = [&](const char* data, size_t size, uint64_t, uint64_t) {
      const double at_ms = seconds_since(started) * 1e3;
      if (refusal.size() < 1000) refusal.append(data, std::min<size_t>(size, 1000));
      pending.append(data, size);
      for (size_t end = pending.find('\n'); end != std::string::npos; end = pending.find('\n')) {
        take_event(pending.substr(0, end), at_ms, noted);
        pending.erase(0, end + 1);
      }
      return pending.size() < (size_t{1} << 24);
    };
    const auto answer = client_.send(post);
    if (!answer) {
      error = "no answer from /v1/completions: " + httplib::to_string(answer.error());
    } else if (answer->status != 200) {
      error = fmt::format("/v1/completions answered {}", answer->status);
      if (!refusal.empty()) error += ": " + refusal.substr(0, 300);
    }
    said = noted.dump(-1, ' ', false, Json::error_handler_t::replace);
  }

  std::string said, error;
  double load_ms = 0;

 private:
  // Many servers answer only to the name of a model that they have.
  std::string first_model() {
    const auto answer = client_.Get("/v1/models");
    if (!answer || answer->status != 200) return "default";
    const Json list = Json::parse(answer->body, nullptr, false);
    const Json* id = list.is_object() ? resolve_pointer(list, "/data/0/id") : nullptr;
    return id != nullptr && id->is_string() ? id->get<std::string>() : "default";
  }

  static void take_event(const std::string& line, double at_ms, Json& noted) {
    if (!line.starts_with("data: ") || line.starts_with("data: [DONE]")) return;
    const Json event = Json::parse(line.substr(6), nullptr, false);
    if (!event.is_object()) return;
    if (event.contains("usage") && event["usage"].is_object() &&
        event["usage"].contains("prompt_tokens")) {
      noted["prompt_tokens"] = event["usage"]["prompt_tokens"];
      noted["completion_tokens"] = event["usage"].value("completion_tokens", Json());
    }
    const auto choices = event.find("choices");
    if (choices == event.end() || !choices->is_array() || choices->empty()) return;
    const Json& choice = (*choices)[0];
    if (choice.is_object() && choice.contains("text") && choice["text"].is_string() &&
        !choice["text"].get_ref<const std::string&>().empty()) {
      noted["arrived_ms"].push_back(at_ms);
    }
  }

  const PeerRequest& request_;
  httplib::Client client_;
  Child* child_;
};

struct Spoken {
  std::string out, err;  // as archived
  std::string parser;
  double load_ms = 0;
  ChildReport report;
  std::vector<std::string> argv;
  uint64_t group_peak = 0, oom_kills = 0;
};

Spoken talk_to_server(const PeerRequest& request, const ChildRequest& base,
                      const std::atomic<bool>* interrupted, int port) {
  Spoken s;
  const bool llama = request.arm->program == ArmProgram::LlamaServer;
  s.parser = llama ? "llama-server" : "stream";
  std::unique_ptr<Child> child;
  std::string host = request.arm->url;
  if (host.empty()) {
    child = std::make_unique<Child>(base, interrupted);
    host = fmt::format("http://127.0.0.1:{}", port);
  }
  Talk talk(request, host, child.get());
  if (talk.ready()) {
    if (llama) {
      talk.ask_llama_server();
    } else {
      talk.ask_stream();
    }
  } else {
    talk.error = "the server never answered";
  }
  s.out = talk.said;
  s.load_ms = talk.load_ms;
  if (child) {
    child->stop();
    s.report = child->wait();
    s.err = read_text_file(base.err_path);
  }
  if (!talk.error.empty() && s.report.state == "finished") {
    s.report.state = "error";
    s.report.reason = talk.error;
  }
  return s;
}

Spoken run_command(const PeerRequest& request, const ChildRequest& base,
                   const std::atomic<bool>* interrupted) {
  Spoken s;
  s.parser = request.arm->parser;
  Child child(base, interrupted);
  s.report = child.wait();
  s.out = read_text_file(base.out_path);
  s.err = read_text_file(base.err_path);
  return s;
}

Json watchdog_json(const experts::WatchdogReport& report) {
  return {{"policy",
           {{"period_ms", report.policy.period_ms},
            {"abort_below", report.policy.abort_below()},
            {"swap_limit", report.policy.swap_limit}}},
          {"samples", report.samples},
          {"min_available", report.samples == 0 ? 0 : report.min_available},
          {"max_swapped", report.max_swapped},
          {"events", report.events.size()}};
}

// What the record says of the values: the parser's, and what was counted from outside.
Json values_of(Spoken& s) {
  Json values = Json::object();
  try {
    values = parse_peer_output(s.parser, s.out, s.err);
  } catch (const Error& error) {
    if (s.report.state == "finished") {
      s.report.state = "error";
      s.report.reason = error.what();
    }
  }
  if (s.load_ms > 0) values["load_ms"] = s.load_ms;
  values["run_storage_mb"] = static_cast<double>(s.report.storage_bytes) / 1e6;
  return values;
}

Json record_of(const PeerRequest& request, Spoken& s, double started) {
  Json values = values_of(s);
  if (s.report.state == "error") {
    s.report.reason +=
        s.oom_kills != 0 ? ": out of memory under its limit" : ": " + last_line(s.err);
  }
  Json record;
  record["schema"] = kPeerSchema;
  record["version"] = 1;
  record["started"] = started;
  record["ended"] = unix_seconds();
  record["producer"] = producer_of(request);
  record["recorder"] = request.recorder;
  record["argv"] = s.argv.empty() ? Json() : Json(s.argv);
  record["environment"] = environment_json();
  for (const std::string& entry : request.arm->environment) {
    const size_t equals = entry.find('=');
    record["environment"][entry.substr(0, equals)] = entry.substr(equals + 1);
  }
  record["machine"] = machine_json(request.model_path);
  record["inputs"] = {{"model", {{"path", request.model_path}, {"model_id", request.model_id}}},
                      {"prompt", {{"file", request.ids_sha256}, {"tokens", request.ids.size()}}}};
  record["settings"] = {
      {"tokens", request.tokens}, {"context", request.context}, {"options", request.arm->options}};
  record["quality_key"] = nullptr;
  record["limit"] = request.limit ? Json({{"bytes", *request.limit}}) : Json();
  record["memory"] = {
      {"peak_bytes", s.report.peak_anonymous},
      {"peak_rss", s.report.peak_rss},
      {"group_peak", s.group_peak},
      {"swapped_out", s.report.watchdog.max_swapped},
      {"min_available", s.report.watchdog.samples == 0 ? 0 : s.report.watchdog.min_available}};
  record["watchdog"] = watchdog_json(s.report.watchdog);
  record["output"] = {
      {"stdout", {{"sha256", archive_bytes(request.folder, s.out)}, {"bytes", s.out.size()}}},
      {"stderr", {{"sha256", archive_bytes(request.folder, s.err)}, {"bytes", s.err.size()}}}};
  record["parser"] = s.parser;
  record["values"] = std::move(values);
  if (!request.arm->note.empty()) record["note"] = request.arm->note;
  record["outcome"] = {{"state", s.report.state},
                       {"exit_code", s.report.exit_code},
                       {"error", s.report.reason.empty() ? Json() : Json(s.report.reason)},
                       {"stop_reason", nullptr}};
  record["run_id"] =
      hex(sha256(fmt::format("{} {}", started,
                             record.dump(-1, ' ', false, Json::error_handler_t::replace))))
          .substr(0, 32);
  return record;
}

}  // namespace

std::vector<std::string> peer_command(const PeerRequest& request, int port) {
  const CampaignArm& arm = *request.arm;
  std::vector<std::string> argv;
  for (std::string part : arm.command) {
    part = replaced(part, "{model}", request.model_path);
    part = replaced(part, "{ids}", request.ids_path);
    part = replaced(part, "{text}", request.text);
    part = replaced(part, "{tokens}", fmt::format("{}", request.tokens));
    part = replaced(part, "{context}", fmt::format("{}", request.context));
    argv.push_back(replaced(part, "{port}", fmt::format("{}", port)));
  }
  if (arm.program == ArmProgram::LlamaServer) {
    for (const std::string& part :
         {std::string("-m"), request.model_path, std::string("-c"),
          fmt::format("{}", request.context), std::string("-np"), std::string("1"),
          std::string("--host"), std::string("127.0.0.1"), std::string("--port"),
          fmt::format("{}", port)}) {
      argv.push_back(part);
    }
  }
  argv.insert(argv.end(), arm.options.begin(), arm.options.end());
  return argv;
}

PeerResult run_peer(const PeerRequest& request, const std::atomic<bool>* interrupted) {
  const bool server = request.arm->program != ArmProgram::Command;
  const int port = server && request.arm->url.empty() ? free_port() : 0;
  std::unique_ptr<MemoryGroup> group;
  if (request.limit && request.arm->url.empty()) {
    group = std::make_unique<MemoryGroup>(*request.limit);
  }
  const std::string work = request.folder + "/work";
  std::error_code error;
  fs::create_directories(work, error);
  if (error) fail(ErrorKind::Io, "{}: {}", work, error.message());
  ChildRequest child;
  child.argv = peer_command(request, port);
  child.environment = request.arm->environment;
  child.out_path = work + "/stdout";
  child.err_path = work + "/stderr";
  child.group = group.get();
  child.timeout_s = request.timeout_s;
  child.policy = request.policy;
  const double started = unix_seconds();
  Spoken s = server ? talk_to_server(request, child, interrupted, port)
                    : run_command(request, child, interrupted);
  s.argv = child.argv;
  if (group) {
    s.group_peak = group->peak();
    s.oom_kills = group->oom_kills();
  }
  const Json record = record_of(request, s, started);
  return {write_record(request.folder, record), s.report.state, s.report.reason};
}

}  // namespace penstock::measure
