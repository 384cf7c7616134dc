#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "e2e/program.h"

namespace penstock::testing {
namespace {

using Json = nlohmann::json;

class Cli : public Program {};

TEST_F(Cli, SaysWhatItIsAndHowToUseIt) {
  const Outcome version = run({"--version"});
  EXPECT_EQ(version.code, 0);
  for (const char* word : {"penstock ", "revision", "compiler", "instruction sets", "scalar"}) {
    EXPECT_NE(version.out.find(word), std::string::npos) << word;
  }
  for (const char* command : {"run", "serve", "inspect", "logits", "tokenize", "synth", "pack"}) {
    const Outcome help = run({"help", command});
    EXPECT_EQ(help.code, 0);
    EXPECT_NE(help.out.find("Usage: penstock " + std::string(command)), std::string::npos);
  }
  EXPECT_EQ(run({"help", "nonsense"}).code, 2);
  EXPECT_EQ(run({"run", "--no-such-flag"}).code, 2);
  EXPECT_EQ(run({"--isa", "mmx", "inspect", tiny()}).code, 2);
}

TEST_F(Cli, LogitsAreTheSameBitsWhateverTheSettings) {
  const std::string model = tiny();
  const std::string ids = write("ids", "11 48 85\n122 31 68 105 14 51 5 125 34 71\n");
  std::string reference;
  const std::vector<std::vector<std::string>> variants = {
      {},
      {"--arena-slots", "12", "--io-depth", "1"},
      {"--io", "pread", "-t", "1"},
      {"--io", "buffered", "--prompt-chunk", "5"},
      {"--dense", "map", "--memory", "64M"}};
  for (const std::vector<std::string>& extra : variants) {
    std::vector<std::string> arguments = {"logits", model,   "--ids",       ids,
                                          "--all",  "--out", path("logits")};
    arguments.insert(arguments.end(), extra.begin(), extra.end());
    const Outcome outcome = run(arguments);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const std::string logits = read_all(path("logits"));
    EXPECT_EQ(logits.size(), 13U * 128 * sizeof(float));
    if (reference.empty()) reference = logits;
    EXPECT_EQ(logits, reference);
  }
  const Outcome scalar =
      run({"--isa", "scalar", "logits", model, "--ids", ids, "--all", "--out", path("scalar")});
  EXPECT_EQ(scalar.code, 0) << scalar.err;
  EXPECT_EQ(read_all(path("scalar")), reference);

  const Outcome top = run({"-q", "logits", model, "--ids", ids, "--top", "3"});
  ASSERT_EQ(top.code, 0) << top.err;
  const Json rows = Json::parse(top.out);
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_EQ(rows[0]["position"], 12);
  const auto best = rows[0]["top"][0]["id"].get<size_t>();
  float logit = 0;
  std::memcpy(&logit, reference.data() + (12 * 128 + best) * sizeof(float), sizeof logit);
  EXPECT_FLOAT_EQ(rows[0]["top"][0]["logit"].get<float>(), logit);
}

TEST_F(Cli, RunReportsWhatItDid) {
  const std::string model = tiny();
  const std::string ids = write("ids", "11 48 85 122");
  const auto arguments = [&](const std::string& seed) {
    return std::vector<std::string>{"run",        "-m",     model,    "--ids",         ids,
                                    "-n",         "20",     "--json", "--ignore-eos",  "--temp",
                                    "1",          "--seed", seed,     "--arena-slots", "20",
                                    "--io-depth", "1"};
  };
  const Outcome first = run(arguments("7"));
  ASSERT_EQ(first.code, 0) << first.err;
  const Json a = Json::parse(first.out);
  const Json b = Json::parse(run(arguments("7")).out);
  const Json c = Json::parse(run(arguments("8")).out);
  EXPECT_EQ(a["tokens"].size(), 20U);
  EXPECT_EQ(a["tokens"], b["tokens"]);
  EXPECT_NE(a["tokens"], c["tokens"]);
  EXPECT_EQ(a["stop_reason"], "token limit");
  EXPECT_EQ(a["prompt_tokens"], 4);
  EXPECT_EQ(a["timings"]["prefill"]["tokens"], 4);
  EXPECT_EQ(a["timings"]["decode"]["tokens"], 19);
  const Json& counters = a["counters"];
  EXPECT_EQ(
      counters["uses_first"]["total"].get<int>() + counters["uses_steady"]["total"].get<int>(),
      counters["uses_expected"].get<int>());
  EXPECT_EQ(counters["uses_expected"], 20 * 8 * 3);  // tokens, layers, experts used
  EXPECT_GT(counters["reads_demand"]["bytes"].get<uint64_t>(), 0U);
  EXPECT_EQ(a["plan"]["slots"], 20);
  EXPECT_GT(a["plan"]["measured"]["footprint"].get<uint64_t>(), 0U);
  EXPECT_NE(first.err.find("tokens/s"), std::string::npos);
}

TEST_F(Cli, SavesAndGoesOn) {
  const std::string model = tiny();
  const std::string ids = write("ids", "11 48 85 122");
  const Json whole = Json::parse(
      run({"run", "-m", model, "--ids", ids, "-n", "12", "--json", "--temp", "0", "--ignore-eos"})
          .out);
  const Json first = Json::parse(run({"run", "-m", model, "--ids", ids, "-n", "5", "--json",
                                      "--temp", "0", "--ignore-eos", "--save", path("state")})
                                     .out);
  const Outcome rest = run({"run", "-m", model, "--restore", path("state"), "-n", "7", "--json",
                            "--temp", "0", "--ignore-eos"});
  ASSERT_EQ(rest.code, 0) << rest.err;
  Json joined = first["tokens"];
  const Json second = Json::parse(rest.out);
  for (const Json& token : second["tokens"]) joined.push_back(token);
  EXPECT_EQ(joined, whole["tokens"]);
}

TEST_F(Cli, InterruptedItStillEndsWithItsSummary) {
  const std::string model = tiny();
  const std::string ids = write("ids", "11 48 85 122");
  const pid_t child = start({"run", "-m", model, "--ids", ids, "--ignore-eos", "--ctx", "4000"});
  std::this_thread::sleep_for(std::chrono::milliseconds(700));
  kill(child, SIGINT);
  const Outcome outcome = finish(child);
  // On a fast machine the context may be full by then; both are clean ends.
  EXPECT_TRUE(outcome.code == 0 || outcome.code == 130) << outcome.code << outcome.err;
  EXPECT_NE(outcome.err.find("tokens/s"), std::string::npos) << outcome.err;
}

TEST_F(Cli, ErrorsHaveTheirExitCodes) {
  const std::string model = tiny();
  const std::string ids = write("ids", "11 48");
  const auto code = [&](const std::vector<std::string>& arguments, const char* words) {
    const Outcome outcome = run(arguments);
    EXPECT_NE(outcome.err.find("penstock: error: "), std::string::npos) << outcome.err;
    EXPECT_NE(outcome.err.find(words), std::string::npos) << words << " in: " << outcome.err;
    return outcome.code;
  };
  EXPECT_EQ(code({"logits", model, "--ids", write("bad", "1 two 3")}, "token id"), 2);
  EXPECT_EQ(code({"logits", model, "--ids", write("far", "1 128")}, "128"), 2);
  EXPECT_EQ(code({"logits", model, "--ids", ids, "--memory", "1M"}, "--memory"), 3);
  EXPECT_EQ(code({"logits", path("missing.gguf"), "--ids", ids}, "missing.gguf"), 5);
  EXPECT_EQ(
      code({"inspect", write("lfs.gguf", "version https://git-lfs.github.com/spec/v1\n")}, "LFS"),
      6);
  std::string cut = read_all(model);
  cut.resize(cut.size() / 2);
  EXPECT_EQ(code({"logits", write("cut.gguf", cut), "--ids", ids}, "cut.gguf"), 6);
  EXPECT_EQ(code({"run", "-m", model, "-p", "text"}, "tokenizer"), 7);
}

}  // namespace
}  // namespace penstock::testing
