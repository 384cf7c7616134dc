// Campaign files, their order of runs, and the children that carry them out.
#include "measure/campaign.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/machine.h"
#include "measure/bench.h"
#include "measure/child.h"
#include "measure/json_schema.h"
#include "measure/memory_group.h"
#include "measure/peer_producer.h"
#include "measure/peer_talk.h"
#include "models/tiny_models.h"

namespace penstock::measure {
namespace {

constexpr const char* kCampaign = R"(
name = "two"
model = "m.gguf"
repeats = 3
tokens = 64
limit = "2G"
[[prompt]]
name = "p"
text = "words"
[[prompt]]
name = "q"
random_tokens = 100
[[arm]]
name = "a"
options = ["--evict", "lru"]
[[arm]]
name = "b"
program = "llama-server"
command = ["llama-server"]
limit = "4G"
)";

std::string error_of(const std::string& text) {
  try {
    read_campaign(text, "c.toml");
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

TEST(Campaign, IsReadWholeAndWrittenBack) {
  const Campaign c = read_campaign(kCampaign, "c.toml");
  EXPECT_EQ(c.repeats, 3);
  EXPECT_TRUE(c.cold);
  EXPECT_EQ(c.arms[0].options, (std::vector<std::string>{"--evict", "lru"}));
  EXPECT_EQ(c.arms[1].program, ArmProgram::LlamaServer);
  const nlohmann::json json = campaign_json(c);
  EXPECT_EQ(json["arms"][0]["limit"], uint64_t{2} << 30);  // the campaign's
  EXPECT_EQ(json["arms"][1]["limit"], uint64_t{4} << 30);
  EXPECT_EQ(json["prompts"][1]["random_tokens"], 100);
}

TEST(Campaign, AManifestIsAFileToRunItAgain) {
  const nlohmann::json definition = campaign_json(read_campaign(kCampaign, "c.toml"));
  const std::string text = campaign_toml({{"definition", definition}}, "m.json");
  EXPECT_EQ(campaign_json(read_campaign(text, "m.json")), definition) << text;
  EXPECT_THROW(campaign_toml(nlohmann::json::object(), "m.json"), Error);
  EXPECT_THROW(campaign_toml({{"definition", {{"arms", {1}}, {"prompts", {1}}}}}, "m.json"), Error);
}

// What is archived can be run again.
TEST(Campaign, EveryArchivedManifestIsOne) {
  namespace fs = std::filesystem;
  int found = 0;
  const fs::path root = fs::path(PENSTOCK_SOURCE_DIR) / "bench/results/campaigns";
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    if (entry.path().extension() != ".json") continue;
    const nlohmann::json record =
        parse_json(read_text_file(entry.path().string()), entry.path().string());
    if (record.at("schema") != "penstock-campaign") continue;
    const std::string text = campaign_toml(record, entry.path().string());
    EXPECT_EQ(campaign_json(read_campaign(text, "again")), record.at("definition")) << text;
    ++found;
  }
  EXPECT_GE(found, 15);
}

TEST(Campaign, MistakesAreNamedWithTheirLine) {
  const std::string text = kCampaign;
  EXPECT_NE(error_of(text + "colour = 1\n").find("line"), std::string::npos);
  EXPECT_NE(error_of("name = [").find("line 1"), std::string::npos);
  EXPECT_NE(error_of("repeats = 3\n").find("name"), std::string::npos);
  const auto with = [&](const char* from, const char* to) {
    std::string changed = text;
    changed.replace(changed.find(from), std::string(from).size(), to);
    return error_of(changed);
  };
  EXPECT_NE(with("repeats = 3", "repeats = 2").find("repeats"), std::string::npos);
  EXPECT_NE(with("name = \"q\"", "name = \"p\"").find("two [[prompt]]"), std::string::npos);
  EXPECT_NE(with("name = \"b\"", "name = \"a\"").find("two [[arm]]"), std::string::npos);
  EXPECT_NE(with("text = \"words\"", "").find("text, file or random_tokens"), std::string::npos);
  EXPECT_NE(with("llama-server", "gguf-server").find("gguf-server"), std::string::npos);
  EXPECT_NE(with("command = [\"llama-server\"]", "").find("command"), std::string::npos);
  EXPECT_NE(with("limit = \"4G\"", "limit = \"four\"").find("four"), std::string::npos);
  EXPECT_NE(with("model = \"m.gguf\"", "").find("no model"), std::string::npos);
}

TEST(Campaign, RoundsGoForwardsAndBackwardsAndEndWithTheControl) {
  const Campaign c = read_campaign(kCampaign, "c.toml");
  const std::vector<CampaignRun> runs = campaign_schedule(c);
  ASSERT_EQ(runs.size(), 2u * 2 * 3 + 3);
  std::string order;
  for (const CampaignRun& run : runs) {
    order += run.control ? 'C' : static_cast<char>((run.prompt == 0 ? 'a' : 'x') + run.arm);
  }
  EXPECT_EQ(order, "abxybayxabxyCCC");
  for (size_t i = 12; i < runs.size(); ++i) EXPECT_EQ(runs[i].arm + runs[i].prompt, 0u);
}

TEST(Campaign, BuiltInOnesAreCampaigns) {
  BuiltinRequest request;
  request.model = "a \"b\"\\c.gguf";
  request.experts = 512;
  request.fewest_slots = 24;
  request.llama_server = "/opt/llama-server";
  request.limit = "4G,8G";
  for (const std::string& name : builtin_campaigns()) {
    request.name = name;
    request.limit = name == "peers" ? "4G,8G" : "4G";
    const Campaign c = read_campaign(builtin_campaign(request), name);
    EXPECT_EQ(c.model, request.model);
    EXPECT_GE(c.repeats, 3);
    EXPECT_EQ(c.control_limit, 0.05) << name;
  }
  request.name = "peers";
  request.limit = "4G,8G";
  const Campaign peers = read_campaign(builtin_campaign(request), "peers");
  EXPECT_EQ(*peers.arms.front().limit, uint64_t{4} << 30);
  EXPECT_EQ(*peers.arms.back().limit, uint64_t{8} << 30);
  request.limit.clear();
  request.memory = uint64_t{10} << 30;
  std::set<uint64_t> limits;
  for (const CampaignArm& arm : read_campaign(builtin_campaign(request), "peers").arms) {
    limits.insert(arm.limit.value_or(0));
  }
  EXPECT_EQ(limits, (std::set<uint64_t>{uint64_t{4} << 30, uint64_t{8} << 30}));
  request.memory = uint64_t{2} << 30;
  EXPECT_FALSE(read_campaign(builtin_campaign(request), "peers").arms[0].limit);
  request.llama_server.clear();
  EXPECT_THROW(builtin_campaign(request), Error);
  request.name = "slow";
  EXPECT_THROW(builtin_campaign(request), Error);
  request.name = "arena-sweep";
  request.experts = 0;
  EXPECT_THROW(builtin_campaign(request), Error);
}

class ChildTest : public ::testing::Test {
 protected:
  ChildRequest shell(const std::string& script) const {
    ChildRequest request;
    request.argv = {"sh", "-c", script};
    request.environment = {"PENSTOCK_CHILD=of mine"};
    request.out_path = folder_.path() + "/out";
    request.err_path = folder_.path() + "/err";
    request.timeout_s = 60;
    request.policy = {.period_ms = 10, .fuse = 0, .swap_limit = UINT64_MAX};
    return request;
  }
  std::string out() const { return read_text_file(folder_.path() + "/out"); }
  std::string err() const { return read_text_file(folder_.path() + "/err"); }

  penstock::testing::TemporaryFolder folder_;
};

TEST_F(ChildTest, OutputExitCodeAndEnvironment) {
  Child child(shell("echo \"$PENSTOCK_CHILD\"; echo wrong >&2; exit 7"));
  const ChildReport report = child.wait();
  EXPECT_EQ(report.exit_code, 7);
  EXPECT_EQ(report.state, "error");
  EXPECT_EQ(out(), "of mine\n");
  EXPECT_EQ(err(), "wrong\n");
  EXPECT_GT(report.watchdog.samples, 0u);
}

TEST_F(ChildTest, AProgramThatIsNotThere) {
  ChildRequest request = shell("");
  request.argv = {"/nowhere/at/all"};
  const ChildReport report = Child(request).wait();
  EXPECT_EQ(report.exit_code, 127);
  EXPECT_NE(err().find("No such file"), std::string::npos);
}

TEST_F(ChildTest, TheWatchdogAndTheClockEndIt) {
  ChildRequest request = shell("sleep 600");
  request.timeout_s = 0.2;
  EXPECT_EQ(Child(request).wait().state, "timeout");
  request.timeout_s = 600;
  request.policy.fuse = UINT64_MAX / 2;  // more than any machine has available
  const ChildReport ended = Child(request).wait();
  EXPECT_EQ(ended.state, "watchdog");
  EXPECT_NE(ended.reason.find("available"), std::string::npos);
  request.policy.fuse = 0;
  std::atomic<bool> interrupted{false};
  Child child(request, &interrupted);
  EXPECT_TRUE(child.running());
  interrupted = true;
  EXPECT_EQ(child.wait().state, "interrupted");
  Child server(request);
  server.stop();
  EXPECT_EQ(server.wait().state, "finished");  // servers are told to end
}

TEST_F(ChildTest, APeakIsOfTheChildAlone) {
  // 64 MiB in a shell variable, for a moment.
  const ChildReport report =
      Child(shell("x=$(head -c 33554432 /dev/zero | tr '\\0' 'x'); sleep 0.2; echo ${#x}")).wait();
  EXPECT_EQ(out(), "33554432\n");
  EXPECT_GT(report.peak_anonymous, uint64_t{32} << 20);
  EXPECT_LT(report.peak_anonymous, uint64_t{512} << 20);
}

TEST_F(ChildTest, WhatItStartedIsCountedWithIt) {
  // tail keeps what it read until its input ends: 64 MiB in a process that the shell started.
  const ChildReport report =
      Child(shell("{ head -c 67108864 /dev/zero; sleep 1; } | tail -c 67108864 | wc -c")).wait();
  EXPECT_EQ(out(), "67108864\n");
  EXPECT_GT(report.peak_anonymous, uint64_t{48} << 20);
  EXPECT_GT(report.peak_rss, uint64_t{48} << 20);
}

// Whether the process whose number the child wrote down has ended, within a few seconds.
bool has_ended(const std::string& number) {
  const std::string stat = "/proc/" + number.substr(0, number.find('\n')) + "/stat";
  for (int i = 0; i < 500; ++i) {
    std::ifstream in(stat);
    std::string text;
    if (!std::getline(in, text) || text.find(") Z ") != std::string::npos) return true;
    ::usleep(10000);
  }
  return false;
}

TEST_F(ChildTest, WhatItStartedEndsWithIt) {
  ChildRequest request = shell("sleep 600 & echo $!; wait");
  request.timeout_s = 0.5;
  EXPECT_EQ(Child(request).wait().state, "timeout");
  EXPECT_TRUE(has_ended(out()));
  request.timeout_s = 60;
  request.policy.fuse = UINT64_MAX / 2;  // more than any machine has available
  EXPECT_EQ(Child(request).wait().state, "watchdog");
  EXPECT_TRUE(out().empty() || has_ended(out()));
  // One that is left behind, too.
  EXPECT_EQ(Child(shell("sleep 600 & echo $!")).wait().state, "finished");
  EXPECT_TRUE(has_ended(out()));
  // And one that does not listen, when the child itself is dropped.
  {
    Child dropped(shell("trap '' TERM; sleep 600 & echo $!; wait"));
    while (out().empty()) ::usleep(1000);
  }
  EXPECT_TRUE(has_ended(out()));
}

TEST(ColdStart, EveryFileThatARunReadsIsDropped) {
  const penstock::testing::TemporaryFolder folder;
  const std::string model = penstock::testing::write_tiny(folder.path(), "qwen4exp", {});
  const auto file = [&](const std::string& name) {
    const std::string path = folder.path() + "/" + name;
    std::ofstream(path) << "x";
    return path;
  };
  const std::string pack = file("beside.xpk"), table = file("ngrams.gguf"), prog = file("prog");
  file("unrelated.txt");
  CampaignArm arm;
  arm.options = {"--ngrams=" + table, "--arena-slots", "64", "--x=/nowhere/at/all"};
  arm.command = {prog, "{model}"};
  std::vector<std::string> expected = {model, pack, table, prog};
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(files_of(arm, model), expected);
}

TEST(Peers, LlamaServerSaysItsVersion) {
  EXPECT_EQ(llama_version_in("load\nversion: 1234 (abcdef0)\r\nbuilt with cc\n"), "1234 (abcdef0)");
  EXPECT_EQ(llama_version_in("my version: 9\n"), "");
}

TEST(Peers, AStreamIsKeptLineByLineAndBounded) {
  EventLog log(64);
  EXPECT_TRUE(log.take("data: {\"a\"", 1));
  EXPECT_TRUE(log.take(":1}\r\n\ndata", 2.5));
  EXPECT_EQ(EventLog(log).finish(3), "2.500000 data: {\"a\":1}\n2.500000 \n3.000000 data\n");
  EXPECT_FALSE(log.take(std::string(64, 'x'), 4));
}

TEST_F(ChildTest, AMemoryLimitHolds) {
  const std::string why = why_no_memory_group();
  if (!why.empty()) GTEST_SKIP() << why;
  std::string path;
  {
    const MemoryGroup group(uint64_t{24} << 20);
    path = group.path();
    ChildRequest request = shell("x=$(head -c 134217728 /dev/zero | tr '\\0' 'x'); echo ${#x}");
    request.group = &group;
    const ChildReport report = Child(request).wait();
    EXPECT_NE(out(), "134217728\n");
    EXPECT_GT(group.peak(), uint64_t{1} << 20);
    EXPECT_LE(group.peak(), uint64_t{25} << 20);
  }
  EXPECT_NE(::access(path.c_str(), F_OK), 0);  // removed
}

// A tree as the kernel lays it out; its files do not appear by themselves, so the limit cannot be
// set, which is said.
TEST(MemoryGroup, SaysWhatIsMissing) {
  const penstock::testing::TemporaryFolder root;
  EXPECT_NE(why_no_memory_group(root.path()).find("no memory cgroup"), std::string::npos);
  std::filesystem::create_directories(root.path() + "/proc/self");
  std::filesystem::create_directories(root.path() + "/sys/fs/cgroup/user.slice");
  std::ofstream(root.path() + "/proc/self/mountinfo")
      << "29 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
  std::ofstream(root.path() + "/proc/self/cgroup") << "0::/user.slice\n";
  const std::string why = why_no_memory_group(root.path());
  EXPECT_NE(why.find("memory.max"), std::string::npos) << why;
  EXPECT_NE(why.find("Delegate"), std::string::npos);
  // What was made is gone again, here and above.
  EXPECT_TRUE(std::filesystem::is_empty(root.path() + "/sys/fs/cgroup/user.slice"));
}

}  // namespace
}  // namespace penstock::measure
