// Names of records, records cut down, and records of other programs.
#include "measure/archive.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/digest.h"
#include "base/error.h"
#include "base/file.h"
#include "measure/json_schema.h"
#include "measure/peer_output.h"
#include "measure/record.h"
#include "measure/record_verify.h"
#include "models/tiny_models.h"

namespace penstock::measure {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

constexpr const char* kLlamaErr =
    "llama_perf_context_print:        load time =    1207.31 ms\n"
    "llama_perf_context_print: prompt eval time =    3191.98 ms /  1024 tokens (    3.12 ms per "
    "token,   320.80 tokens per second)\n"
    "llama_perf_context_print:        eval time =    4656.22 ms /    63 runs   (   73.91 ms per "
    "token,    13.53 tokens per second)\n"
    "llama_perf_context_print:       total time =    9000.00 ms /  1087 tokens\n";

class ArchiveTest : public ::testing::Test {
 protected:
  void SetUp() override { fs::create_directories(folder() + "/files"); }
  std::string folder() const { return folder_.path(); }
  std::string keep(const std::string& text) const {
    const std::string hash = hex(sha256(text));
    std::ofstream(folder() + "/files/" + hash, std::ios::binary) << text;
    return hash;
  }
  Json peer() const {
    Json r;
    r["schema"] = kPeerSchema;
    r["version"] = 1;
    r["run_id"] = std::string(32, 'a');
    r["started"] = 10.0;
    r["ended"] = 20.0;
    r["producer"] = {{"program", "llama.cpp"},
                     {"version", "b1"},
                     {"executable_sha256", nullptr},
                     {"executable_modified", nullptr}};
    r["recorder"] = {{"program", "penstock"}};
    r["argv"] = {"llama-cli", "-m", "x.gguf"};
    r["environment"] = Json::object();
    r["machine"] = nullptr;
    r["inputs"] = {{"model", {{"path", "x.gguf"}, {"model_id", nullptr}}}, {"prompt", nullptr}};
    r["settings"] = Json::object();
    r["quality_key"] = nullptr;
    r["limit"] = nullptr;
    r["memory"] = {{"peak_bytes", 1000}};
    r["watchdog"] = nullptr;
    const std::string err = keep(kLlamaErr);
    r["output"] = {{"stdout", nullptr},
                   {"stderr", {{"sha256", err}, {"bytes", std::string(kLlamaErr).size()}}}};
    r["parser"] = "llama.cpp";
    r["values"] = parse_peer_output("llama.cpp", "", kLlamaErr);
    r["outcome"] = {
        {"state", "finished"}, {"exit_code", 0}, {"error", nullptr}, {"stop_reason", nullptr}};
    return r;
  }
  static bool mentions(const RecordCheck& check, const std::string& what) {
    for (const std::string& problem : check.problems) {
      if (problem.find(what) != std::string::npos) return true;
    }
    return false;
  }

