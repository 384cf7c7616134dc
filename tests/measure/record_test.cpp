// Run records: what is checked about them, and that every kind of tampering is found.
#include "measure/record.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>

#include "base/digest.h"
#include "base/error.h"
#include "base/file.h"
#include "measure/archive.h"
#include "measure/json_schema.h"
#include "measure/record_verify.h"
#include "models/tiny_models.h"

namespace penstock::measure {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

Json uses(uint64_t arena, uint64_t issued) {
  return {{"arena", arena},        {"ra_timely", 0},   {"ra_late", 0},
          {"miss_issued", issued}, {"miss_joined", 0}, {"total", arena + issued}};
}

// Counters after `steps` decode steps of 4 uses, one of them a miss of 100 bytes.
Json counters(uint64_t steps) {
  const Json none = {{"reads", 0}, {"bytes", 0}};
  Json c;
  c["uses_first"] = steps == 0 ? uses(0, 0) : uses(3, 1);
  c["uses_steady"] = steps < 2 ? uses(0, 0) : uses(3 * (steps - 1), steps - 1);
  c["uses_expected"] = 4 * steps;
  c["steps"] = c["tokens"] = c["experts_read"] = steps;
  c["reads_demand"] = {{"reads", steps}, {"bytes", 100 * steps}};
  for (const char* name : {"reads_spec", "reads_fill", "reads_prompt", "reads_ple"}) c[name] = none;
  for (const char* name :
       {"uses_mapped", "stall_events", "io_busy_ns", "io_latency_ns", "evict_total", "evict_hot",
        "prompt_experts_touched", "prompt_arena_used", "prompt_stall_ns", "dev_bytes"}) {
    c[name] = 0;
  }
  c["stall_ns"] = 10 * steps;
  c["read_ahead"] = nullptr;
  c["cache_aware_routing"] = Json::object();
  c["residency"] = Json::object();
  return c;
}

experts::Counters live(uint64_t steps) {
  experts::Counters c;
  if (steps > 0) c.first = {.arena = 3, .miss_issued = 1};
  if (steps > 1) c.steady = {.arena = 3 * (steps - 1), .miss_issued = steps - 1};
  c.steps = c.tokens = steps;
  c.demand = {steps, 100 * steps};
  c.stall_ns = 10 * steps;
  return c;
}

class RecordTest : public ::testing::Test {
 protected:
  std::string folder() const { return folder_.path() + "/runs"; }

  std::string write_record(const std::vector<int32_t>& seen = {4, 5, 6, 7}) const {
    RunRecorder recorder(folder(), {.version = "1", .revision = "abc", .compiler = "c"});
    EXPECT_EQ(unfinished().size(), 1u);
    const std::vector<int32_t> prompt = {5, 6, 7};
    recorder.boundary("before prompt", counters(0));
    recorder.begin_turn(prompt, false, live(0));
    recorder.prompt_evaluated(seen);
    recorder.memory("after prefill");
    recorder.end_memory();
    for (uint64_t step = 1; step <= 5; ++step) {
      recorder.poll(live(step), 0.01 * static_cast<double>(step));
      recorder.poll(live(step), 0.01 * static_cast<double>(step));  // nothing new: no row
    }
    recorder.end_turn(std::vector<int32_t>{1, 2, 3, 4, 5}, "broken \xff text", "token limit");
    recorder.boundary("end", counters(5));
    std::printf("to standard output\n");
    std::fprintf(stderr, "to standard error\n");
    return recorder.finish("finished", 0);
  }

  std::vector<std::string> unfinished() const {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(folder())) {
      if (entry.path().string().ends_with(".unfinished.json")) found.push_back(entry.path());
    }
    return found;
  }

  // A record with its right name, but changed inside.
  RecordCheck forged(const std::string& path, const std::function<void(Json&)>& change) const {
    Json record = Json::parse(read_text_file(path));
    change(record);
    const std::string text = canonical_text(record);
    const std::string other = folder() + "/" + record_id(Json::parse(text)) + ".json";
    std::ofstream(other, std::ios::binary) << text;
    return verify_record(other);
  }

