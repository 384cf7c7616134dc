// run --record: a record for every way in which a run can end.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "e2e/program.h"

namespace penstock::testing {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

class RecordProgram : public Program {
 protected:
  std::vector<std::string> recorded(const std::string& model,
                                    const std::vector<std::string>& more) const {
    std::vector<std::string> arguments = {"run",       "-m",           model,      "--ids",
                                          path("ids"), "--ignore-eos", "--temp",   "0",
                                          "--pack",    "none",         "--record", path("runs")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    write("ids", "3 1 4 1 5 9 2 6");
    return arguments;
  }

  std::vector<std::string> records() const {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(path("runs"))) {
      if (entry.is_regular_file()) found.push_back(entry.path());
    }
    return found;
  }
};

TEST_F(RecordProgram, AFinishedRunIsRecordedAndSound) {
  const Outcome ran = run(recorded(tiny(), {"-n", "30", "--arena-slots", "25"}));
  ASSERT_EQ(ran.code, 0) << ran.err;
  ASSERT_EQ(records().size(), 1u);
  const std::string file = records()[0];
  const Outcome verified = run({"record", "verify", file});
  // Sources may differ from the revision here, their difference lies beside the record.
  EXPECT_EQ(verified.code, 0) << verified.out;
  const Json record = Json::parse(read_all(file));
  EXPECT_EQ(record["tokens"].size(), 30u);
  EXPECT_EQ(record["turns"][0]["tokens"].size(), 30u);
  EXPECT_EQ(record["turns"][0]["prompt"]["tokens"], 8);
  EXPECT_EQ(record["outcome"]["state"], "finished");
  EXPECT_EQ(record["argv"][1], "run");
  EXPECT_EQ(record["quality_key"].get<std::string>().size(), 64u);
  EXPECT_EQ(record["lossy"].size(), 0u);
  EXPECT_EQ(record["turns"][0]["prompt"]["truncated"], false);
  // The last sample is of the loaded model, not of what its end left.
  std::vector<std::string> at;
  for (const Json& sample : record["memory"]) at.push_back(sample["at"]);
  EXPECT_EQ(at,
            (std::vector<std::string>{"start", "load", "prefill peak", "after prefill", "end"}));
  EXPECT_GE(record["memory"].back()["footprint"].get<uint64_t>(),
            record["memory"][0]["footprint"].get<uint64_t>() +
                record["plan"]["terms"]["arena"].get<uint64_t>());
  EXPECT_EQ(record["settings"]["kv"], "f16");
  EXPECT_EQ(record["settings"]["verify_every"], 0);
  EXPECT_FALSE(record["settings"].contains("moce_bonus"));
  const std::string out = record["output"]["stdout"]["sha256"];
  EXPECT_EQ(read_all(path("runs/files/" + out)), ran.out);
  // What was printed is what is kept; the line that names the record comes after it.
  const std::string err =
      read_all(path("runs/files/" + record["output"]["stderr"]["sha256"].get<std::string>()));
  EXPECT_EQ(ran.err.compare(0, err.size(), err), 0);
  // One changed digit is found.
  std::string text = read_all(file);
  text[text.find("\"started\":") + 11] ^= 1;
  write("runs/" + fs::path(file).filename().string(), text);
  EXPECT_EQ(run({"record", "verify", file}).code, 6);
}

TEST_F(RecordProgram, RefusedAndInterruptedRunsAreRecordedToo) {
  const std::string model = tiny();
  EXPECT_EQ(run(recorded(model, {"-n", "5", "--memory", "1M"})).code, 3);
  ASSERT_EQ(records().size(), 1u);
  Json record = Json::parse(read_all(records()[0]));
  EXPECT_EQ(record["outcome"]["state"], "error");
  EXPECT_EQ(record["outcome"]["exit_code"], 3);
  EXPECT_NE(record["outcome"]["error"].get<std::string>().find("fit"), std::string::npos);
  EXPECT_EQ(run({"record", "verify", records()[0]}).code, 0);
  fs::remove_all(path("runs"));

  const pid_t child =
      start(recorded(PENSTOCK_SOURCE_DIR "/models/sample-qwen4exp-q8_0.gguf", {"-n", "4000"}), "1");
  while (read_all(path("out.1")).empty()) std::this_thread::yield();
  kill(child, SIGINT);
  EXPECT_EQ(finish(child, "1").code, 130);
  ASSERT_EQ(records().size(), 1u);
  record = Json::parse(read_all(records()[0]));
  EXPECT_EQ(record["outcome"]["state"], "interrupted");
  EXPECT_EQ(record["turns"][0]["stop_reason"], "cancelled");
  EXPECT_GT(record["memory"].back()["footprint"].get<uint64_t>(),
            record["plan"]["terms"]["arena"].get<uint64_t>());
  EXPECT_EQ(run({"record", "verify", records()[0]}).code, 0);
}

TEST_F(RecordProgram, SettingsOfCacheAwareRoutingAreKept) {
  const Outcome ran = run(recorded(tiny(), {"-n", "3", "--arena-slots", "25", "--moce", "bonus",
                                            "--moce-bonus", "0.5", "--kv", "f32"}));
  ASSERT_EQ(ran.code, 0) << ran.err;
  const Json settings = Json::parse(read_all(records()[0]))["settings"];
  EXPECT_EQ(settings["moce_bonus"], 0.5);
  EXPECT_EQ(settings["moce_protect"], 3);
  EXPECT_EQ(settings["kv"], "f32");
}

// One request over a socket; the whole answer.
std::string post(int port, const std::string& path, const std::string& body) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  std::string answer;
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) {
    const std::string request = "POST " + path +
                                " HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
                                "Content-Type: application/json\r\nContent-Length: " +
                                std::to_string(body.size()) + "\r\n\r\n" + body;
    EXPECT_EQ(write(fd, request.data(), request.size()), static_cast<ssize_t>(request.size()));
    char piece[4096];
    for (ssize_t n = read(fd, piece, sizeof piece); n > 0; n = read(fd, piece, sizeof piece)) {
      answer.append(piece, static_cast<size_t>(n));
    }
  }
  close(fd);
  return answer;
}

