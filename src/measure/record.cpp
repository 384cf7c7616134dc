#include "measure/record.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "base/clock.h"
#include "base/digest.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "measure/archive.h"

namespace penstock::measure {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

void write_file(const std::string& path, std::string_view bytes) {
  AtomicFile file(path);
  file.write(bytes.data(), bytes.size());
  file.commit();
}

}  // namespace

std::string canonical_text(const Json& record) {
  return record.dump(-1, ' ', false, Json::error_handler_t::replace);
}

const std::vector<std::string>& token_columns() {
  static const std::vector<std::string> columns = {
      "turn",         "at_ns",      "wall_ns",    "stall_ns",    "compute_ns",  "rows",
      "arena",        "ra_timely",  "ra_late",    "miss_issued", "miss_joined", "mapped",
      "bytes_demand", "bytes_spec", "bytes_fill", "bytes_ple",   "in_flight"};
  return columns;
}

RunRecorder::RunRecorder(const std::string& folder, const Producer& producer, Output output)
    : folder_(folder), started_ns_(now_ns()) {
  std::error_code error;
  fs::create_directories(fs::path(folder) / "files", error);
  if (error) fail(ErrorKind::Io, "{}/files: {}", folder, error.message());
  record_["schema"] = kRecordSchema;
  record_["version"] = kRecordVersion;
  record_["started"] = unix_seconds();
  record_["ended"] = nullptr;
  record_["producer"] = producer_json(producer);
  record_["argv"] = command_line();
  record_["environment"] = environment_json();
  record_["machine"] = machine_json({});
  const std::string run_id =
      hex(sha256(fmt::format("{} {} {}", unix_seconds(), ::getpid(),
                             record_["producer"]["executable_sha256"].get<std::string>())))
          .substr(0, 32);
  record_["run_id"] = run_id;
  for (const char* name : {"inputs", "plan", "dense", "timings", "watchdog", "experts", "settings",
                           "lossy", "quality_key", "quality_settings"}) {
    record_[name] = nullptr;
  }
  record_["memory"] = Json::array();
  record_["counters"] = Json::array();
  record_["turns"] = Json::array();
  record_["token_columns"] = token_columns();
  record_["tokens"] = Json::array();
  record_["output"] = nullptr;
  record_["outcome"] = {{"state", "running"}, {"exit_code", nullptr}, {"error", nullptr}};
  record_["producer"]["diff_archived"] = false;
  if (!producer.diff_sha256.empty()) {
    try {
      // Only if it still is the difference that was built.
      if (hex(sha256_file(producer.diff_path)) == producer.diff_sha256) {
        archive_bytes(folder_, read_text_file(producer.diff_path));
        record_["producer"]["diff_archived"] = true;
      }
    } catch (const Error& problem) {
      log::warn("the difference to the source revision is not archived: {}", problem.what());
    }
  }
  memory("start");
  unfinished_ = (fs::path(folder) / (run_id + ".unfinished.json")).string();
  write_file(unfinished_, canonical_text(record_));
  if (output == Output::NotKept) return;
  out_ = std::make_unique<OutputTee>(STDOUT_FILENO);
  err_ = std::make_unique<OutputTee>(STDERR_FILENO);
}

RunRecorder::~RunRecorder() {
  std::fflush(stdout);
  std::fflush(stderr);
}

void RunRecorder::memory(const std::string& at) {
  Json sample = memory_json();
  sample["at"] = at;
  sample["at_s"] = seconds_since(started_ns_);
  record_["memory"].push_back(std::move(sample));
}

std::string RunRecorder::archive(const std::string& text) {
  return archive_bytes(folder_, text);
}

void RunRecorder::end_memory() {
  if (end_sampled_) return;
  end_sampled_ = true;
  memory("end");
}

void RunRecorder::boundary(const std::string& at, Json counters) {
  record_["counters"].push_back(
      {{"at", at}, {"at_s", seconds_since(started_ns_)}, {"counters", std::move(counters)}});
}

