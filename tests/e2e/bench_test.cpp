// Campaigns of the whole program: every kind of arm, failures that are kept, interruption.
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
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
  // `more`: lines of the campaign itself.
  std::string campaign(const std::string& arms, const std::string& named = "",
                       const std::string& more = "") const {
    const std::string model = named.empty() ? tiny() : named;
    const std::string path = this->path("campaign.toml");
    std::ofstream(path) << "name = \"trial\"\nmodel = \"" << model << "\"\nrepeats = 3\n"
                        << "tokens = 8\ncool_down = 0\nmin_available = \"1M\"\n"
                        << "control_limit = 1.0\n"
                        << more << "[[prompt]]\nname = \"ids\"\nrandom_tokens = 9\n"
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
      "[[arm]]\nname = \"lossy\"\noptions = [\"--arena-slots\", \"64\", \"--alias-experts\"]\n"
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
  // Beside the speed of what is lossy stands what its quality is known to be.
  const size_t lossy = outcome.out.find("\n  lossy, ids");
  ASSERT_NE(lossy, std::string::npos) << outcome.out;
  EXPECT_EQ(outcome.out.find("quality: unmeasured"), outcome.out.find("\n", lossy + 1) + 5);
  EXPECT_EQ(m["runs"].size(), 6u * 3 + 3);
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
      EXPECT_EQ(r["producer"]["program"], "peer");
      EXPECT_TRUE(r["producer"]["version_source"].is_null());
      EXPECT_TRUE(r["memory"]["group_peak"].is_null());  // no limit, no group
      EXPECT_TRUE(r["watchdog"]["events"].is_array());
      EXPECT_EQ(r["inputs"]["prompt"]["tokens"], 9);
      EXPECT_EQ(r["inputs"]["prompt"]["file"], m["prompts"][0]["file"]);
    }
    if (arm == "served") {
      EXPECT_EQ(r["values"]["decode_tokens"], 7);
      EXPECT_EQ(r["parser"], "event-stream");  // what came is archived as it came
      const std::string raw = r["output"]["stdout"]["sha256"];
      EXPECT_NE(read_all(path("records/files/" + raw)).find(" data: {"), std::string::npos);
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

// What a terminal does on Ctrl-C: the signal goes to everyone in the foreground, which is the group
// of this test and of what it started.
void interrupt_the_foreground() {
  ASSERT_EQ(::getpgrp(), ::getpid());
  ::signal(SIGINT, SIG_IGN);
  ::kill(0, SIGINT);
  ::signal(SIGINT, SIG_DFL);
}

TEST_F(BenchProgram, CtrlCReachesTheRunOnceAndItsRecordIsWritten) {
  const std::string file = path("long.toml");
  std::ofstream(file) << "name = \"long\"\nmodel = \"" PENSTOCK_SOURCE_DIR
                         "/models/sample-qwen4exp-q8_0.gguf\"\nrepeats = 3\ntokens = 3000\n"
                         "min_available = \"1M\"\n[[prompt]]\nname = \"p\"\nrandom_tokens = 9\n"
                         "[[arm]]\nname = \"ours\"\n";
  ::setpgid(0, 0);
  const pid_t child = start({"bench", file, "-o", path("records")});
  // The run says how it is set up just before it begins.
  const auto until = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  while (read_all(path("records/work/stderr")).find("experts are read") == std::string::npos) {
    if (std::chrono::steady_clock::now() > until) {
      ::kill(child, SIGKILL);
      finish(child);
      FAIL() << "the run did not begin";
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  interrupt_the_foreground();
  EXPECT_EQ(finish(child).code, 130);
  std::vector<std::string> unfinished;
  bool interrupted = false;
  for (const std::string& record : records()) {
    if (record.ends_with("campaign.unfinished.json")) continue;
    if (record.ends_with(".unfinished.json")) unfinished.push_back(record);
    interrupted |= json::parse(std::ifstream(record))["outcome"]["state"] == "interrupted";
  }
  EXPECT_TRUE(unfinished.empty());
  EXPECT_TRUE(interrupted);
}

TEST_F(BenchProgram, WhatAWrapperStartedEndsWithItsTime) {
  const std::string wrapper =
      script("wrapper", "sleep 600 & echo $! >>'" + path("pids") + "'\nwait\n");
  const std::string file = campaign(
      "[[arm]]\nname = \"wrapped\"\nprogram = \"command\"\nparser = \"llama.cpp\"\n"
      "command = [\"" +
          wrapper + "\"]\n",
      "", "timeout = 1\n");
  EXPECT_EQ(bench(file).code, 5);  // no run finished
  std::ifstream pids(path("pids"));
  size_t n = 0;
  for (std::string pid; std::getline(pids, pid); ++n) {
    const std::string stat = read_all("/proc/" + pid + "/stat");
    EXPECT_TRUE(stat.empty() || stat.find(") Z ") != std::string::npos) << stat;
  }
  EXPECT_GE(n, 6u);
}

TEST_F(BenchProgram, AServerElsewhereThatSaysNothingIsNotWaitedFor) {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ASSERT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(::listen(listener, 8), 0);
  ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
  const std::string url = "http://127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  const std::string file =
      campaign("[[arm]]\nname = \"silent\"\nprogram = \"openai\"\nurl = \"" + url + "\"\n");
  const pid_t child = start({"bench", file, "-o", path("records")});
  const int asked = ::accept(listener, nullptr, nullptr);  // and never answers
  ASSERT_GE(asked, 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  ::kill(child, SIGINT);
  int status = 0;
  bool ended = false;
  for (int i = 0; i < 600 && !ended; ++i) {
    ended = ::waitpid(child, &status, WNOHANG) == child;
    if (!ended) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  if (!ended) {
    ::kill(child, SIGKILL);
    ::waitpid(child, &status, 0);
  }
  EXPECT_TRUE(ended);
  EXPECT_EQ(WEXITSTATUS(status), 130);
  ::close(asked);
  ::close(listener);
}

TEST_F(BenchProgram, AnInterruptWhileTheMachineIsMeasuredAgainDoesNotFinishTheCampaign) {
  const std::string quick = script("quick", kTimings);
  const std::string file = campaign(
      "[[arm]]\nname = \"quick\"\nprogram = \"command\"\nparser = \"llama.cpp\"\n"
      "command = [\"" +
          quick + "\"]\n",
      PENSTOCK_SOURCE_DIR "/models/sample-qwen4exp-q8_0.gguf", "roofline = true\n");
  const pid_t child = start({"bench", file, "-o", path("records")});
  while (read_all(path("err.0")).find("disk and memory, after") == std::string::npos) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ::kill(child, SIGINT);
  EXPECT_EQ(finish(child).code, 130);
  EXPECT_TRUE(manifest().is_null() || manifest()["outcome"]["state"] != "finished");
  ASSERT_EQ(bench(file).code, 0);
  const json m = manifest();
  EXPECT_EQ(m["outcome"]["state"], "finished");
  EXPECT_EQ(m["measured"]["iobench"]["before"].size(), 2u);
  EXPECT_EQ(m["measured"]["iobench"]["after"].size(), 2u);
  // Too few tokens to be a decode result: the prompt is what the control is judged by.
  EXPECT_EQ(m["control"]["figure"], "prefill_tok_s");
  EXPECT_EQ(m["control"]["first"], 180.0);
}

TEST_F(BenchProgram, ARunThatItsLimitKillsIsSaidToBeOutOfMemory) {
  const std::string file = campaign(
      "[[arm]]\nname = \"squeezed\"\nlimit = \"1M\"\n[[arm]]\nname = \"roomy\"\n"
      "limit = \"2G\"\n");
  const Outcome outcome = bench(file);
  const json m = manifest();
  if (m["conditions"]["memory_limits"] != "memory cgroup") GTEST_SKIP() << "no memory cgroups here";
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  for (const json& run : m["runs"]) {
    const bool roomy = run["arm"] == "roomy";
    EXPECT_EQ(run["state"], roomy ? "finished" : "failed") << run;
    EXPECT_EQ(run["memory_group"]["oom_kills"] == 0, roomy) << run;
    if (!roomy) {
      EXPECT_NE(run["reason"].get<std::string>().find("out of memory under its limit of 1.00 MiB"),
                std::string::npos)
          << run;
      continue;
    }
    const json r = record(run);
    EXPECT_GT(r["memory"].back()["cgroup_peak"], 0);
    EXPECT_LE(r["memory"].back()["cgroup_peak"], run["memory_group"]["peak"]);
  }
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
