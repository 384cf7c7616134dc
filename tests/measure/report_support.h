// Records and campaigns as reports and comparisons meet them, made by hand and
// written with their right names.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/digest.h"
#include "base/file.h"
#include "measure/archive.h"
#include "measure/record.h"
#include "measure/record_verify.h"

namespace penstock::measure::testing {

using Json = nlohmann::json;

// What a made-up run was and did.
struct Made {
  int slots = 64;
  double decode_s = 4.0;  // of `steps` steady steps
  uint64_t steps = 95;    // and one more, the first
  double started = 1000;
  std::string model = std::string(64, 'a');
  std::string model_path = "/somewhere/else/model.gguf";
  std::string prompt = "5\n6\n7\n";
  std::string quality_key = std::string(64, 'c');
  std::vector<std::string> lossy = {};
  std::vector<std::string> more_argv = {};
  int token = 7;  // generated all along
  std::function<void(Json&)> change = [](Json&) {};
};

inline Json made_uses(uint64_t arena, uint64_t late, uint64_t issued) {
  return {{"arena", arena},        {"ra_timely", 0},   {"ra_late", late},
          {"miss_issued", issued}, {"miss_joined", 0}, {"total", arena + late + issued}};
}

// After `steps` steps of 10 uses: 7 hits, 1 read ahead too late, 2 misses of
// 500,000 bytes each.
inline Json made_counters(uint64_t steps) {
  const Json none = {{"reads", 0}, {"bytes", 0}};
  Json c;
  c["uses_first"] = steps == 0 ? made_uses(0, 0, 0) : made_uses(7, 1, 2);
  const uint64_t n = steps < 2 ? 0 : steps - 1;
  c["uses_steady"] = made_uses(7 * n, n, 2 * n);
  c["uses_expected"] = 10 * steps;
  c["steps"] = c["tokens"] = c["experts_read"] = steps;
  c["reads_demand"] = {{"reads", 2 * steps}, {"bytes", 1000000 * steps}};
  for (const char* name : {"reads_spec", "reads_fill", "reads_prompt", "reads_ple"}) c[name] = none;
  for (const char* name :
       {"uses_mapped", "stall_events", "io_busy_ns", "io_latency_ns", "evict_total", "evict_hot",
        "prompt_experts_touched", "prompt_arena_used", "prompt_stall_ns", "dev_bytes"}) {
    c[name] = 0;
  }
  c["stall_ns"] = 2000000 * steps;
  c["read_ahead"] = nullptr;
  c["cache_aware_routing"] = Json::object();
  c["residency"] = Json::object();
  return c;
}

inline Json made_memory(const char* at, uint64_t footprint) {
  Json out = {{"at", at}, {"at_s", 0.5}};
  for (const char* name : {"anonymous", "swap", "locked_file", "peak_rss", "available",
                           "swapped_out", "major_faults", "minor_faults", "storage_bytes_read"}) {
    out[name] = 0;
  }
  out["footprint"] = footprint;
  out["cgroup_headroom"] = nullptr;
  return out;
}

inline Json made_machine() {
  return {{"cpu", {{"model", "A Processor"}, {"logical", 4}, {"cores", 2}}},
          {"memory", {{"total", uint64_t{8} << 30}, {"available", uint64_t{6} << 30}}},
          {"kernel", {{"name", "Linux"}, {"release", "6.1"}}},
          {"cgroup", nullptr},
          {"file_system_magic", nullptr},
          {"device", {{"class", "solid state"}}},
          {"limits", Json::object()},
          {"thermal", Json::array()},
          {"load_average", nullptr}};
}

inline Json made_record(const Made& made) {
  Json r;
  r["schema"] = kRecordSchema;
  r["version"] = kRecordVersion;
  r["started"] = made.started;
  r["ended"] = made.started + 10;
  r["run_id"] =
      hex(sha256(std::to_string(made.started) + std::to_string(made.slots))).substr(0, 32);
  r["producer"] = {{"program", "penstock"},
                   {"version", "1.0"},
                   {"revision", "abc"},
                   {"dirty", false},
                   {"diff_sha256", nullptr},
                   {"diff_archived", false},
                   {"compiler", "c"},
                   {"flags", "-O3"},
                   {"build_id", nullptr},
                   {"executable", "/somewhere/else/penstock"},
                   {"executable_sha256", std::string(64, 'e')},
                   {"executable_modified", 0.5}};
  r["argv"] = {"penstock",      "run",           "-m",
               made.model_path, "--arena-slots", std::to_string(made.slots)};
  for (const std::string& word : made.more_argv) r["argv"].push_back(word);
  r["environment"] = Json::object();
  r["machine"] = made_machine();
  r["inputs"] = {
      {"model",
       {{"path", made.model_path}, {"model_id", made.model}, {"header_id", std::string(64, 'b')}}},
      {"pack", nullptr},
      {"profile", nullptr}};
  r["settings"] = {{"slots", made.slots},
                   {"arena_slots", made.slots},
                   {"evict", "lfu"},
                   {"sampling", {{"temperature", 0.0}, {"seed", made.started}}}};
  r["lossy"] = made.lossy;
  r["quality_key"] = made.quality_key;
  r["quality_settings"] = Json::object();
  r["plan"] = {{"peak_decode", 300 << 20},
               {"peak_prefill", 310 << 20},
               {"terms", {{"slack", 10 << 20}, {"arena", 100 << 20}}},
               {"measured", {{"peak_footprint", 295 << 20}}}};
  r["dense"] = nullptr;
  r["timings"] = {{"load", {{"open_s", 0.1}, {"dense_s", 0.2}, {"arena_s", 0.3}}},
                  {"fill", {{"seconds", 0.5}}},
                  {"prefill", {{"tokens", 3}, {"seconds", 0.25}}},
                  {"first_token", {{"tokens", 1}, {"seconds", 0.04}}},
                  {"decode", {{"tokens", made.steps}, {"seconds", made.decode_s}}}};
  r["watchdog"] = r["experts"] = nullptr;
  r["memory"] = {made_memory("start", 1 << 20), made_memory("end", 200 << 20)};
  r["counters"] = {{{"at", "before prompt"}, {"at_s", 0.1}, {"counters", made_counters(0)}},
                   {{"at", "end"}, {"at_s", 5.0}, {"counters", made_counters(made.steps + 1)}}};
  r["turns"] = {{{"prompt",
                  {{"file", hex(sha256(made.prompt))},
                   {"tokens", std::count(made.prompt.begin(), made.prompt.end(), '\n')},
                   {"chat_template", false},
                   {"truncated", false}}},
                 {"tokens", std::vector<int>(made.steps + 1, made.token)},
                 {"text", "text"},
                 {"stop_reason", "token limit"}}};
  r["token_columns"] = token_columns();
  r["tokens"] = Json::array();
  const auto wall = static_cast<int64_t>(made.decode_s * 1e9 / static_cast<double>(made.steps + 1));
  for (uint64_t i = 0; i <= made.steps; ++i) {
    r["tokens"].push_back({0, (static_cast<int64_t>(i) + 1) * wall, wall, 2000000, wall - 2000000,
                           1, 7, 0, 1, 2, 0, 0, 1000000, 0, 0, 0, 1.5});
  }
  r["output"] = nullptr;
  r["outcome"] = {{"state", "finished"}, {"exit_code", 0}, {"error", nullptr}};
  made.change(r);
  return r;
}

// A run of another program, which says little.
inline Json made_peer(
    const std::string& program, double decode_ms, double started,
    const std::function<void(Json&)>& change = [](Json&) {}) {
  Json r = {
      {"schema", kPeerSchema},
      {"version", 1},
      {"run_id", hex(sha256(program + std::to_string(started))).substr(0, 32)},
      {"started", started},
      {"ended", started + 5},
      {"producer",
       {{"program", program},
        {"version", "b1"},
        {"executable_sha256", nullptr},
        {"executable_modified", nullptr}}},
      {"recorder", {{"program", "penstock"}}},
      {"argv", nullptr},
      {"environment", nullptr},
      {"machine", nullptr},
      {"inputs",
       {{"model", {{"path", "model.gguf"}, {"model_id", std::string(64, 'a')}}},
        {"prompt", {{"file", nullptr}, {"tokens", 3}}}}},
      {"settings", nullptr},
      {"quality_key", nullptr},
      {"limit", nullptr},
      {"memory", nullptr},
      {"watchdog", nullptr},
      {"output", nullptr},
      {"parser", nullptr},
      {"values", {{"decode_tokens", 95}, {"decode_ms", decode_ms}}},
      {"outcome",
       {{"state", "finished"}, {"exit_code", 0}, {"error", nullptr}, {"stop_reason", nullptr}}}};
  change(r);
  return r;
}

// Writes a record and the prompt's file that it names; returns its path.
inline std::string put_record(const std::string& folder, const Json& record,
                              const std::string& prompt = "5\n6\n7\n") {
  std::filesystem::create_directories(folder + "/files");
  std::ofstream(folder + "/files/" + hex(sha256(prompt)), std::ios::binary) << prompt;
  return write_record(folder, record);
}

inline std::string put_run(const std::string& folder, const Made& made) {
  return put_record(folder, made_record(made), made.prompt);
}

inline std::string id_of(const std::string& path) {
  return std::filesystem::path(path).stem().string();
}

struct MadeRun {
  std::string arm, record;  // the record's id, "" for none
  std::string state = "finished", reason = {}, prompt = "text";
  bool control = false;
};

inline Json made_campaign(const std::vector<std::string>& arms, const std::vector<MadeRun>& runs) {
  Json c = {{"schema", kCampaignSchema},
            {"version", 1},
            {"run_id", std::string(32, '1')},
            {"name", "slots and more"},
            {"started", 1.0},
            {"ended", 2.0},
            {"producer", Json::object()},
            {"argv", {"penstock", "bench"}},
            {"inputs", Json::object()},
            {"definition",
             {{"description", "How much arena is worth."}, {"notes", "- one\n- two *stars*\n"}}},
            {"definition_sha256", std::string(64, '2')},
            {"machine", Json::object()},
            {"conditions", Json::object()},
            {"arms", Json::array()},
            {"prompts", Json::array()},
            {"runs", Json::array()},
            {"control", nullptr},
            {"measured", nullptr},
            {"outcome", {{"state", "finished"}}}};
  for (const std::string& arm : arms) c["arms"].push_back({{"name", arm}, {"program", "penstock"}});
  std::map<std::string, int> repeats;
  for (const MadeRun& run : runs) {
    c["runs"].push_back({{"order", c["runs"].size()},
                         {"arm", run.arm},
                         {"prompt", run.prompt},
                         {"repeat", repeats[run.arm]++},
                         {"control", run.control},
                         {"cold", true},
                         {"state", run.state},
                         {"record", run.record.empty() ? Json() : Json(run.record)},
                         {"reason", run.reason.empty() ? Json() : Json(run.reason)}});
  }
  return c;
}

}  // namespace penstock::measure::testing
