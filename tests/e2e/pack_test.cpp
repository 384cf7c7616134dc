// Packs as a user meets them: made, killed, checked, found, damaged, pulled away.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "e2e/program.h"

namespace penstock::testing {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

class PackProgram : public Program {
 protected:
  // Tokens by greedy decoding with an arena that must read all the time.
  static std::vector<std::string> greedy(const std::string& model, const std::string& ids,
                                         const std::vector<std::string>& more = {}) {
    // Without read-ahead every read is one that somebody waits for: the counts are exact.
    std::vector<std::string> arguments = {
        "run", "-m",     model,          "--ids",         ids,  "-n",         "25", "--temp",
        "0",   "--json", "--ignore-eos", "--arena-slots", "20", "--io-depth", "1",  "--read-ahead",
        "off"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  Json json(const std::vector<std::string>& arguments) const {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.code == 0 ? Json::parse(outcome.out) : Json();
  }
  std::string ids() const { return write("ids", "11 48 85 122"); }

  // Starts a run that has loaded everything and waits for its prompt, calls `meanwhile`, and gives
  // it the prompt.
  Outcome interfere(const std::string& model, const std::vector<std::string>& more,
                    const std::function<void()>& meanwhile) const {
    const std::string pipe = path("pipe");
    ::unlink(pipe.c_str());
    EXPECT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
    const pid_t child = start(greedy(model, pipe, more));
    const int fd = ::open(pipe.c_str(), O_WRONLY);  // returns when the program opens it
    meanwhile();
    EXPECT_EQ(::write(fd, "11 48 85 122", 12), 12);
    ::close(fd);
    return finish(child);
  }
};

TEST_F(PackProgram, IsMadeCheckedAndFoundByIdentity) {
  const std::string model = tiny();
  const Json direct = json(greedy(model, ids()));
  EXPECT_TRUE(direct["experts"]["pack"].is_null());
  EXPECT_EQ(direct["counters"]["reads_demand"]["reads"].get<int>() +
                direct["counters"]["reads_prompt"]["reads"].get<int>(),
            3 * direct["counters"]["experts_read"].get<int>());

  const std::string pack = path("elsewhere.xpk");
  const Outcome made = run({"pack", model, "-o", pack, "--align", "4K"});
  ASSERT_EQ(made.code, 0) << made.err;
  expect_words(made.out, {pack, "experts", "MB/s"});
  expect_words(run({"pack", model, "-o", pack, "--align", "4K"}).out, {"already"});
  const Outcome checked = run({"pack", "verify", pack, "-m", model});
  EXPECT_EQ(checked.code, 0) << checked.err;
  expect_words(checked.out, {"all sound", "was made from"});
  const Json info = json({"pack", "info", pack, "--json"});
  EXPECT_EQ(info["layers"].size(), 8U);
  EXPECT_EQ(info["align"], 4096);
  EXPECT_EQ(info["metadata"]["source"][0]["file"], "qwen4exp.gguf");
  expect_words(run({"pack", "info", pack}).out, {"complete", "rows as in GGUF"});

  const Json packed = json(greedy(model, ids(), {"--verify", "all"}));
  EXPECT_EQ(packed["experts"]["pack"]["path"], pack);
  EXPECT_EQ(packed["experts"]["pack"]["overridden"], "");
  EXPECT_EQ(packed["tokens"], direct["tokens"]);
  const Json& counters = packed["counters"];
  EXPECT_EQ(counters["records_verified"], counters["experts_read"]);
  EXPECT_GT(counters["reads_demand"]["reads"].get<int>(), 0);
  EXPECT_EQ(counters["reads_demand"]["bytes"].get<uint64_t>(),
            counters["reads_demand"]["reads"].get<uint64_t>() *
                info["layers"][0]["stride"].get<uint64_t>());
  EXPECT_TRUE(json(greedy(model, ids(), {"--pack", "none"}))["experts"]["pack"].is_null());

  TinyOptions other;
  other.matrices = gguf::TypeId::Q8_0;
  other.set[".general.name"] = std::string("another");
  const std::string another = write_tiny(folder_.path(), "qwen4exp", other, "another.gguf");
  EXPECT_TRUE(json(greedy(another, ids()))["experts"]["pack"].is_null());
  const Outcome refused = run(greedy(another, ids(), {"--pack", pack}));
  EXPECT_EQ(refused.code, 6);
  expect_words(refused.err, {pack, "another", "--pack none"});
  EXPECT_EQ(run({"pack", "verify", pack, "-m", another}).code, 6);
  const Outcome forced = run(greedy(another, ids(), {"--pack", pack, "--pack-unchecked"}));
  EXPECT_EQ(forced.code, 0) << forced.err;
  EXPECT_NE(Json::parse(forced.out)["experts"]["pack"]["overridden"], "");
  expect_words(forced.err, {"NOT CHECKED"});
  EXPECT_EQ(run(greedy(another, ids(), {"--verify", "all"})).code, 2);
}

TEST_F(PackProgram, TheSameBitsInEveryMode) {
  const std::string model = tiny();
  const std::string token_ids = write("ids", "11 48 85 122 31 68 105 14 51 5 125 34 71");
  ASSERT_EQ(run({"pack", model, "--dense-out", path("dense.gguf")}).code, 0);
  std::string reference;
  for (const auto& [file, pack] : {std::pair{model, std::string("none")},
                                   {model, std::string("auto")},
                                   {path("dense.gguf"), path("qwen4exp.xpk")}}) {
    for (const std::vector<std::string>& extra : std::vector<std::vector<std::string>>{
             {},
             {"--arena-slots", "12", "--io-depth", "1"},
             {"--io", "uring", "--arena-slots", "40"},
             {"--io", "pread", "-t", "1", "--arena-slots", "30"},
             {"--io", "buffered", "--prompt-chunk", "5", "--arena-slots", "30"}}) {
      std::vector<std::string> arguments = {"logits", file,           "--ids",  token_ids, "--all",
                                            "--out",  path("logits"), "--pack", pack};
      arguments.insert(arguments.end(), extra.begin(), extra.end());
      const Outcome outcome = run(arguments);
      ASSERT_EQ(outcome.code, 0) << outcome.err;
      const std::string logits = read_all(path("logits"));
      if (reference.empty()) reference = logits;
      EXPECT_EQ(logits, reference) << file << " " << pack;
    }
  }
  EXPECT_EQ(reference.size(), 13U * 128 * sizeof(float));
  const Outcome alone = run({"logits", path("dense.gguf"), "--ids", token_ids, "--pack", "none"});
  EXPECT_EQ(alone.code, 6);
  expect_words(alone.err, {"dense.gguf", "_exps.weight", "--pack FILE"});
}

TEST_F(PackProgram, DamageIsFoundByVerifyAndByVerifiedRuns) {
  const std::string model = tiny();
  const std::string pack = path("qwen4exp.xpk");
  ASSERT_EQ(run({"pack", model}).code, 0);
  const std::string good = read_all(pack);
  const Json info = json({"pack", "info", pack, "--json"});
  std::string bytes = good;
  for (const Json& layer : info["layers"]) {  // every record
    for (uint64_t e = 0; e < layer["n_expert"].get<uint64_t>(); ++e) {
      bytes[layer["base_off"].get<uint64_t>() + e * layer["stride"].get<uint64_t>() + 7] ^= 2;
    }
  }
  write("qwen4exp.xpk", bytes);
  const Outcome checked = run({"pack", "verify", pack});
  EXPECT_EQ(checked.code, 6);
  const std::string all = std::to_string(info["records"].get<int>());
  expect_words(checked.err, {pack, all + " of " + all + " records are damaged"});
  expect_words(checked.out, {"expert 0 of layer", "checksum"});
  const Outcome ran = run(greedy(model, ids(), {"--verify", "all"}));
  EXPECT_EQ(ran.code, 6);
  expect_words(ran.err, {pack, "damaged", "pack verify"});

  write("qwen4exp.xpk", good.substr(0, good.size() / 2));
  EXPECT_EQ(run({"pack", "verify", pack}).code, 6);
  EXPECT_EQ(run(greedy(model, ids(), {"--pack", pack})).code, 6);
  const Outcome passed_over = run(greedy(model, ids()));
  EXPECT_EQ(passed_over.code, 0);
  expect_words(passed_over.err, {"not used", pack});
}

TEST_F(PackProgram, KilledAtAnyMomentItGoesOn) {
  const std::string model = PENSTOCK_SOURCE_DIR "/models/sample-qwen4exp-q8_0.gguf";
  const std::string pack = path("sample.xpk");
  const std::vector<std::string> arguments = {"pack", model, "-o", pack};
  const auto started = std::chrono::steady_clock::now();
  ASSERT_EQ(run(arguments).code, 0);
  const auto whole = std::chrono::steady_clock::now() - started;
  const std::string bytes = read_all(pack);
  fs::remove(pack);
  int killed = 0;
  constexpr int kRounds = 12;
  for (int round = 0; round < kRounds; ++round) {
    const pid_t child = start(arguments);
    std::this_thread::sleep_for(whole * round / kRounds);
    kill(child, SIGKILL);
    killed += finish(child).code == 1000 + SIGKILL ? 1 : 0;
    // Either nothing under the name, or all of it.
    if (fs::exists(pack)) {
      EXPECT_TRUE(read_all(pack) == bytes);
      fs::remove(pack);
    }
  }
  EXPECT_GT(killed, 0);
  const Outcome last = run(arguments);
  EXPECT_EQ(last.code, 0) << last.err;
  EXPECT_TRUE(read_all(pack) == bytes);
  EXPECT_FALSE(fs::exists(pack + ".partial"));
  EXPECT_EQ(run({"pack", "verify", pack, "-m", model}).code, 0);
}

TEST_F(PackProgram, InterruptedItSaysHowFarItIs) {
  const std::string model = PENSTOCK_SOURCE_DIR "/models/sample-qwen4exp-q8_0.gguf";
  const pid_t child = start({"pack", model, "-o", path("sample.xpk")});
  while (!fs::exists(path("sample.xpk.partial"))) {
    if (fs::exists(path("sample.xpk"))) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  kill(child, SIGINT);
  const Outcome outcome = finish(child);
  if (outcome.code == 0) GTEST_SKIP() << "it was faster";
  EXPECT_EQ(outcome.code, 130);
  expect_words(outcome.err, {"goes on"});
  EXPECT_EQ(run({"pack", model, "-o", path("sample.xpk")}).code, 0);
}

TEST_F(PackProgram, TwoProcessesShareOne) {
  const std::string model = tiny();
  ASSERT_EQ(run({"pack", model}).code, 0);
  const Json alone = json(greedy(model, ids()));
  const std::vector<std::string> arguments = greedy(model, ids(), {"--verify", "all"});
  const pid_t a = start(arguments, "a");
  const pid_t b = start(arguments, "b");
  for (const Outcome& outcome : {finish(a, "a"), finish(b, "b")}) {
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const Json run = Json::parse(outcome.out);
    EXPECT_EQ(run["tokens"], alone["tokens"]);
    EXPECT_FALSE(run["experts"]["pack"].is_null());
  }
}

TEST_F(PackProgram, MemoryFileSystemsAreReportedAsBuffered) {
  struct statfs info {};
  constexpr uint64_t kTmpfs = 0x01021994;
  if (::statfs("/dev/shm", &info) != 0 || static_cast<uint64_t>(info.f_type) != kTmpfs) {
    GTEST_SKIP() << "/dev/shm is no tmpfs here";
  }
  const std::string model = tiny();
  const std::string pack = "/dev/shm/penstock_pack_test." + std::to_string(::getpid()) + ".xpk";
  EXPECT_EQ(run({"pack", model, "-o", pack}).code, 0);
  const Outcome outcome = run(greedy(model, ids(), {"--pack", pack}));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  fs::remove(pack);
  expect_words(outcome.err, {"buffered", "tmpfs"});
  const Json io = Json::parse(outcome.out)["experts"]["io"];
  EXPECT_EQ(io["direct"], false);
  EXPECT_EQ(io["proven"], false);
  EXPECT_EQ(io["file_system"], "tmpfs");
  // The n-gram rows stay in the model, wherever that lies.
  const Json direct = json(greedy(model, ids(), {"--pack", "none"}));
  EXPECT_EQ(Json::parse(outcome.out)["experts"]["rows_io"]["file_system"],
            direct["experts"]["io"]["file_system"]);
  EXPECT_EQ(Json::parse(outcome.out)["tokens"], json(greedy(model, ids()))["tokens"]);
}

TEST_F(PackProgram, FilesThatChangeUnderARunEndItOrDoNotMatter) {
  const std::string model = tiny();
  ASSERT_EQ(run({"pack", model, "-o", path("kept.xpk")}).code, 0);
  const std::string model_bytes = read_all(model);
  const std::string pack_bytes = read_all(path("kept.xpk"));
  const Json reference = json(greedy(model, ids(), {"--pack", "none"}));
  for (const bool packed : {false, true}) {
    const std::string pack = packed ? write("used.xpk", pack_bytes) : "none";
    const std::vector<std::string> more = {"--pack", pack};
    const std::string& streamed = packed ? pack : model;
    const auto restore = [&] {
      write("qwen4exp.gguf", model_bytes);
      if (packed) write("used.xpk", pack_bytes);
    };
    // Cut short: a read of an expert finds the end.
    Outcome outcome = interfere(model, more, [&] { fs::resize_file(streamed, 8192); });
    EXPECT_EQ(outcome.code, 5) << outcome.err;
    expect_words(outcome.err, {"penstock: error:", streamed});
    restore();
    // Nothing left of the model: its mapping has no pages any more.
    outcome = interfere(model, more, [&] { fs::resize_file(model, 0); });
    EXPECT_EQ(outcome.code, 5) << outcome.err;
    expect_words(outcome.err, {"penstock: error:", model});
    restore();
    // Written to in place.
    outcome = interfere(model, more, [&] {
      const int fd = ::open(streamed.c_str(), O_WRONLY);
      EXPECT_EQ(::pwrite(fd, "x", 1, static_cast<off_t>(fs::file_size(streamed) - 1)), 1);
      ::close(fd);
    });
    EXPECT_EQ(outcome.code, 5) << outcome.err;
    expect_words(outcome.err, {streamed, "written to", "cannot be relied on"});
    restore();
    // Replaced by another file of the name, and removed: the run has the one it opened.
    for (const bool removed : {false, true}) {
      outcome = interfere(model, more, [&] {
        for (const std::string& file : {model, streamed}) {
          if (removed) {
            fs::remove(file);
          } else {
            fs::rename(write("new", "another file"), file);
          }
        }
      });
      EXPECT_EQ(outcome.code, 0) << outcome.err;
      EXPECT_EQ(Json::parse(outcome.out)["tokens"], reference["tokens"]);
      fs::remove(model);  // new files: the old ones' times are in the way of nothing
      fs::remove(pack);
      restore();
    }
  }
}

}  // namespace
}  // namespace penstock::testing
