// calibrate, eval and recipe as a user meets them, on the sample model.
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/digest.h"
#include "base/hash.h"
#include "e2e/program.h"
#include "gguf/model.h"
#include "measure/record_verify.h"

namespace penstock::testing {
namespace {

class Quality : public Program {
 protected:
  const std::string model_ = std::string(PENSTOCK_SOURCE_DIR) + "/models/sample-qwen4exp-q8_0.gguf";
  const std::string text_ = std::string(PENSTOCK_SOURCE_DIR) + "/models/eval/scripture.txt";

  std::string excerpt(const char* name, size_t first, size_t bytes) const {
    return write(name, read_all(text_).substr(first, bytes));
  }
  // Of a folder that holds one.
  static nlohmann::json only_record(const std::string& folder) {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (entry.path().extension() == ".json") {
        return nlohmann::json::parse(std::ifstream(entry.path()));
      }
    }
    return nullptr;
  }
  std::vector<std::string> with_store(std::vector<std::string> arguments) const {
    arguments.insert(arguments.end(), {"--quality-dir", path("quality")});
    return arguments;
  }
};

TEST_F(Quality, ShardsOfACalibrationGiveTheWhole) {
  const std::string text = excerpt("text.txt", 0, 6000);
  const std::vector<std::string> base = {"calibrate", model_, "--text", text, "--window", "128"};
  const auto calibrate = [&](const std::string& out, std::vector<std::string> more) {
    std::vector<std::string> arguments = base;
    arguments.insert(arguments.end(), {"-o", path(out)});
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
  };
  calibrate("whole", {"--imatrix-out", path("im-whole"), "--profile-out", path("profile.json")});
  calibrate("p0", {"--importance", "--shard", "0/2", "--arena-slots", "80"});
  calibrate("p1", {"--importance", "--shard", "1/2", "--prompt-chunk", "256"});
  EXPECT_EQ(run({"stats", "merge", path("p1"), path("p0"), "-o", path("merged"), "--imatrix-out",
                 path("im-merged")})
                .code,
            0);
  EXPECT_EQ(read_all(path("im-whole")), read_all(path("im-merged")));
  EXPECT_TRUE(read_all(path("whole")) == read_all(path("merged")));
  EXPECT_EQ(
      run({"run", "-m", model_, "--profile", path("profile.json"), "-p", "And", "-n", "2"}).code,
      0);

  // Of another model; without text; a window that does not fit.
  EXPECT_EQ(run({"stats", "merge", path("p0"), path("p0"), "-o", path("x")}).code, 2);
  EXPECT_EQ(run({"stats", "info", model_}).code, 6);
  std::vector<std::string> wrong = base;
  wrong.insert(wrong.end(), {"-o", path("x"), "--shard", "2/2"});
  EXPECT_EQ(run(wrong).code, 2);
  const Outcome empty =
      run({"calibrate", model_, "--text", write("empty.txt", ""), "-o", path("x")});
  EXPECT_EQ(empty.code, 2);
  EXPECT_NE(empty.err.find("no text"), std::string::npos) << empty.err;
}

TEST_F(Quality, KldSaysWhatTheModelLost) {
  const std::string text = excerpt("text.txt", 8000, 9000);
  const Outcome first = run(with_store({"eval", "perplexity", model_, "--text", text, "--window",
                                        "128", "--base-out", path("base"), "--json"}));
  ASSERT_EQ(first.code, 0) << first.err;
  const auto perplexity = nlohmann::json::parse(first.out);
  EXPECT_EQ(perplexity["kind"], "perplexity");

  ASSERT_EQ(run({"requantise", model_, "-o", path("q2.gguf"), "--experts", "Q2_0"}).code, 0);
  const Outcome second =
      run(with_store({"eval", "kld", path("q2.gguf"), "--base", path("base"), "--json"}));
  ASSERT_EQ(second.code, 0) << second.err;
  const auto kld = nlohmann::json::parse(second.out);
  EXPECT_DOUBLE_EQ(kld["ppl_base"].get<double>(), kld["ppl_base"].get<double>());
  EXPECT_NEAR(kld["ppl_base"].get<double>(), perplexity["ppl"].get<double>(),
              1e-3 * perplexity["ppl"].get<double>());
  EXPECT_GT(kld["mean_kld"].get<double>(), 0.01);
  EXPECT_LT(kld["same_top"].get<double>(), 1.0);

  // The base as a model: the same figures.
  const Outcome third = run(with_store({"eval", "kld", path("q2.gguf"), "--base", model_, "--text",
                                        text, "--window", "128", "--json"}));
  ASSERT_EQ(third.code, 0) << third.err;
  EXPECT_EQ(nlohmann::json::parse(third.out)["mean_kld"], kld["mean_kld"]);

  // `run` finds what was measured, and says so when nothing was.
  setenv("XDG_DATA_HOME", path("data").c_str(), 1);
  const std::vector<std::string> go = {"run", "-m", path("q2.gguf"), "-p", "And", "-n", "2"};
  EXPECT_NE(run(go).err.find("quality: unmeasured"), std::string::npos);
  ASSERT_EQ(run({"eval", "kld", path("q2.gguf"), "--base", path("base")}).code, 0);
  std::vector<std::string> recorded = go;
  recorded.insert(recorded.end(), {"--record", path("records")});
  const Outcome known = run(recorded);
  EXPECT_NE(known.err.find("mean KLD"), std::string::npos) << known.err;
  // One tier is no headline.
  EXPECT_NE(known.err.find("quality: incomplete: no tasks"), std::string::npos) << known.err;
  const auto run_record = only_record(path("records"));
  EXPECT_EQ(run_record["lossy"], nlohmann::json::array({"requantised"}));
  const gguf::Model requantised = gguf::Model::open(path("q2.gguf"));
  std::string steps;
  for (const auto step : requantised.metadata().get_string_array("penstock.requantise.steps")) {
    steps += step;
  }
  EXPECT_EQ(run_record["inputs"]["quant_recipe_id"], hex(sha256(steps)));
  unsetenv("XDG_DATA_HOME");

  // The base of another tokenizer: its header says so, and its checksums fit.
  std::string other = read_all(path("base"));
  const size_t id = other.find("\"tokenizer_id\":\"") + std::string("\"tokenizer_id\":\"").size();
  other[id] = other[id] == '0' ? '1' : '0';
  const size_t end = other.find('}') + 1;
  const auto header = nlohmann::json::parse(other.substr(16, end - 16));
  const size_t summed = end + header["n_tokens"].get<size_t>() * sizeof(int32_t);
  const uint64_t sum = xxh64(std::as_bytes(std::span(other).first(summed)));
  other.replace(summed, sizeof sum, reinterpret_cast<const char*>(&sum), sizeof sum);
  const Outcome foreign =
      run(with_store({"eval", "kld", path("q2.gguf"), "--base", write("foreign", other)}));
  EXPECT_EQ(foreign.code, 2);
  expect_words(foreign.err, {"another tokenizer"});

  // Too little text, another text than the base's, no base at all.
  EXPECT_EQ(run(with_store({"eval", "perplexity", model_, "--text", excerpt("s.txt", 0, 2000),
                            "--window", "128"}))
                .code,
            2);
  EXPECT_EQ(run(with_store({"eval", "kld", model_, "--base", path("base"), "--text",
                            excerpt("o.txt", 0, 9000), "--window", "128"}))
                .code,
            2);
  EXPECT_EQ(run({"eval", "kld", model_, "--base", text, "--text", text}).code, 6);
}

TEST_F(Quality, APartIsNoMeasurement) {
  const std::string text = excerpt("text.txt", 8000, 9000);
  const auto shard = [&](const std::string& which, const std::string& out) {
    return run(with_store({"eval", "perplexity", model_, "--text", text, "--window", "128",
                           "--shard", which, "--scores", path(out), "--held-out-from", text}))
        .code;
  };
  ASSERT_EQ(shard("0/2", "p0"), 0);
  ASSERT_EQ(shard("1/2", "p1"), 0);
  const Outcome partial = run(with_store({"eval", "merge", path("p0")}));
  EXPECT_EQ(partial.code, 2);
  expect_words(partial.err, {"windows are scored", "--scores"});
  EXPECT_EQ(run(with_store({"eval", "merge", path("p0"), "--scores", path("joined")})).code, 0);
  EXPECT_FALSE(std::filesystem::exists(path("quality")));
  const Outcome whole = run(with_store({"eval", "merge", path("p1"), path("joined"), "--json"}));
  ASSERT_EQ(whole.code, 0) << whole.err;
  const auto json = nlohmann::json::parse(whole.out);
  EXPECT_EQ(json["windows"], json["windows_in_text"]);
  EXPECT_GT(json["overlap"]["shared"], 0);  // what each shard said stays
  EXPECT_TRUE(std::filesystem::exists(path("quality")));

  const std::vector<std::string> bent = {
      "eval",        "perplexity", model_,     "--text",        text,  "--window",         "128",
      "--step-mode", "--moce",     "bonus",    "--arena-slots", "128", "--moce-residency", "epoch",
      "--shard",     "0/2",        "--scores", path("x")};
  const Outcome refused = run(with_store(bent));
  EXPECT_EQ(refused.code, 2);
  expect_words(refused.err, {"cache-aware routing", "--shard"});
}

TEST_F(Quality, TasksOfShardsAndOfTwoModels) {
  std::string tasks = read_all(std::string(PENSTOCK_SOURCE_DIR) + "/models/eval/tasks.jsonl");
  size_t end = 0;
  for (int line = 0; line < 4; ++line) end = tasks.find('\n', end) + 1;
  const std::string file = write("tasks.jsonl", tasks.substr(0, end));
  const auto eval = [&](std::vector<std::string> more, const std::string& out) {
    std::vector<std::string> words = with_store(
        {"eval", "tasks", model_, "--tasks", file, "--max-tokens", "16", "--json", "--answers"});
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = run(words);
    write(out, outcome.out);
    return outcome;
  };
  ASSERT_EQ(eval({"--shard", "0/2"}, "t0").code, 0);
  ASSERT_EQ(eval({"--shard", "1/2"}, "t1").code, 0);
  const Outcome partial = run(with_store({"eval", "merge", path("t0")}));
  EXPECT_EQ(partial.code, 2);
  expect_words(partial.err, {"shard 1/2 is missing"});
  EXPECT_FALSE(std::filesystem::exists(path("quality")));
  ASSERT_EQ(eval({}, "whole").code, 0);
  const Outcome merged = run(
      with_store({"eval", "merge", path("t1"), path("t0"), "--json", "--against", path("whole")}));
  ASSERT_EQ(merged.code, 0) << merged.err;
  const auto json = nlohmann::json::parse(merged.out);
  EXPECT_EQ(json["n"], 4);
  EXPECT_EQ(json["accuracy"], nlohmann::json::parse(read_all(path("whole")))["accuracy"]);
  EXPECT_EQ(json["paired"]["n"], 4);
  EXPECT_EQ(json["paired"]["difference"], 0.0);
  EXPECT_EQ(json["paired"]["p_value"], 1.0);
  const Outcome other = run(with_store(
      {"eval", "merge", path("t1"), path("t0"), "--against", write("other", "{\"answers\": []}")}));
  EXPECT_EQ(other.code, 2);
  expect_words(other.err, {"other tasks"});
  // What depends on the disk's timing is no measurement.
  const Outcome live = eval({"--moce", "bonus", "--arena-slots", "128"}, "live");
  EXPECT_EQ(live.code, 2);
  expect_words(live.err, {"--moce-residency epoch"});
}

TEST_F(Quality, TasksAreJudged) {
  std::string tasks = read_all(std::string(PENSTOCK_SOURCE_DIR) + "/models/eval/tasks.jsonl");
  size_t end = 0;
  for (int line = 0; line < 6; ++line) end = tasks.find('\n', end) + 1;
  const std::string file = write("tasks.jsonl", tasks.substr(0, end));
  const Outcome outcome =
      run(with_store({"eval", "tasks", model_, "--tasks", file, "--max-tokens", "32", "--json",
                      "--answers", "--record", path("records")}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto json = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(json["n"], 6);
  EXPECT_EQ(json["answers"].size(), 6u);
  for (const auto& entry : std::filesystem::directory_iterator(path("records"))) {
    if (entry.path().extension() != ".json") continue;
    const Outcome verified = run({"record", "verify", entry.path().string()});
    EXPECT_EQ(verified.code, 0) << verified.out;
    EXPECT_EQ(nlohmann::json::parse(std::ifstream(entry.path()))["evaluation"]["accuracy"],
              json["accuracy"]);
  }
  EXPECT_EQ(run(with_store({"eval", "tasks", model_, "--tasks", write("no.jsonl", "{}\n")})).code,
            6);
}

TEST_F(Quality, RecipesRunOnceAndGoOn) {
  const std::string recipe = write(
      "r.toml", "[source]\nmodel = \"" + model_ + "\"\n[calibrate]\ntext = \"" +
                    excerpt("c.txt", 0, 4000) + "\"\nwindow = 128\n[evaluate]\ntext = \"" +
                    excerpt("e.txt", 8000, 9000) +
                    "\"\nwindow = 128\n[[arm]]\nname = \"half\"\nkeep = 0.5\nexperts = \"Q4_0\"\n");
  const Outcome dry = run({"recipe", recipe, "--dry-run"});
  EXPECT_EQ(dry.code, 0);
  EXPECT_NE(dry.out.find("penstock prune"), std::string::npos);
  setenv("XDG_DATA_HOME", path("data").c_str(), 1);
  const Outcome first = run({"recipe", recipe});
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_NE(first.out.find("| half | exact |"), std::string::npos) << first.out;
  const Outcome again = run({"recipe", recipe});
  EXPECT_EQ(again.out, first.out);
  EXPECT_EQ(again.err.find("step 1 of"), std::string::npos) << again.err;
  // What is gone is made again, and only what depends on what has changed.
  std::remove(path("r.work/half.gguf").c_str());
  const Outcome mended = run({"recipe", recipe});
  EXPECT_EQ(mended.out, first.out);
  EXPECT_NE(mended.err.find("prune"), std::string::npos);
  EXPECT_EQ(mended.err.find("calibrate"), std::string::npos) << mended.err;
  // What another build of the program has made is made again, all of it; or taken and named.
  const std::string other = path("other-build");
  std::filesystem::copy_file(PENSTOCK_PROGRAM, other);
  std::ofstream(other, std::ios::binary | std::ios::app) << '\n';
  const std::string by_other = "'" + other + "' recipe '" + recipe + "' > '" + path("out.o") +
                               "' 2> '" + path("err.o") + "'";
  ASSERT_EQ(std::system(by_other.c_str()), 0) << read_all(path("err.o"));
  expect_words(read_all(path("err.o")), {"step 1 of 4", "step 2 of 4", "step 3 of 4"});
  EXPECT_EQ(read_all(path("out.o")), first.out);
  const auto programs = [&] {
    return nlohmann::json::parse(read_all(path("r.work/result.json")))["programs"];
  };
  ASSERT_EQ(programs().size(), 1u);
  const nlohmann::json others = programs()[0];
  std::remove(path("r.work/steps/half.exact.kld.json").c_str());
  const Outcome taken = run({"recipe", recipe, "--any-build"});
  EXPECT_EQ(taken.out, first.out);
  expect_words(taken.err, {"step 4 of 4", "2 builds"});
  EXPECT_EQ(taken.err.find("step 3 of 4"), std::string::npos) << taken.err;
  EXPECT_EQ(programs().size(), 2u);
  const Outcome remade = run({"recipe", recipe});
  expect_words(remade.err, {"step 1 of 4", "step 2 of 4", "step 3 of 4", "step 4 of 4"});
  ASSERT_EQ(programs().size(), 1u);
  EXPECT_NE(programs()[0]["executable_sha256"], others["executable_sha256"]);
  // A record of it, with everything that a figure comes from.
  const Outcome kept = run({"recipe", recipe, "--record", path("records")});
  unsetenv("XDG_DATA_HOME");
  ASSERT_EQ(kept.code, 0) << kept.err;
  const nlohmann::json record = only_record(path("records"));
  const auto result = nlohmann::json::parse(read_all(path("r.work/result.json")));
  EXPECT_EQ(record["recipe"]["rows"], result["rows"]);
  EXPECT_EQ(record["recipe"]["steps"].size(), 4u);
  EXPECT_EQ(record["recipe"]["steps"][3]["command"][1], "kld");
  EXPECT_EQ(read_all(path("records/files/" + record["recipe"]["file"].get<std::string>())),
            read_all(recipe));
  const Outcome sound = run({"record", "verify", path("records")});
  EXPECT_EQ(sound.code, 0) << sound.out << sound.err;
  nlohmann::json forged = record;
  forged["recipe"]["programs"][0]["executable_sha256"] = std::string(64, '0');
  EXPECT_FALSE(measure::identity_problems(forged).empty());
  EXPECT_TRUE(measure::identity_problems(record).empty());
  EXPECT_EQ(run({"recipe", recipe, "--record", path("records"), "--any-build"}).code, 2);
}

// A model that is pruned twice, and one in several files.
TEST_F(Quality, RecipesPruneAgainAndCountAllShards) {
  const Outcome split = run({"requantise", model_, "--experts", "Q4_0", "--max-shard-size", "6M",
                             "-o", path("split.gguf")});
  ASSERT_EQ(split.code, 0) << split.err;
  std::string front;
  uint64_t bytes = 0;
  int shards = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("split-")) continue;
    if (name.starts_with("split-00001-of")) front = name;
    bytes += entry.file_size();
    ++shards;
  }
  ASSERT_GT(shards, 1);
  const std::string recipe = write(
      "r.toml", "[source]\nmodel = \"" + model_ + "\"\n[calibrate]\ntext = \"" +
                    excerpt("c.txt", 0, 4000) + "\"\nwindow = 128\n[evaluate]\ntext = \"" +
                    excerpt("e.txt", 8000, 9000) +
                    "\"\nwindow = 128\n[[arm]]\nname = \"half\"\nkeep = 0.5\n"
                    "[[arm]]\nname = \"less\"\nfrom = \"half\"\nbase = \"half\"\nkeep = 0.75\n"
                    "[[arm]]\nname = \"split\"\nmodel = \"" +
                    path(front) + "\"\n");
  setenv("XDG_DATA_HOME", path("data").c_str(), 1);
  const Outcome outcome = run({"recipe", recipe, "--json"});
  unsetenv("XDG_DATA_HOME");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto result = nlohmann::json::parse(outcome.out);
  ASSERT_EQ(result["rows"].size(), 3u);
  EXPECT_EQ(result["rows"][2]["bytes"], bytes);
  EXPECT_EQ(result["source"]["bytes"], std::filesystem::file_size(model_));
  EXPECT_GT(result["rows"][0]["bytes"], result["rows"][1]["bytes"]);
  // The second pruning's own price is not that of both.
  const double both = result["rows"][1]["mean_kld"], own = result["rows"][1]["against"]["mean_kld"];
  EXPECT_GT(own, 0);
  EXPECT_LT(own, both);
  EXPECT_EQ(result["rows"][1]["against"]["arm"], "half");
  EXPECT_FALSE(result["rows"][0].contains("against"));
  EXPECT_TRUE(result["source"].contains("overlap"));
}

}  // namespace
}  // namespace penstock::testing