  penstock::testing::TemporaryFolder folder_;
};

bool mentions(const RecordCheck& check, const std::string& word) {
  for (const std::string& problem : check.problems) {
    if (problem.find(word) != std::string::npos) return true;
  }
  return false;
}

TEST_F(RecordTest, WhatWasWrittenIsSound) {
  const std::string path = write_record();
  EXPECT_TRUE(unfinished().empty());
  const RecordCheck check = verify_record(path);
  EXPECT_TRUE(check.sound()) << (check.problems.empty() ? "" : check.problems[0]);
  EXPECT_EQ(fs::path(path).filename(), record_id(Json::parse(read_text_file(path))) + ".json");
  const Json record = Json::parse(read_text_file(path));
  EXPECT_EQ(record["tokens"].size(), 5u);
  EXPECT_EQ(record["turns"][0]["text"], "broken \xef\xbf\xbd text");
  const auto file = [&](const std::string& hash) {
    return read_text_file(folder() + "/files/" + hash);
  };
  EXPECT_EQ(file(record["turns"][0]["prompt"]["file"]), "5\n6\n7\n");
  EXPECT_EQ(file(record["output"]["stdout"]["sha256"]), "to standard output\n");
  EXPECT_EQ(record["turns"][0]["prompt"]["truncated"], false);
  EXPECT_EQ(record["memory"].size(), 3u);  // "end" was taken before finish(), once
  EXPECT_EQ(record["memory"][2]["at"], "end");
  EXPECT_EQ(file(record["output"]["stderr"]["sha256"]), "to standard error\n");
  EXPECT_EQ(record["producer"]["executable_sha256"], hex(sha256_file("/proc/self/exe")));
}

TEST_F(RecordTest, APromptThatTheModelDidNotSeeWholeIsTruncated) {
  for (const auto& seen : {std::vector<int32_t>{6, 7}, std::vector<int32_t>{5, 6, 8}}) {
    const Json record = Json::parse(read_text_file(write_record(seen)));
    EXPECT_EQ(record["turns"][0]["prompt"]["truncated"], true);
  }
}

TEST_F(RecordTest, AKilledRunLeavesItsBeginning) {
  { RunRecorder recorder(folder(), {.version = "1", .revision = "abc"}); }
  ASSERT_EQ(unfinished().size(), 1u);
  const RecordCheck check = verify_record(unfinished()[0]);
  EXPECT_TRUE(mentions(check, "never finished"));
  EXPECT_FALSE(mentions(check, "schema"));
}

TEST_F(RecordTest, EveryForgeryIsFound) {
  const std::string path = write_record();
  EXPECT_TRUE(forged(path, [](Json&) {}).sound());
  const auto found = [&](const char* word, const std::function<void(Json&)>& change) {
    return mentions(forged(path, change), word);
  };
  EXPECT_TRUE(
      found("sum to", [](Json& r) { r["counters"][1]["counters"]["uses_steady"]["arena"] = 99; }));
  EXPECT_TRUE(
      found("expected", [](Json& r) { r["counters"][1]["counters"]["uses_expected"] = 21; }));
  EXPECT_TRUE(found("the counters have", [](Json& r) { r["tokens"].erase(2); }));
  EXPECT_TRUE(found("wall less stall", [](Json& r) { r["tokens"][1][4] = 1; }));
  EXPECT_TRUE(found("backwards", [](Json& r) { r["tokens"][4][1] = 0; }));
  EXPECT_TRUE(found("newer than the run", [](Json& r) {
    r["producer"]["executable_modified"] = r["started"].get<double>() + 95;
  }));
  EXPECT_TRUE(found("difference is not archived", [](Json& r) { r["producer"]["dirty"] = true; }));
  EXPECT_TRUE(found("ended before", [](Json& r) { r["ended"] = 1.0; }));
  EXPECT_TRUE(found("is not there",
                    [](Json& r) { r["turns"][0]["prompt"]["file"] = std::string(64, '0'); }));
  // Not of the schema: each is found by it.
  EXPECT_TRUE(found("schema", [](Json& r) { r.erase("argv"); }));
  EXPECT_TRUE(found("schema", [](Json& r) { r.erase("environment"); }));
  EXPECT_TRUE(found("schema", [](Json& r) { r["summary"] = "13.88 tokens/s"; }));
  EXPECT_TRUE(found("schema", [](Json& r) { r["version"] = 2; }));
  EXPECT_TRUE(found("schema", [](Json& r) { r["tokens"][0].push_back(1); }));
  EXPECT_TRUE(found("schema", [](Json& r) { r["tokens"][0][2] = -1; }));
  EXPECT_TRUE(found("schema", [](Json& r) { r["outcome"]["state"] = "splendid"; }));
}

