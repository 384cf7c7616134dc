// Records of runs that never were, a claims file about them, and its audit.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "base/digest.h"
#include "measure/audit.h"
#include "measure/record.h"
#include "models/tiny_models.h"

namespace penstock::measure {

class AuditTest : public ::testing::Test {
 protected:
  using Json = nlohmann::json;

  AuditTest() { std::filesystem::create_directories(records() + "/files"); }

  std::string root() const { return folder_.path(); }
  std::string records() const { return folder_.path() + "/records"; }

  static std::string digits(const std::string& seed, size_t n) {
    return hex(sha256(seed)).substr(0, n);
  }

  // A sound record of another program's run: 1,024 tokens of prompt, 64 generated.
  Json peer() {
    return {
        {"schema", kPeerSchema},
        {"version", 1},
        {"run_id", digits("run " + std::to_string(++runs_), 32)},
        {"started", 1000.0},
        {"ended", 1100.0},
        {"producer",
         {{"program", "peer"},
          {"version", "1.0"},
          {"executable_sha256", digits("executable", 64)},
          {"executable_modified", 900.0}}},
        {"recorder", {{"program", "penstock"}}},
        {"argv", {"peer", "--model", "m.gguf"}},
        {"environment", Json::object()},
        {"machine", {{"cpu", {{"model", "some processor"}}}}},
        {"inputs",
         {{"model", {{"path", "m.gguf"}, {"model_id", digits("model", 64)}}},
          {"prompt", {{"file", nullptr}, {"tokens", 1024}}}}},
        {"settings", {{"context", 4096}}},
        {"quality_key", nullptr},
        {"limit", {{"bytes", 8000000000}}},
        {"memory", {{"peak_bytes", 5000000000}, {"swapped_out", 0}}},
        {"watchdog", nullptr},
        {"output", nullptr},
        {"parser", nullptr},
        {"values",
         {{"prefill_tokens", 1024},
          {"prefill_ms", 3191.98},
          {"decode_tokens", 63},
          {"decode_ms", 4656.22}}},
        {"outcome",
         {{"state", "finished"}, {"exit_code", 0}, {"error", nullptr}, {"stop_reason", "limit"}}},
    };
  }

  // A sound record of a run of this program, without what a turn and its tokens were.
  Json own() {
    const Json uses = {{"arena", 80},       {"ra_timely", 10},  {"ra_late", 0},
                       {"miss_issued", 10}, {"miss_joined", 0}, {"total", 100}};
    const Json nothing = {{"arena", 0},       {"ra_timely", 0},   {"ra_late", 0},
                          {"miss_issued", 0}, {"miss_joined", 0}, {"total", 0}};
    Json counters = {{"uses_first", nothing},
                     {"uses_steady", uses},
                     {"uses_expected", 100},
                     {"read_ahead", nullptr},
                     {"cache_aware_routing", Json::object()},
                     {"residency", Json::object()}};
    for (const char* name :
         {"reads_demand", "reads_spec", "reads_fill", "reads_prompt", "reads_ple"}) {
      counters[name] = {{"reads", 0}, {"bytes", 0}};
    }
    for (const char* name :
         {"uses_mapped", "steps", "tokens", "experts_read", "stall_ns", "stall_events",
          "io_busy_ns", "io_latency_ns", "evict_total", "evict_hot", "prompt_experts_touched",
          "prompt_arena_used", "prompt_stall_ns", "dev_bytes"}) {
      counters[name] = 0;
    }
    return {
        {"schema", kRecordSchema},
        {"version", 1},
        {"run_id", digits("run " + std::to_string(++runs_), 32)},
        {"started", 1000.0},
        {"ended", 1100.0},
        {"producer",
         {{"program", "penstock"},
          {"version", "1"},
          {"revision", "abc"},
          {"dirty", false},
          {"diff_sha256", nullptr},
          {"diff_archived", false},
          {"compiler", "c"},
          {"flags", ""},
          {"build_id", nullptr},
          {"executable", "penstock"},
          {"executable_sha256", digits("own", 64)},
          {"executable_modified", 900.0}}},
        {"argv", {"penstock", "run"}},
        {"environment", Json::object()},
        {"machine",
         {{"cpu", {{"model", "some processor"}}},
          {"memory", {{"total", 1}, {"available", 1}}},
          {"kernel", Json::object()},
          {"cgroup", nullptr},
          {"file_system_magic", nullptr},
          {"device", nullptr},
          {"limits", Json::object()},
          {"thermal", Json::array()},
          {"load_average", nullptr}}},
        {"inputs",
         {{"model",
           {{"path", "m.gguf"}, {"model_id", digits("m", 64)}, {"header_id", digits("h", 64)}}},
          {"profile", nullptr}}},
        {"settings", {{"n_ctx", 4096}, {"memory", 8000000000}, {"slots", 100}}},
        {"lossy", Json::array()},
        {"quality_key", digits("quality", 64)},
        {"quality_settings", Json::object()},
        {"plan",
         {{"peak_decode", 6000000000},
          {"peak_prefill", 7000000000},
          {"terms", {{"slack", 0}, {"arena", 4000000000}}},
          {"measured", {{"peak_footprint", 5000000000}}}}},
        {"dense", nullptr},
        {"timings",
         {{"load", {{"open_s", 0.1}, {"dense_s", 1.0}, {"arena_s", 0.4}}},
          {"fill", {{"seconds", 0.5}}},
          {"prefill", {{"tokens", 512}, {"seconds", 2.0}}},
          {"first_token", {{"seconds", 0.1}}},
          {"decode", {{"tokens", 255}, {"seconds", 25.5}}}}},
        {"watchdog", nullptr},
        {"experts", nullptr},
        {"memory", {sample("start"), sample("after prefill"), sample("end")}},
        {"counters", {{{"at", "end"}, {"at_s", 1.0}, {"counters", counters}}}},
        {"token_columns", token_columns()},
        {"output", nullptr},
        {"trimmed", {{"turns", digits("turns", 64)}, {"tokens", digits("tokens", 64)}}},
        {"outcome", {{"state", "finished"}, {"exit_code", 0}, {"error", nullptr}}},
    };
  }

