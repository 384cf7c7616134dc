// Campaigns of the whole program: every kind of arm, failures that are kept, interruption.
#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <thread>

#include "e2e/program.h"

namespace penstock::testing {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

class BenchProgram : public Program {
 protected:
  std::string campaign(const std::string& arms, const std::string& named = "") const {
    const std::string model = named.empty() ? tiny() : named;
    const std::string path = this->path("campaign.toml");
    std::ofstream(path) << "name = \"trial\"\nmodel = \"" << model << "\"\nrepeats = 3\n"
                        << "tokens = 8\ncool_down = 0\nmin_available = \"1M\"\n"
                        << "control_limit = 1.0\n"
                        << "[[prompt]]\nname = \"ids\"\nrandom_tokens = 9\n"
                        << arms;
    return path;
  }
  std::string script(const std::string& name, const std::string& text) const {
    const std::string path = this->path(name);
    std::ofstream(path) << "#!/bin/sh\n" << text;
    ::chmod(path.c_str(), 0755);
    return path;
  }
  // The manifest that a finished campaign left.
  json manifest() const {
    for (const auto& entry : fs::directory_iterator(path("records"))) {
      if (entry.path().extension() != ".json") continue;
      json value = json::parse(std::ifstream(entry.path()));
      if (value.at("schema") == "penstock-campaign") return value;
    }
    return nullptr;
  }
  json record(const json& run) const {
    const std::string id = run.at("record");
    return json::parse(std::ifstream(path("records/" + id + ".json")));
  }
  std::vector<std::string> records() const {
    std::vector<std::string> out;
    for (const auto& entry : fs::directory_iterator(path("records"))) {
      if (entry.path().extension() == ".json") out.push_back(entry.path().string());
    }
    return out;
  }
  size_t records_done() const { return fs::exists(path("records")) ? records().size() : 0; }
  Outcome bench(const std::string& file) const {
    return run({"bench", file, "-o", path("records")});
  }
};

constexpr const char* kTimings =
    "echo 'prompt eval time = 50.0 ms / 9 tokens' >&2\n"
    "echo '  eval time = 70.0 ms / 7 runs' >&2\n";

TEST_F(BenchProgram, EveryKindOfArmIsRunAndFailuresAreKept) {
  const std::string peer = script("peer", std::string("test -f \"$2\" || exit 5\n") + kTimings);
  const std::string broken = script("broken", "echo 'no such flag' >&2; exit 3\n");
  const std::string arms =
      "[[arm]]\nname = \"ours\"\noptions = [\"--arena-slots\", \"64\"]\n"
      "[[arm]]\nname = \"refused\"\noptions = [\"--arena-slots\", \"1\"]\n"
      "[[arm]]\nname = \"peer\"\nprogram = \"command\"\nparser = \"llama.cpp\"\n"
      "command = [\"" +
      peer +
      "\", \"-m\", \"{model}\", \"{ids}\", \"{tokens}\"]\n"
      "[[arm]]\nname = \"broken\"\nprogram = \"command\"\nparser = \"llama.cpp\"\ncommand = [\"" +
      broken +
      "\"]\n"
      "[[arm]]\nname = \"served\"\nprogram = \"openai\"\ncommand = [\"" PENSTOCK_PROGRAM
      "\", \"serve\", \"-m\", \"{model}\", \"--port\", \"{port}\", \"--ctx\", \"{context}\", "
      "\"--record\", \"" +
      path("served") + "\"]\n";
  const Outcome outcome =
      bench(campaign(arms, PENSTOCK_SOURCE_DIR "/models/sample-qwen4exp-q8_0.gguf"));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const json m = manifest();
  ASSERT_TRUE(m.is_object());
  EXPECT_EQ(m["outcome"]["state"], "finished");
  EXPECT_EQ(m["runs"].size(), 5u * 3 + 3);
  for (const json& run : m["runs"]) {
    const std::string arm = run["arm"];
    const bool fails = arm == "refused" || arm == "broken";
    EXPECT_EQ(run["state"], fails ? "failed" : "finished") << run;
    ASSERT_TRUE(run["record"].is_string()) << run;
    const json r = record(run);
    if (arm == "broken") {
      EXPECT_NE(run["reason"].get<std::string>().find("no such flag"), std::string::npos);
    }
    if (arm == "peer") {
      EXPECT_EQ(r["values"]["decode_ms"], 70.0);
      EXPECT_EQ(r["inputs"]["prompt"]["tokens"], 9);
      EXPECT_EQ(r["inputs"]["prompt"]["file"], m["prompts"][0]["file"]);
    }
    if (arm == "served") {
      EXPECT_EQ(r["values"]["decode_tokens"], 7);
    }
    if (arm == "ours") {
      EXPECT_EQ(r["turns"][0]["prompt"]["file"], m["prompts"][0]["file"]);
    }
  }
  std::vector<std::string> verify = {"record", "verify"};
  for (const std::string& file : records()) verify.push_back(file);
  const Outcome verified = run(verify);
  EXPECT_EQ(verified.code, 0) << verified.out;
  // The server wrote down its requests itself, and counts the same tokens.
  std::vector<std::string> served = {"record", "verify"};
  for (const auto& entry : fs::directory_iterator(path("served"))) {
    if (entry.path().extension() != ".json") continue;
    served.push_back(entry.path().string());
    const json r = json::parse(std::ifstream(entry.path()));
    EXPECT_EQ(r["turns"][0]["prompt"]["tokens"], 9);
    EXPECT_EQ(r["turns"][0]["tokens"].size(), 8u);
    EXPECT_EQ(r["timings"]["decode"]["tokens"], 7);
  }
  EXPECT_EQ(served.size(), 2u + 3);
  const Outcome requests = run(served);
  EXPECT_EQ(requests.code, 0) << requests.out;
  EXPECT_NE(outcome.out.find("3 of 3 failed"), std::string::npos) << outcome.out;
}

TEST_F(BenchProgram, AnInterruptedCampaignGoesOn) {
  const std::string slow =
      script("slow", std::string("echo x >>'") + path("count") + "'\nsleep 0.2\n" + kTimings);
  const std::string file = campaign(
      "[[arm]]\nname = \"slow\"\nprogram = \"command\"\nparser = "
      "\"llama.cpp\"\ncommand = [\"" +
      slow + "\"]\n");
  const pid_t child = start({"bench", file, "-o", path("records")});
  for (int i = 0; i < 400 && records_done() < 2; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(25));
  }
  ::kill(child, SIGINT);
  const Outcome cut = finish(child);
  EXPECT_EQ(cut.code, 130) << cut.err;
  EXPECT_TRUE(fs::exists(path("records/campaign.unfinished.json")));