void RunRecorder::begin_turn(std::span<const int32_t> prompt, bool chat_template,
                             const experts::Counters& before) {
  std::string text;
  for (const int32_t id : prompt) text += fmt::format("{}\n", id);
  record_["turns"].push_back({{"prompt",
                               {{"file", archive_bytes(folder_, text)},
                                {"tokens", prompt.size()},
                                {"chat_template", chat_template},
                                {"truncated", true}}},
                              {"tokens", Json::array()},
                              {"text", ""},
                              {"stop_reason", nullptr}});
  prompt_.assign(prompt.begin(), prompt.end());
  last_ = before;
}

void RunRecorder::prompt_evaluated(std::span<const int32_t> context) {
  if (record_["turns"].empty()) return;
  const bool whole = context.size() >= prompt_.size() &&
                     std::equal(prompt_.rbegin(), prompt_.rend(), context.rbegin());
  record_["turns"].back()["prompt"]["truncated"] = !whole;
}

void RunRecorder::poll(const experts::Counters& now, double decode_s) {
  if (now.steps == last_.steps) return;
  const auto wall = static_cast<int64_t>((decode_s - last_decode_s_) * 1e9 + 0.5);
  experts::UseCounts a = now.first;
  a += now.steady;
  experts::UseCounts b = last_.first;
  b += last_.steady;
  const uint64_t stall = now.stall_ns - last_.stall_ns;
  const uint64_t busy = now.io_busy_ns - last_.io_busy_ns;
  const uint64_t latency = now.io_latency_ns - last_.io_latency_ns;
  const double in_flight =
      busy == 0 ? 0.0 : static_cast<double>(latency) / static_cast<double>(busy);
  record_["tokens"].push_back(
      Json::array({record_["turns"].size() - 1, now_ns() - started_ns_, wall, stall,
                   wall - static_cast<int64_t>(stall), now.tokens - last_.tokens, a.arena - b.arena,
                   a.ra_timely - b.ra_timely, a.ra_late - b.ra_late, a.miss_issued - b.miss_issued,
                   a.miss_joined - b.miss_joined, now.mapped - last_.mapped,
                   now.demand.bytes - last_.demand.bytes, now.spec.bytes - last_.spec.bytes,
                   now.fill.bytes - last_.fill.bytes, now.ple.bytes - last_.ple.bytes, in_flight}));
  last_ = now;
  last_decode_s_ = decode_s;
}

void RunRecorder::end_turn(std::span<const int32_t> tokens, const std::string& text,
                           const std::string& stop) {
  if (record_["turns"].empty()) return;
  Json& turn = record_["turns"].back();
  turn["tokens"] = std::vector<int32_t>(tokens.begin(), tokens.end());
  turn["text"] = text;
  turn["stop_reason"] = stop;
}

void RunRecorder::stop_tees() {
  std::fflush(stdout);
  std::fflush(stderr);
  if (!out_ && !err_) return;
  Json output;
  for (auto* tee : {&out_, &err_}) {
    const char* const name = tee == &out_ ? "stdout" : "stderr";
    const std::string text = *tee ? (*tee)->stop() : std::string();
    tee->reset();
    output[name] = {{"sha256", archive_bytes(folder_, text)}, {"bytes", text.size()}};
  }
  record_["output"] = std::move(output);
}

std::string RunRecorder::finish(const std::string& state, int exit_code, const std::string& error) {
  end_memory();
  stop_tees();
  record_["ended"] = unix_seconds();
  record_["outcome"] = {
      {"state", state}, {"exit_code", exit_code}, {"error", error.empty() ? Json() : Json(error)}};
  const std::string path = write_record(folder_, record_);
  std::error_code ignored;
  fs::remove(unfinished_, ignored);
  finished_ = true;
  return path;
}

}  // namespace penstock::measure
