// penstock sim, as a user meets it: a trace recorded by `run`, replayed to the run's own counters.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "e2e/program.h"

namespace penstock::testing {
namespace {

using Json = nlohmann::json;

class SimProgram : public Program {
 protected:
  Json record(const std::string& model, const std::vector<std::string>& more) const {
    std::vector<std::string> arguments = {"run",
                                          "-m",
                                          model,
                                          "--ids",
                                          write("ids", "3 1 4 1 5 9 2 6 5 3 5"),
                                          "-n",
                                          "40",
                                          "--temp",
                                          "0",
                                          "--ignore-eos",
                                          "-q",
                                          "--json",
                                          "--pack",
                                          "none",
                                          "--read-ahead",
                                          "off",
                                          "--trace-routing",
                                          path("t.xrt")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return Json::parse(outcome.out);
  }
};

TEST_F(SimProgram, ARecordedRunIsReplayedToItsOwnCounters) {
  const Json ran = record(tiny(), {"--arena-slots", "25", "--evict", "lfu"});
  const Outcome outcome =
      run({"sim", path("t.xrt"), "--policy", "lfu,clairvoyant", "--json", "-", "-q"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json sim = Json::parse(outcome.out);
  const Json& counters = ran["counters"];
  const Json& replayed = sim["results"][0];
  EXPECT_EQ(replayed["slots"], ran["plan"]["slots"]);
  for (const char* name : {"uses_first", "uses_steady", "uses_expected", "steps", "tokens",
                           "prompt_experts_touched", "prompt_arena_used", "evict_total"}) {
    EXPECT_EQ(counters[name], replayed[name]) << name;
  }
  EXPECT_GT(replayed["misses_per_token"], 0.0);
  EXPECT_GE(replayed["misses_per_token"], sim["results"][1]["misses_per_token"]);
  EXPECT_TRUE(replayed["estimate"].is_null());  // no speed was measured, none is shown
}

TEST_F(SimProgram, TracesOfDifferentArenasAreNotSummedAsOne) {
  const std::string model = tiny();
  record(model, {"--arena-slots", "25"});
  std::filesystem::rename(path("t.xrt"), path("small.xrt"));
  record(model, {"--arena-slots", "40"});
  const Outcome refused = run({"sim", path("small.xrt"), path("t.xrt")});
  EXPECT_EQ(refused.code, 2);
  expect_words(refused.err, {"--slots", "25", "40", "small.xrt"});
  EXPECT_EQ(run({"sim", path("small.xrt"), path("t.xrt"), "--slots", "25", "-q"}).code, 0);
}

TEST_F(SimProgram, PlansTakeTheirHitRateFromATrace) {
  const std::string model = PENSTOCK_SOURCE_DIR "/models/sample-qwen4exp-q8_0.gguf";
  const Json ran = record(model, {"--arena-slots", "100"});
  const Outcome outcome =
      run({"plan", model, "--arena-slots", "100", "--pack", "none", "--trace", path("t.xrt"),
           "--machine-file", path("machine.json"), "--calibrate-machine", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  // What the run itself found in memory.
  const Json &first = ran["counters"]["uses_first"], &steady = ran["counters"]["uses_steady"];
  const double hits = first["arena"].get<double>() + steady["arena"].get<double>();
  const double uses = first["total"].get<double>() + steady["total"].get<double>();
  bool found = false;
  const Json plan = Json::parse(outcome.out);
  for (const Json& row : plan["speed"]["decode"]) {
    if (row["source"].get<std::string>().find("t.xrt") == std::string::npos) continue;
    found = true;
    EXPECT_DOUBLE_EQ(row["hit_rate"], hits / uses);
  }
  EXPECT_TRUE(found) << outcome.out;
  const std::string other = tiny("qwen3moe");
  const Outcome refused = run({"plan", other, "--trace", path("t.xrt")});
  EXPECT_EQ(refused.code, 2);
  EXPECT_NE(refused.err.find("another model"), std::string::npos) << refused.err;
}

TEST_F(SimProgram, PlotsAndRefusals) {
  record(tiny(), {"--arena-slots", "25"});
  const Outcome plotted =
      run({"sim", path("t.xrt"), "--slots", "sweep", "--sizes", "5", "--profile", "self", "--warm",
           "--disk-gbps", "2", "--compute-ms", "3", "--svg", path("s.svg")});
  EXPECT_EQ(plotted.code, 0) << plotted.err;
  EXPECT_NE(plotted.out.find("in-sample"), std::string::npos);
  EXPECT_NE(read_all(path("s.svg")).find("Tokens per second"), std::string::npos);
  EXPECT_EQ(run({"sim", path("t.xrt"), "--policy", "best"}).code, 2);
  EXPECT_EQ(run({"sim", path("t.xrt"), "--moce", "bonus"}).code, 2);
  EXPECT_EQ(run({"sim", path("t.xrt"), "--slots", "nan"}).code, 2);
  EXPECT_EQ(run({"sim", path("t.xrt"), "--disk-gbps", "2"}).code, 2);
  EXPECT_EQ(run({"sim", path("t.xrt"), "--svg", path("x.svg")}).code, 2);  // one size
  EXPECT_FALSE(std::filesystem::exists(path("x.svg")));
  EXPECT_EQ(run({"sim", write("no.xrt", "hello")}).code, 6);
  EXPECT_EQ(run({"sim", path("absent.xrt")}).code, 5);
}

}  // namespace
}  // namespace penstock::testing