  // Another campaign does not take its place.
  const std::string other = campaign("[[arm]]\nname = \"other\"\n");
  EXPECT_EQ(bench(other).code, 2);
  campaign(
      "[[arm]]\nname = \"slow\"\nprogram = \"command\"\nparser = \"llama.cpp\"\n"
      "command = [\"" +
      slow + "\"]\n");
  const Outcome on = bench(file);
  ASSERT_EQ(on.code, 0) << on.err;
  EXPECT_NE(on.err.find("going on"), std::string::npos);
  EXPECT_FALSE(fs::exists(path("records/campaign.unfinished.json")));
  const json m = manifest();
  EXPECT_EQ(m["runs"].size(), 6u);
  EXPECT_EQ(m["control"]["void"], false);
  EXPECT_EQ(m["control"]["moved"], 0.0);
  // Six runs, and at most the one that was cut.
  std::ifstream count(path("count"));
  const auto lines = std::count(std::istreambuf_iterator<char>(count), {}, '\n');
  EXPECT_GE(lines, 6);
  EXPECT_LE(lines, 7);
}

TEST_F(BenchProgram, BuiltInCampaignsArePrintedAndMistakesAreSaid) {
  const Outcome print = run({"bench", "arena-sweep", "-m", tiny(), "--print"});
  EXPECT_EQ(print.code, 0) << print.err;
  EXPECT_NE(print.out.find("[[arm]]"), std::string::npos);
  EXPECT_EQ(run({"bench", "everything"}).code, 2);
  EXPECT_EQ(run({"bench", campaign("[[arm]]\nname = \"x\"\nspeed = 9\n")}).code, 6);
  EXPECT_EQ(run({"bench", campaign("[[arm]]\nname = \"x\"\n"), "--repeats", "3"}).code, 2);
}

}  // namespace
}  // namespace penstock::testing