  static Json sample(const std::string& at) {
    Json out = {{"at", at}, {"at_s", 1.0}, {"cgroup_headroom", nullptr}};
    for (const char* name :
         {"footprint", "anonymous", "swap", "locked_file", "peak_rss", "available", "swapped_out",
          "major_faults", "minor_faults", "storage_bytes_read"}) {
      out[name] = 1000;
    }
    return out;
  }

  // Writes a record; returns its identity.
  std::string add(const Json& record) {
    return std::filesystem::path(write_record(records(), record)).stem().string();
  }
  // Three runs that gave the same, as a list of TOML.
  std::string three(Json record) {
    std::string out;
    for (int i = 0; i < 3; ++i) {
      record["run_id"] = digits("run " + std::to_string(++runs_), 32);
      out += (i == 0 ? "\"" : ", \"") + add(record) + "\"";
    }
    return "[" + out + "]";
  }
  // Bytes in files/ under their hash.
  std::string archive(const std::string& bytes) {
    const std::string hash = hex(sha256(bytes));
    std::ofstream(records() + "/files/" + hash, std::ios::binary) << bytes;
    return hash;
  }
  Json archived(const std::string& bytes) {
    return {{"sha256", archive(bytes)}, {"bytes", bytes.size()}};
  }

  Audit audit_of(const std::string& claims, const std::string& document = {}) {
    const std::string path = root() + "/claims.toml";
    std::string text = "records = [\"records\"]\n";
    if (!document.empty()) {
      text += "documents = [\"document.md\"]\n";
      std::ofstream(root() + "/document.md", std::ios::binary) << document;
    }
    std::ofstream(path, std::ios::binary) << text << claims;
    return audit({.claims = path, .documents = {}, .records = {}});
  }

  // "MISMATCH R1", of all findings that are not accepted.
  static std::set<std::string> found(const Audit& audit, const std::string& id) {
    std::set<std::string> out;
    bool any = false;
    for (const ClaimResult& result : audit.claims) {
      if (result.claim.id != id) continue;
      any = true;
      for (const Finding& finding : result.findings) {
        if (finding.accepted) continue;
        out.insert(std::string(verdict_name(finding.verdict)) + " " + finding.rule);
      }
      EXPECT_EQ(result.ok(), out.empty());
    }
    EXPECT_TRUE(any) << "there is no claim " << id;
    return out;
  }
  // All reasons of a claim in one text.
  static std::string reasons(const Audit& audit, const std::string& id) {
    std::string out;
    for (const ClaimResult& result : audit.claims) {
      for (const Finding& finding : result.findings) {
        if (result.claim.id == id) out += finding.reason + "\n";
      }
    }
    return out;
  }

  using Set = std::set<std::string>;

 private:
  penstock::testing::TemporaryFolder folder_;
  int runs_ = 0;
};

}  // namespace penstock::measure