TEST_F(RecordProgram, ServedRequestsSayWhetherTheTemplateWroteThem) {
  const pid_t child = start({"serve", "-m", PENSTOCK_SOURCE_DIR "/models/sample-qwen4exp-q8_0.gguf",
                             "--port", "0", "--record", path("runs")},
                            "1");
  const std::string mark = "http://127.0.0.1:";
  std::string said;
  while ((said = read_all(path("err.1"))).find("is loaded") == std::string::npos &&
         waitpid(child, nullptr, WNOHANG) == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ASSERT_NE(said.find(mark), std::string::npos) << said;
  const int port = std::stoi(said.substr(said.find(mark) + mark.size()));
  const std::string more = "\"max_tokens\":3,\"temperature\":0}";
  for (const auto& [path, body] : {std::pair{"/v1/completions", "{\"prompt\":\"In the\"," + more},
                                   std::pair{"/v1/chat/completions",
                                             "{\"messages\":[{\"role\":\"user\",\"content\":"
                                             "\"In the\"}]," +
                                                 more}}) {
    EXPECT_NE(post(port, path, body).find(" 200 "), std::string::npos);
  }
  kill(child, SIGTERM);
  EXPECT_EQ(finish(child, "1").code, 0);
  ASSERT_EQ(records().size(), 2u);
  for (const std::string& file : records()) {
    const Json record = Json::parse(read_all(file));
    const bool chat = record["settings"]["request"].get<std::string>().starts_with("chat");
    EXPECT_EQ(record["turns"][0]["prompt"]["chat_template"], chat);
    EXPECT_EQ(record["turns"][0]["prompt"]["truncated"], false);
    EXPECT_EQ(run({"record", "verify", file}).code, 0);
  }
}

TEST_F(RecordProgram, AKilledRunLeavesItsUnfinishedRecord) {
  const pid_t child =
      start(recorded(PENSTOCK_SOURCE_DIR "/models/sample-qwen4exp-q8_0.gguf", {"-n", "4000"}), "1");
  while (read_all(path("out.1")).empty()) std::this_thread::yield();
  kill(child, SIGKILL);
  finish(child, "1");
  ASSERT_EQ(records().size(), 1u);
  EXPECT_NE(records()[0].find(".unfinished.json"), std::string::npos);
  EXPECT_EQ(Json::parse(read_all(records()[0]))["outcome"]["state"], "running");
}

TEST_F(RecordProgram, AFolderThatCannotBeIsRefused) {
  write("runs", "a file");
  EXPECT_EQ(run(recorded(tiny(), {"-n", "2"})).code, 5);
}

}  // namespace
}  // namespace penstock::testing