 private:
  penstock::testing::TemporaryFolder folder_;
};

TEST_F(ArchiveTest, ACutRecordKeepsItsName) {
  const Json record = peer();
  const std::string path = write_record(folder(), record);
  EXPECT_EQ(fs::path(path).stem(), record_id(record));
  EXPECT_TRUE(verify_record(path).sound());
  const Json cut = trim_record(record, {"watchdog", "memory"});
  EXPECT_FALSE(cut.contains("memory"));
  EXPECT_EQ(record_id(cut), record_id(record));
  EXPECT_EQ(record_id(trim_record(cut, {"memory", "settings"})), record_id(record));
  EXPECT_TRUE(verify_record(write_record(folder(), cut)).sound());

  Json changed = cut;
  changed["values"]["decode_ms"] = 1.0;
  EXPECT_NE(record_id(changed), record_id(record));
  changed = cut;
  changed["trimmed"]["memory"] = std::string(64, '0');
  EXPECT_NE(record_id(changed), record_id(record));
  changed = cut;
  changed["memory"] = record["memory"];  // there and cut out at once
  EXPECT_THROW(record_id(changed), Error);
  changed = cut;
  changed["trimmed"]["memory"] = "short";
  EXPECT_THROW(record_id(changed), Error);
  EXPECT_THROW(record_id(Json::array()), Error);
}

TEST_F(ArchiveTest, WhatMakesARecordCannotBeCut) {
  for (const char* name :
       {"schema", "producer", "argv", "inputs", "outcome", "trimmed", "absent"}) {
    EXPECT_THROW(trim_record(peer(), {name}), Error) << name;
  }
}

TEST_F(ArchiveTest, ValuesAreWhatTheParserReads) {
  Json record = peer();
  EXPECT_DOUBLE_EQ(record["values"]["prefill_tokens"].get<double>(), 1024);
  EXPECT_DOUBLE_EQ(record["values"]["decode_ms"].get<double>(), 4656.22);
  EXPECT_DOUBLE_EQ(record["values"]["load_ms"].get<double>(), 1207.31);
  record["values"]["decode_ms"] = 4500.0;
  EXPECT_TRUE(mentions(verify_record(write_record(folder(), record)), "decode_ms"));
  record["values"].erase("decode_ms");
  EXPECT_TRUE(mentions(verify_record(write_record(folder(), record)), "decode_ms"));
  record = peer();
  record["parser"] = "of my own";
  EXPECT_TRUE(mentions(verify_record(write_record(folder(), record)), "no parser"));
  record = peer();
  std::ofstream(folder() + "/files/" + record["output"]["stderr"]["sha256"].get<std::string>(),
                std::ios::app)
      << "more";
  EXPECT_TRUE(mentions(verify_record(write_record(folder(), record)), "was changed"));
}

TEST_F(ArchiveTest, ParsersOfEveryKind) {
  const Json server = parse_peer_output(
      "llama-server",
      R"({"content":"x","timings":{"prompt_n":81,"prompt_ms":900.5,"predicted_n":64,"predicted_ms":2000}})",
      "");
  EXPECT_EQ(server["decode_tokens"], 63);
  EXPECT_EQ(server["prefill_ms"], 900.5);
  const Json bench = parse_peer_output(
      "llama-bench",
      R"([{"n_prompt":512,"n_gen":0,"avg_ns":2e9},{"n_prompt":0,"n_gen":32,"avg_ns":4e9}])", "");
  EXPECT_EQ(bench["prefill_ms"], 2000);
  EXPECT_EQ(bench["decode_tokens"], 32);
  const Json stream = parse_peer_output(
      "stream", R"({"sent_ms":5,"arrived_ms":[105,115,135],"prompt_tokens":7})", "");
  EXPECT_EQ(stream["prefill_ms"], 100);
  EXPECT_EQ(stream["decode_tokens"], 2);
  EXPECT_EQ(stream["decode_ms"], 30);
  const Json pieces = parse_peer_output(
      "stream", R"({"sent_ms":0,"arrived_ms":[1,2],"prompt_tokens":7,"completion_tokens":9})", "");
  EXPECT_EQ(pieces["decode_tokens"], 8);
  const Json edge = parse_peer_output(
      "bigmoeonedge",
      "some text\n\ngeneration: 64 tokens, 0.050 s/token (19.965 tok/s)\n"
      "compute: 98.0% CPU occupancy (0.0981 cpu-s/token over 2 threads), 0.00 major faults/token\n"
      "prefill: 32 tokens, 1.600 s (20.0 tok/s) | model load 2.500 s | TTFT 4.100 s\n",
      "");
  EXPECT_EQ(edge["decode_tokens"], 64);
  EXPECT_NEAR(edge["decode_ms"].get<double>(), 64 / 19.965 * 1e3, 1e-9);
  EXPECT_EQ(edge["prefill_tokens"], 32);
  EXPECT_EQ(edge["prefill_ms"], 1600);
  EXPECT_EQ(edge["load_ms"], 2500);
  EXPECT_EQ(parse_peer_output("llama.cpp", "", ""), Json::object());
  EXPECT_EQ(parse_peer_output("bigmoeonedge", "generation: none\nprefill: 1 tokens", ""),
            Json::object());
}

TEST_F(ArchiveTest, HostileOutputIsAnErrorByName) {
  for (const auto& [parser, text] : std::vector<std::pair<const char*, const char*>>{
           {"llama-server", "not json"},
           {"llama-server", R"({"timings":{"prompt_n":"many"}})"},
           {"llama-bench", "{}"},
           {"llama-bench", R"([{"n_prompt":1}])"},
           {"stream", R"({"sent_ms":5,"arrived_ms":[]})"},
           {"stream", R"({"sent_ms":5,"arrived_ms":[9,8]})"},  // a clock that goes backwards
           {"stream", R"({"sent_ms":5,"arrived_ms":["x"]})"},
           {"unheard of", ""}}) {
    EXPECT_THROW(parse_peer_output(parser, text, ""), Error) << parser << " " << text;
  }
  const std::string deep(100000, '[');
  EXPECT_THROW(parse_peer_output("llama-server", deep, ""), Error);
  const Json odd = parse_peer_output(
      "llama.cpp", "",
      "prompt eval time = nan ms / 5 tokens\n eval time = 1 ms / x runs\nload time =");
  EXPECT_EQ(odd, Json::object());
}

// A record may name anything as its output: only what is named by a SHA-256 is ever opened.
TEST_F(ArchiveTest, NothingOutsideTheFolderIsRead) {
  const std::string hash = keep("text");
  EXPECT_EQ(read_archived(folder(), hash), "text");
  std::ofstream(folder() + "/secret") << "0";
  Json record = peer();
  record["parser"] = "llama-bench";
  for (const char* name : {"../secret", "/dev/zero", "", "secret"}) {
    EXPECT_THROW(read_archived(folder(), name), Error) << name;
    record["output"] = {{"stdout", {{"sha256", name}, {"bytes", 1}}}, {"stderr", nullptr}};
    const std::vector<std::string> problems = reparse_problems(record, folder());
    ASSERT_EQ(problems.size(), 1u) << name;
    EXPECT_NE(problems[0].find("SHA-256"), std::string::npos) << problems[0];
  }
  const std::string digits = hex(sha256("a folder"));
  fs::create_directory(folder() + "/files/" + digits);
  EXPECT_THROW(read_archived(folder(), digits), Error);
}

TEST(ParseJson, NestingIsCountedInTimeThatGrowsWithTheText) {
  const auto nested = [](size_t n) { return std::string(n, '[') + std::string(n, ']'); };
  EXPECT_NO_THROW(parse_json(nested(64), "text"));
  EXPECT_THROW(parse_json(nested(65), "text"), Error);
  EXPECT_THROW(parse_json(std::string(1'000'000, '['), "text"), Error);
  EXPECT_NO_THROW(parse_json("[\"" + std::string(100, '[') + "\\\"{{\"]", "text"));
  // A pass over the list for each of its objects would take hours.
  std::string many = "[{}";
  for (int i = 0; i < 1'000'000; ++i) many += ",{}";
  EXPECT_EQ(parse_json(many + "]", "text").size(), 1'000'001u);
}

TEST_F(ArchiveTest, FindsByNameAndSaysWhatIsWrong) {
  const std::string path = write_record(folder(), peer());
  std::ofstream(folder() + "/broken.json") << "{";
  std::ofstream(folder() + "/other.json") << R"({"figure": 3})";
  std::ofstream(folder() + "/x.unfinished.json") << "{}";
  Archive archive;
  archive.add(folder());
  ASSERT_EQ(archive.entries().size(), 3u);
  const std::string id = record_id(peer());
  for (const std::string& name : {id, id.substr(0, 12), std::string(32, 'a'), path}) {
    ASSERT_NE(archive.find(name), nullptr) << name;
    EXPECT_TRUE(archive.find(name)->is_record());
  }
  EXPECT_EQ(archive.find("other.json")->value["figure"], 3);
  EXPECT_FALSE(archive.find("broken.json")->problems.empty());
  EXPECT_EQ(archive.find("nothing"), nullptr);
  EXPECT_EQ(archive.find(""), nullptr);
  EXPECT_THROW(archive.add(folder() + "/absent"), Error);
}

}  // namespace
}  // namespace penstock::measure
