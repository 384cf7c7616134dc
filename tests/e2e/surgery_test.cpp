// Pruning and requantising as a user meets them.
#include <signal.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <thread>

#include "base/error.h"
#include "e2e/program.h"
#include "gguf/model.h"
#include "surgery/calibration.h"
#include "surgery/moe_layout.h"

namespace penstock::testing {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

class SurgeryProgram : public Program {
 protected:
  std::string wide_tiny(int n_expert = 32) const {
    TinyOptions options;
    options.matrices = gguf::TypeId::Q8_0;
    options.n_expert = n_expert;
    return write_tiny(folder_.path(), "qwen4exp", options);
  }

  // Statistics by which the experts with high ids are the better ones, expert 0 was never selected,
  // and layer 0 has its worth in few experts.
  std::string write_stats(const std::string& model, const std::string& name = "stats.gguf") const {
    const gguf::Model file = gguf::Model::open(model);
    surgery::Calibration c;
    c.model_id = file.model_id();
    c.model_name = "Tiny";
    c.precision = "fast";
    c.window_tokens = 16;
    c.n_windows = 2;
    c.tokens = 32;
    c.shards = {{0, 1, 2}};
    c.corpus = {{"text.txt", {}, 32}};
    for (const surgery::MoeLayer& layer : surgery::moe_layers(file)) {
      surgery::LayerStats stats;
      stats.layer = layer.layer;
      stats.n_used = static_cast<int>(layer.n_used);
      for (uint64_t e = 0; e < layer.n_expert; ++e) {
        surgery::ExpertSums sums;
        const auto worth = static_cast<double>(e);
        sums.n = e == 0 ? 0 : 4;
        sums.n_windows = e == 0 ? 0 : 1;
        sums.p.add(0.25 + worth / 64);
        if (e != 0) {
          sums.p_selected.add(0.5);
          sums.g.add(1.0);
          sums.a.add(worth);
          sums.ga.add(layer.layer == 0 && e > 24 ? 100 * worth : worth);
          sums.ga2.add(worth * worth);
          sums.max_abs = 1;
        }
        stats.experts.push_back(sums);
      }
      c.even.push_back(stats);
      stats.experts.assign(layer.n_expert, {});
      c.odd.push_back(stats);
    }
    surgery::write_calibration(path(name), c);
    return path(name);
  }