TEST_F(RecordTest, ChangedAndForeignFilesAreFound) {
  const std::string path = write_record();
  std::string text = read_text_file(path);
  const auto check = [&](const std::string& changed) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << changed;
    return verify_record(path);
  };
  for (size_t cut = 0; cut < text.size(); cut += 997) {
    EXPECT_FALSE(check(text.substr(0, cut)).sound());
  }
  EXPECT_TRUE(mentions(check(text + "\n"), "canonical"));
  std::string other = text;
  other.replace(other.find("token limit"), 11, "other limit");
  EXPECT_TRUE(mentions(check(other), "hash"));
  EXPECT_FALSE(check(std::string(200000, '[')).sound());  // no recursion without end
  EXPECT_FALSE(check("[]").sound());
  EXPECT_TRUE(check(text).sound());
  const Json record = Json::parse(text);
  const std::string file = record["output"]["stdout"]["sha256"];
  std::ofstream(folder() + "/files/" + file, std::ios::app) << "more";
  EXPECT_TRUE(mentions(verify_record(path), "was changed"));
  EXPECT_FALSE(verify_record(folder() + "/absent.json").sound());
}

TEST(JsonSchema, EveryKeywordIsChecked) {
  const auto problems = [](const char* schema, const char* value) {
    return schema_problems(Json::parse(schema), Json::parse(value)).size();
  };
  EXPECT_EQ(problems(R"({"type": ["integer", "null"]})", "null"), 0u);
  EXPECT_EQ(problems(R"({"type": "integer"})", "1.5"), 1u);
  EXPECT_EQ(problems(R"({"minimum": 0})", "-1"), 1u);
  EXPECT_EQ(problems(R"({"pattern": "^[0-9]+$"})", "\"12x\""), 1u);
  EXPECT_EQ(problems(R"({"enum": ["a", 2]})", "2"), 0u);
  EXPECT_EQ(problems(R"({"enum": ["a", 2]})", "3"), 1u);
  EXPECT_EQ(problems(R"({"const": [1]})", "[2]"), 1u);
  EXPECT_EQ(problems(R"({"required": ["a", "b"]})", "{\"a\": 1}"), 1u);
  EXPECT_EQ(problems(R"({"properties": {"a": {"type": "string"}}})", "{\"a\": 1, \"b\": 2}"), 1u);
  EXPECT_EQ(problems(R"({"properties": {}, "additionalProperties": false})", "{\"b\": 2}"), 1u);
  EXPECT_EQ(problems(R"({"additionalProperties": {"type": "string"}})", "{\"b\": 2}"), 1u);
  EXPECT_EQ(problems(R"({"items": {"type": "string"}})", "[\"a\", 1, 2]"), 2u);
  EXPECT_EQ(problems(R"({"prefixItems": [{"type": "string"}], "minItems": 2})", "[1]"), 2u);
  EXPECT_EQ(problems(R"({"maxItems": 1})", "[1, 2]"), 1u);
  EXPECT_EQ(problems(R"({"$ref": "#/$defs/n", "$defs": {"n": {"type": "null"}}})", "1"), 1u);
  EXPECT_THROW(problems(R"({"oneOf": []})", "1"), Error);
}

}  // namespace
}  // namespace penstock::measure
