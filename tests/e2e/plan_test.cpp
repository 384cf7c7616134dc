// penstock plan: what a model would take and how fast it would be, before anything is loaded.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "e2e/program.h"
#include "gguf/model.h"
#include "gguf/writer.h"

namespace penstock::testing {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

const std::string kSample = std::string(PENSTOCK_SOURCE_DIR) + "/models/sample-qwen4exp-q8_0.gguf";

class PlanProgram : public Program {
 protected:
  std::string machine() const { return path("machine.json"); }
  // With a machine file of the test's own.
  std::vector<std::string> plan(const std::string& model,
                                const std::vector<std::string>& more = {}) const {
    std::vector<std::string> arguments = {"plan", model, "--machine-file", machine()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }

  // The sample model with experts `factor` times as wide, whose data are a hole in the file.
  std::string enlarged(uint64_t factor) const {
    constexpr const char* kWidth = "qwen4exp.expert_feed_forward_length";
    const gguf::Model sample = gguf::Model::open(kSample);
    gguf::Writer writer(path("large.gguf"));
    for (const gguf::Entry& entry : sample.metadata().entries()) {
      if (entry.key != kWidth) writer.set_copy(entry);
    }
    writer.set_u32(kWidth, static_cast<uint32_t>(sample.metadata().get_u64(kWidth) * factor));
    uint64_t hole = 0;
    for (const bool banks : {false, true}) {
      for (const gguf::Tensor& tensor : sample.tensors()) {
        std::vector<uint64_t> dims(tensor.ne.begin(), tensor.ne.begin() + tensor.n_dims);
        if (gguf::is_expert_bank(tensor.name) != banks) continue;
        if (!banks) {
          writer.add_tensor(tensor.name, tensor.type, dims);
          continue;
        }
        dims[tensor.name.find("down") == std::string::npos ? 1 : 0] *= factor;
        writer.add_absent_tensor(tensor.name, tensor.type, dims);
        hole += tensor.bytes * factor;
      }
    }
    writer.begin();
    for (const gguf::Tensor& tensor : sample.tensors()) {
      if (!gguf::is_expert_bank(tensor.name)) writer.append(sample.bytes(tensor));
    }
    writer.finish();
    fs::resize_file(path("large.gguf"), fs::file_size(path("large.gguf")) + hole);
    return path("large.gguf");
  }
};

TEST_F(PlanProgram, ShowsEveryTermAndNoSpeedThatWasNotMeasured) {
  const Outcome outcome = run(plan(kSample));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  expect_words(outcome.out, {"held        in an arena (--io auto: every expert has a slot",
                             "dense",
                             "kv",
                             "state",
                             "scratch_decode",
                             "scratch_prompt",
                             "logits",
                             "io",
                             "tables",
                             "threads",
                             "ple",
                             "slack",
                             "arena",
                             "peak, decode",
                             "peak, prompt",
                             "budget",
                             "available",
                             "fuse",
                             "token cycles of 64",
                             "transit slots",
                             "prompts in chunks of 512",
                             "the model's own tensors",
                             "disk",
                             "100.0 %",
                             "not measured",
                             "--calibrate-machine"});
  EXPECT_EQ(outcome.out.find("tokens/s"), std::string::npos) << outcome.out;
  EXPECT_FALSE(fs::exists(machine()));
}

TEST_F(PlanProgram, SaysTheSameAsJson) {
  const Outcome outcome = run(plan(kSample, {"--json", "--memory", "60M", "--ctx", "2048"}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json json = Json::parse(outcome.out);
  EXPECT_EQ(json["fits"], true);
  EXPECT_FALSE(json.contains("remedies"));
  EXPECT_EQ(json["settings"]["n_ctx"], 2048);
  EXPECT_EQ(json["settings"]["prompt_chunk"], 512);
  EXPECT_EQ(json["memory"]["budget"], 60 << 20);
  EXPECT_EQ(json["memory"]["budget_source"], "--memory");
  EXPECT_EQ(json["memory"]["experts"], 512);
  uint64_t sum = 0;
  for (const auto& [name, bytes] : json["memory"]["terms"].items()) sum += bytes.get<uint64_t>();
  EXPECT_EQ(sum, json["memory"]["peak_prefill"].get<uint64_t>());
  EXPECT_GT(json["memory"]["available"].get<uint64_t>(), 0u);
  EXPECT_EQ(json["speed"]["figures"]["missing"].size(), 2u);
  EXPECT_TRUE(json["speed"]["decode"].empty());
  EXPECT_FALSE(json["suggestions"].empty());
  // A run with these settings takes what was planned.
  const Outcome ran = run(
      {"run", "-m", kSample, "--memory", "60M", "--ctx", "2048", "-p", "The", "-n", "1", "--json"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(Json::parse(ran.out)["plan"]["terms"], json["memory"]["terms"]);
}

TEST_F(PlanProgram, ARefusalIsShownWithItsRemedies) {
  const Outcome text = run(plan(kSample, {"--memory", "8M"}));
  EXPECT_EQ(text.code, 3);
  expect_words(text.out, {"dense", "peak, prompt", "budget"});
  expect_words(text.err, {"penstock: error: the model does not fit", "short by", "1. --ctx",
                          "2. --prompt-chunk", "3. --memory"});
  const Outcome outcome = run(plan(kSample, {"--memory", "8M", "--json"}));
  EXPECT_EQ(outcome.code, 3);
  const Json json = Json::parse(outcome.out);
  EXPECT_EQ(json["fits"], false);
  EXPECT_EQ(json["shortfall"].get<uint64_t>(),
            json["memory"]["peak_prefill"].get<uint64_t>() - (8 << 20));
  ASSERT_EQ(json["remedies"].size(), 3u);
  // The third one, followed, helps.
  const auto remedy = json["remedies"][2].get<std::string>();
  const std::string size = remedy.substr(9, remedy.find(' ', 9) - 9);
  EXPECT_EQ(run(plan(kSample, {"--memory", size})).code, 0) << remedy;
  EXPECT_EQ(run(plan(path("missing.gguf"))).code, 5);
  EXPECT_EQ(run(plan(kSample, {"--hit-rate", "101"})).code, 2);
}

TEST_F(PlanProgram, WhatWasMeasuredIsUsedTheNextTime) {
  const Outcome first = run(plan(kSample, {"--arena-slots", "100", "--calibrate-machine"}));
  ASSERT_EQ(first.code, 0) << first.err;
  ASSERT_TRUE(fs::exists(machine()));
  expect_words(first.out, {"tokens/s", "measured 20", "uniformly random routing", "prompt of 512",
                           "reads/token", "if overlapped"});
  const std::string written = read_all(machine());

  const Outcome second =
      run(plan(kSample, {"--arena-slots", "100", "--hit-rate", "87.5", "--json"}));
  ASSERT_EQ(second.code, 0) << second.err;
  EXPECT_EQ(read_all(machine()), written);
  const Json json = Json::parse(second.out);
  EXPECT_TRUE(json["speed"]["figures"]["missing"].empty());
  EXPECT_EQ(json["speed"]["figures"]["decode"]["source"], "measured");
  const Json stored = Json::parse(written);
  EXPECT_EQ(json["speed"]["figures"]["disk"]["bytes_per_s"], stored["disks"][0]["bytes_per_s"]);
  EXPECT_EQ(json["speed"]["figures"]["decode"]["token_s"], stored["models"][0]["token_s"]);
  bool given = false;
  for (const Json& row : json["speed"]["decode"]) {
    if (row["source"] != "--hit-rate") continue;
    given = true;
    EXPECT_EQ(row["hit_rate"], 0.875);
    EXPECT_DOUBLE_EQ(row["misses"].get<double>(), 64 * 0.125);
  }
  EXPECT_TRUE(given);
  // Figures of other settings are no figures of these.
  expect_words(run(plan(kSample, {"-t", "1"})).out, {"not measured: computing"});
  expect_words(run(plan(kSample, {"--io", "buffered"})).out, {"not measured: expert reads"});
}

TEST_F(PlanProgram, AMachineFileThatIsNoneIsReportedAndKept) {
  write("machine.json", "my diary");
  const Outcome outcome = run(plan(kSample));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  expect_words(outcome.out, {"ignored: ", "machine.json", "not measured"});
  EXPECT_EQ(run(plan(kSample, {"--calibrate-machine"})).code, 2);
  EXPECT_EQ(read_all(machine()), "my diary");
}

// A file of more than 50 GB that does not fit, of which only the header may be touched.
TEST_F(PlanProgram, AHugeModelIsPlannedFromItsHeader) {
  const std::string model = enlarged(2048);
  ASSERT_GT(fs::file_size(model), uint64_t{50'000'000'000});
  const pid_t child = start(plan(model, {"--memory", "8M", "--json"}));
  int status = 0;
  rusage usage{};
  ASSERT_EQ(wait4(child, &status, 0, &usage), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 3) << read_all(path("err.0"));
  const Json json = Json::parse(read_all(path("out.0")));
  EXPECT_EQ(json["fits"], false);
  EXPECT_EQ(json["memory"]["experts"], 512);
  // Far less than the arena of the plan, let alone the file: what the program and
  // the header take. KiB; sanitizers have shadow memory of their own.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LT(usage.ru_maxrss, 64 << 10);
#endif
  EXPECT_LT(usage.ru_majflt, 1000);
}

}  // namespace
}  // namespace penstock::testing