  // Logits of 20 tokens, as bytes.
  std::string logits(const std::string& model) const {
    const Outcome outcome =
        run({"logits", model, "--all", "--out", path("logits"), "--ids",
             write("ids", "11 48 85 122 31 68 105 14 51 5 125 34 71 108 17 54 91 0 37 74")});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return read_all(path("logits"));
  }
};

TEST_F(SurgeryProgram, PruneByStatisticsAndByKeepMap) {
  const std::string model = wide_tiny();
  const std::string stats = write_stats(model);
  const Outcome told =
      run({"prune", model, "--stats", stats, "--keep", "12", "--write-keep-map", path("map.json")});
  ASSERT_EQ(told.code, 0) << told.err;
  expect_words(told.out, {"reap", "12 per layer", "router mass", "mean", "never selected", "0.0"});
  const Json map = Json::parse(read_all(path("map.json")));
  EXPECT_EQ(map["layers"].size(), 8u);
  EXPECT_EQ(map["layers"][3]["kept"], Json({20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31}));
  EXPECT_EQ(map["calibration_tokens"], 32);

  const Outcome made =
      run({"prune", model, "--stats", stats, "--keep", "12", "-o", path("a.gguf")});
  ASSERT_EQ(made.code, 0) << made.err;
  const Outcome again =
      run({"prune", model, "--keep-map", path("map.json"), "-o", path("b.gguf"), "-t", "1"});
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(read_all(path("a.gguf")), read_all(path("b.gguf")));
  const gguf::Model pruned = gguf::Model::open(path("a.gguf"));
  EXPECT_EQ(pruned.metadata().get_u64("qwen4exp.expert_count"), 12u);
  EXPECT_NE(logits(path("a.gguf")), logits(model));

  // A model that has layers of different sizes runs, and knows its keep-map.
  const Outcome shared = run({"prune", model, "--stats", stats, "--keep", "62.5%", "--per-layer",
                              "-o", path("c.gguf"), "--protect-outliers", "--method", "reap-sum"});
  ASSERT_EQ(shared.code, 0) << shared.err;
  const gguf::Model uneven = gguf::Model::open(path("c.gguf"));
  const auto counts = uneven.metadata().get_u64_array("penstock.expert_counts");
  EXPECT_EQ(uneven.metadata().get_u64_array("qwen4exp.expert_count"), counts);
  EXPECT_LT(counts[0], counts[1]);
  EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), uint64_t{0}), 8u * 20);
  EXPECT_EQ(logits(path("c.gguf")).size(), 20u * 128 * 4);
  const Outcome ran = run({"run", "-m", path("c.gguf"), "--ids", path("ids"), "-n", "4", "--temp",
                           "0", "--json", "--ignore-eos", "--profile-out", path("c.json")});
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(Json::parse(read_all(path("c.json")))["keep_map_id"],
            std::string(uneven.metadata().get_string("penstock.keep_map_id")));
  EXPECT_EQ(run({"plan", path("c.gguf"), "--memory", "1G"}).code, 0);
  EXPECT_EQ(run({"pack", path("c.gguf")}).code, 0);
  const Json pack = Json::parse(run({"pack", "info", path("c.xpk"), "--json"}).out);
  EXPECT_EQ(pack["keep_map_id"], std::string(uneven.metadata().get_string("penstock.keep_map_id")));
  EXPECT_EQ(pack["quant_recipe_id"], std::string(64, '0'));
  expect_words(run({"pack", "info", path("c.xpk")}).out, {"pruned"});
}

TEST_F(SurgeryProgram, RefusalsSpeak) {
  const std::string model = wide_tiny();
  const std::string stats = write_stats(model);
  const auto refused = [&](std::vector<std::string> more, int code,
                           const std::vector<std::string>& words) {
    more.insert(more.begin(), {"prune", model});
    const Outcome outcome = run(more);
    EXPECT_EQ(outcome.code, code) << outcome.err;
    expect_words(outcome.err, words);
  };
  refused({"--stats", stats}, 2, {"--keep"});
  refused({"--keep", "12"}, 2, {"--stats", "calibrate"});
  refused({"--stats", stats, "--keep", "2"}, 2, {"every token uses 3"});
  refused({"--stats", stats, "--keep", "33"}, 2, {"layer 0 has 32"});
  refused({"--stats", stats, "--keep", "1.5"}, 2, {"--keep 1.5"});
  refused({"--stats", stats, "--keep", "many"}, 2, {"--keep many"});
  refused({"--stats", stats, "--keep", "8", "--per-layer"}, 2, {"floors"});
  refused({"--stats", stats, "--keep", "12", "--imatrix-out", "x"}, 2, {"--imatrix"});
  refused({"--stats", stats, "--keep", "12", "--profile", "x"}, 2, {"--profile-out"});
  refused({"--stats", path("none"), "--keep", "12"}, 5, {"none"});
  refused({"--keep-map", write("bad.json", "{}")}, 6, {"bad.json", "no keep-map"});
  refused({"--stats", stats, "--keep", "12", "-o", model}, 2, {"is the model itself"});
  refused({"--stats", stats, "--keep", "12", "--experts", "IQ2_XS"}, 2, {"can be read but not"});
  // What is refused leaves the map that was there.
  const std::string kept = write("kept.json", "an older map");
  refused({"--stats", stats, "--keep", "12", "--write-keep-map", kept, "-o", kept}, 2, {"exists"});
  EXPECT_EQ(read_all(kept), "an older map");

  TinyOptions other;
  other.n_expert = 32;
  other.set[".general.name"] = std::string("Another");
  const std::string another = write_tiny(folder_.path(), "qwen4exp", other, "another.gguf");
  const Outcome foreign = run({"prune", another, "--stats", stats, "--keep", "12"});
  EXPECT_EQ(foreign.code, 2);
  expect_words(foreign.err, {"another model"});
  const Outcome taken = run({"prune", another, "--stats", stats, "--keep", "12", "--other-model",
                             "--write-keep-map", path("map.json")});
  EXPECT_EQ(taken.code, 0) << taken.err;
  expect_words(taken.err, {"warning", "another file"});
  const Outcome map = run({"prune", model, "--keep-map", path("map.json")});
  EXPECT_EQ(map.code, 6);
  expect_words(map.err, {"another model", "--other-model"});
  EXPECT_EQ(run({"requantise", model}).code, 2);
  expect_words(run({"requantise", model, "--experts", "Q8_0"}).err, {"has its type already"});
  EXPECT_FALSE(fs::exists(path("out.gguf")));
}

