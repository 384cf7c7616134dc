#include "measure/peer_run.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>

#include "base/digest.h"
#include "base/error.h"
#include "base/file.h"
#include "base/machine.h"
#include "base/memory_account.h"
#include "measure/archive.h"
#include "measure/peer_output.h"
#include "measure/peer_producer.h"
#include "measure/peer_talk.h"
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

struct Spoken {
  std::string out, err;  // as archived
  std::string parser;
  double load_ms = 0;
  ChildReport report;
  std::vector<std::string> argv;
  std::optional<uint64_t> group_peak;  // of the memory group that it ran in
  uint64_t oom_kills = 0;
  Json group_pressure;  // null where the kernel keeps none
};

Spoken talk_to_server(const PeerRequest& request, const ChildRequest& base,
                      const std::atomic<bool>* interrupted, int port) {
  Spoken s;
  const bool llama = request.arm->program == ArmProgram::LlamaServer;
  s.parser = llama ? "llama-server" : "event-stream";
  std::unique_ptr<Child> child;
  std::string host = request.arm->url;
  if (host.empty()) {
    child = std::make_unique<Child>(base, interrupted);
    host = fmt::format("http://127.0.0.1:{}", port);
  }
  Talk talk(request, host, child.get(), interrupted);
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
  if (!child && talk.interrupted()) {  // there is no process to say so
    s.report.state = "interrupted";
    s.report.reason = "interrupted";
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
  Json events = Json::array();
  for (const experts::WatchdogEvent& event : report.events) {
    events.push_back({{"at_s", event.sample.at_s},
                      {"pressure", experts::pressure_name(event.pressure)},
                      {"available", event.sample.available},
                      {"swapped", event.sample.swapped}});
  }
  return {{"policy",
           {{"period_ms", report.policy.period_ms},
            {"abort_below", report.policy.abort_below()},
            {"swap_limit", report.policy.swap_limit}}},
          {"samples", report.samples},
          {"min_available", report.samples == 0 ? 0 : report.min_available},
          {"max_swapped", report.max_swapped},
          {"events", std::move(events)}};
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
    s.report.reason += s.oom_kills != 0 ? fmt::format(": out of memory under its limit of {}",
                                                      format_bytes(*request.limit))
                                        : ": " + last_line(s.err);
  }
  Json record;
  record["schema"] = kPeerSchema;
  record["version"] = 1;
  record["started"] = started;
  record["ended"] = unix_seconds();
  record["producer"] = peer_producer(*request.arm, s.report.libraries, request.folder + "/work");
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
      {"group_peak", s.group_peak ? Json(*s.group_peak) : Json()},
      {"oom_kills", s.oom_kills},
      {"pressure", {{"host", pressure_json(host_memory_pressure())}, {"cgroup", s.group_pressure}}},
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
    s.group_pressure = pressure_json(group->pressure());
  }
  const Json record = record_of(request, s, started);
  return {write_record(request.folder, record), s.report.state, s.report.reason};
}

}  // namespace penstock::measure