// By statistics of the model before any pruning: the same experts as at once.
TEST_F(SurgeryProgram, PrunedAgainByTheFirstStatistics) {
  const std::string model = wide_tiny();
  const std::string stats = write_stats(model);
  ASSERT_EQ(run({"prune", model, "--keep", "20", "--method", "random", "-o", path("a.gguf")}).code,
            0);
  ASSERT_EQ(run({"prune", path("a.gguf"), "--keep", "16", "--method", "random", "--seed", "2", "-o",
                 path("b.gguf")})
                .code,
            0);
  const std::vector<std::string> again = {"prune", path("b.gguf"), "--stats",     stats, "--keep",
                                          "8",     "-o",           path("c.gguf")};
  const Outcome alone = run(again);
  EXPECT_EQ(alone.code, 2);
  expect_words(alone.err, {"another model"});
  std::vector<std::string> taken = again;
  taken.emplace_back("--other-model");
  const Outcome made = run(taken);
  ASSERT_EQ(made.code, 0) << made.err;
  expect_words(made.err, {"warning", "before", "was pruned"});
  const auto kept = [&](const std::string& name) {
    return gguf::Model::open(path(name)).metadata().get_u64_array("penstock.prune.kept.3");
  };
  // The better experts are those with the higher ids.
  const std::vector<uint64_t> before = kept("b.gguf");
  ASSERT_EQ(before.size(), 16u);
  EXPECT_EQ(kept("c.gguf"), std::vector<uint64_t>(before.end() - 8, before.end()));
  // Of other experts they are refused.
  const Outcome wrong =
      run({"prune", wide_tiny(24), "--stats", stats, "--keep", "8", "--other-model"});
  EXPECT_EQ(wrong.code, 6);
  expect_words(wrong.err, {"stats.gguf", "calibrate this model"});
}

TEST_F(SurgeryProgram, OnePassIsTwo) {
  const std::string model = wide_tiny();
  const std::string stats = write_stats(model);
  const Outcome both = run({"prune", model, "--stats", stats, "--keep", "16", "--experts", "Q4_0",
                            "-o", path("one.gguf"), "--json", path("report.json")});
  ASSERT_EQ(both.code, 0) << both.err;
  ASSERT_EQ(run({"prune", model, "--stats", stats, "--keep", "16", "-o", path("p.gguf")}).code, 0);
  const Outcome second =
      run({"requantize", path("p.gguf"), "--experts", "Q4_0", "-o", path("two.gguf"), "-v"});
  ASSERT_EQ(second.code, 0) << second.err;
  EXPECT_EQ(logits(path("one.gguf")), logits(path("two.gguf")));
  // The source was quantised; the tables give every class, and every tensor with -v.
  expect_words(both.err, {"warning", "quantised already", "Q8_0 (8.5 bpw)"});
  expect_words(both.out, {"routed experts (24)", "Q4_0", "cosine", "M/s"});
  expect_words(second.out, {"blk.7.ffn_up_exps.weight"});
  const Json report = Json::parse(read_all(path("report.json")));
  EXPECT_EQ(report["tensors"].size(), 24u);
  EXPECT_EQ(report["bytes"], fs::file_size(path("one.gguf")));
  EXPECT_NEAR(report["tensors"][0]["relative_rmse"].get<double>(), 0.06, 0.02);
  expect_words(both.out, {" RMSE ", "relative"});
  // The class's is the root of the mean square of its tensors', which are of one size.
  double sum = 0;
  for (const Json& tensor : report["tensors"]) {
    sum += tensor["rmse"].get<double>() * tensor["rmse"].get<double>();
  }
  ASSERT_EQ(report["classes"].size(), 1u);
  EXPECT_GT(sum, 0);
  EXPECT_NEAR(report["classes"][0]["rmse"].get<double>(), std::sqrt(sum / 24), 1e-9);
}

// Killed at any moment: nothing under the final name, nothing that opens, and the next run goes on.
TEST_F(SurgeryProgram, KilledItGoesOn) {
  const std::string model = PENSTOCK_SOURCE_DIR "/models/sample-qwen4exp-q8_0.gguf";
  const auto arguments = [&](const std::string& out) {
    return std::vector<std::string>{"requantise", model,  "-o",      path(out),
                                    "--experts",  "Q4_K", "--dense", "Q6_K",
                                    "-t",         "1",    "--json",  path(out + ".json")};
  };
  ASSERT_EQ(run(arguments("whole.gguf")).code, 0);
  const std::string out = path("out.gguf"), journal = out + ".journal";
  const auto size = [](const std::string& file) {
    std::error_code error;
    const auto bytes = fs::file_size(file, error);
    return error ? uintmax_t{0} : bytes;
  };
  // Signals the run when its journal has so many bytes: every batch adds to it.
  const auto stop_at = [&](uintmax_t bytes, int signal) {
    const pid_t child = start(arguments("out.gguf"));
    for (int wait = 0; wait < 60000 && size(journal) < bytes && !fs::exists(out); ++wait) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ::kill(child, signal);
    return finish(child);
  };
  int n_interrupted = 0;
  for (const uintmax_t bytes : {uintmax_t{1}, uintmax_t{2000}, uintmax_t{6000}}) {
    if (stop_at(bytes, SIGKILL).code != 1000 + SIGKILL) break;  // it was faster
    ++n_interrupted;
    ASSERT_FALSE(fs::exists(out));
    EXPECT_THROW(gguf::Model::open(out + ".partial"), Error);
  }
  EXPECT_GT(n_interrupted, 1);
  const Outcome stopped = stop_at(size(journal) + 1000, SIGINT);
  if (stopped.code != 0) {
    EXPECT_EQ(stopped.code, 130);
    expect_words(stopped.err, {"interrupted", "out.gguf", "the same command goes on", "resuming"});
    EXPECT_FALSE(fs::exists(out));
  }
  if (!fs::exists(out)) {
    const Outcome went_on = run(arguments("out.gguf"));
    ASSERT_EQ(went_on.code, 0) << went_on.err;
    expect_words(went_on.err, {"resuming: ", "tensors"});
    expect_words(went_on.out, {"by an earlier run"});
  }
  EXPECT_TRUE(read_all(out) == read_all(path("whole.gguf")));
  for (const auto& entry : fs::directory_iterator(folder_.path())) {
    const std::string name = entry.path().filename().string();
    EXPECT_FALSE(name.ends_with(".partial") || name.ends_with(".journal")) << name;
  }
  const Json one = Json::parse(read_all(path("whole.gguf.json")));
  const Json two = Json::parse(read_all(path("out.gguf.json")));
  EXPECT_EQ(one["tensors"], two["tensors"]);
  EXPECT_EQ(one["classes"], two["classes"]);
  EXPECT_GT(two["resumed_bytes"], 0);
}

// With --json - nothing else is on standard output.
TEST_F(SurgeryProgram, JsonAlone) {
  const std::string model = wide_tiny();
  const Outcome pruned =
      run({"prune", model, "--stats", write_stats(model), "--keep", "16", "-o", path("p.gguf"),
           "--write-keep-map", path("map.json"), "--experts", "Q4_0", "--json", "-", "-v"});
  ASSERT_EQ(pruned.code, 0) << pruned.err;
  EXPECT_EQ(Json::parse(pruned.out)["files"][0], path("p.gguf"));
  expect_words(pruned.err, {"router mass", "never selected", "cosine", "map.json", "copied"});
  const Outcome requantised =
      run({"requantise", path("p.gguf"), "--experts", "Q8_0", "-o", path("r.gguf"), "--json", "-"});
  ASSERT_EQ(requantised.code, 0) << requantised.err;
  EXPECT_EQ(Json::parse(requantised.out)["tensors"].size(), 24u);
  expect_words(requantised.err, {"cosine"});
}

// Calibration's own importance, for the pruned model and for the types.
TEST_F(SurgeryProgram, ImportanceAndProfilesGoWithTheModel) {
  const std::string model = wide_tiny();
  std::string ids;
  for (int i = 0; i < 64; ++i) ids += std::to_string((37 * i + 11) % 128) + " ";
  const Outcome calibrated = run({"calibrate", model, "--text", write("text.ids", ids), "--window",
                                  "16", "-o", path("s.gguf"), "--importance", "--imatrix-out",
                                  path("i.gguf"), "--profile-out", path("profile.json")});
  ASSERT_EQ(calibrated.code, 0) << calibrated.err;
  const Outcome made =
      run({"prune", model, "--stats", path("s.gguf"), "--keep", "16", "--experts", "Q4_0", "-o",
           path("p.gguf"), "--imatrix", path("i.gguf"), "--imatrix-out", path("ip.gguf"),
           "--profile", path("profile.json"), "--profile-out", path("pp.json")});
  ASSERT_EQ(made.code, 0) << made.err;
  EXPECT_EQ(made.err.find("says nothing"), std::string::npos) << made.err;
  // Pruned first and then requantised with the pruned importance: the same bits.
  ASSERT_EQ(
      run({"prune", model, "--stats", path("s.gguf"), "--keep", "16", "-o", path("q.gguf")}).code,
      0);
  const Outcome after = run({"requantise", path("q.gguf"), "--experts", "Q4_0", "--imatrix",
                             path("ip.gguf"), "--require-imatrix", "-o", path("r.gguf")});
  ASSERT_EQ(after.code, 0) << after.err;
  EXPECT_EQ(logits(path("p.gguf")), logits(path("r.gguf")));
  const Outcome warm = run({"run", "-m", path("p.gguf"), "--ids", path("ids"), "-n", "4", "--temp",
                            "0", "--json", "--ignore-eos", "--profile", path("pp.json")});
  EXPECT_EQ(warm.code, 0) << warm.err;
  // The importance of the whole model does not fit the pruned one.
  const Outcome wrong = run({"requantise", path("q.gguf"), "--experts", "Q4_0", "--imatrix",
                             path("i.gguf"), "-o", path("w.gguf")});
  EXPECT_EQ(wrong.code, 6);
  expect_words(wrong.err, {"i.gguf", "_exps.weight", "another model"});
  const Outcome missing = run({"requantise", path("q.gguf"), "--embedding", "Q4_0", "--imatrix",
                               path("ip.gguf"), "--require-imatrix"});
  EXPECT_EQ(missing.code, 6);
  expect_words(missing.err, {"token_embd.weight"});
}

}  // namespace
}  // namespace penstock::testing
