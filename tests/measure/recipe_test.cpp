#include "measure/recipe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "base/error.h"
#include "models/tiny_models.h"

namespace penstock::measure {
namespace {

constexpr const char* kHead = R"([source]
model = "M.gguf"
[calibrate]
text = ["c1.txt", "c2.txt"]
window = 256
[evaluate]
text = "e.txt"
window = 128
tasks = "t.jsonl"
arena = 0.25
[speed]
prompt = "p.txt"
runs = 3
)";

class Recipes : public ::testing::Test {
 protected:
  Recipe read(const std::string& text) {
    const std::string path = folder_.path() + "/r.toml";
    std::ofstream(path) << text;
    return read_recipe(path);
  }
  penstock::testing::TemporaryFolder folder_;
};

std::string joined(const RecipeStep& step) {
  std::string text;
  for (const std::string& word : step.command) text += (text.empty() ? "" : " ") + word;
  return text;
}

const RecipeStep& step_named(const std::vector<RecipeStep>& steps, const std::string& name) {
  const auto found = std::find_if(steps.begin(), steps.end(),
                                  [&](const RecipeStep& step) { return step.name == name; });
  if (found == steps.end()) throw std::runtime_error("no step " + name);
  return *found;
}

TEST_F(Recipes, BecomeCommandsInOrder) {
  const Recipe recipe = read(std::string(kHead) + R"(
[[arm]]
name = "plain"
bonus = [0, 0.85]
[[arm]]
name = "half"
keep = 0.5
experts = "Q2_0"
importance = true
keep_type = ["*down*=Q4_0"]
pack = true
lambda = [0.1]
[[arm]]
name = "again"
from = "half"
experts = "Q4_0"
importance = true
)");
  const std::vector<RecipeStep> steps = recipe_steps(recipe, "W", {8, 512});
  EXPECT_EQ(joined(step_named(steps, "calibrate")),
            "calibrate M.gguf -o W/stats.gguf --imatrix-out W/imatrix.gguf --window 256 --text "
            "c1.txt c2.txt");
  EXPECT_EQ(joined(step_named(steps, "source")),
            "eval perplexity M.gguf --json --base-out W/base.logits --window 128 --text e.txt "
            "--held-out-from c1.txt c2.txt");
  EXPECT_EQ(joined(step_named(steps, "half.build")),
            "prune M.gguf -o W/half.gguf --force --json W/half.report.json --keep 0.5 --method "
            "reap --stats "
            "W/stats.gguf --write-keep-map W/half.keep.json --experts Q2_0 --keep-type *down*=Q4_0 "
            "--imatrix W/imatrix.gguf --imatrix-out W/half.imatrix.gguf");
  EXPECT_EQ(joined(step_named(steps, "again.build")),
            "requantise W/half.gguf -o W/again.gguf --force --json W/again.report.json --experts "
            "Q4_0 --imatrix "
            "W/half.imatrix.gguf");
  EXPECT_EQ(joined(step_named(steps, "half.pack")), "pack W/half.gguf -o W/half.xpk");
  EXPECT_EQ(joined(step_named(steps, "plain.exact.kld")),
            "eval kld M.gguf --base W/base.logits --json --window 128 --text e.txt");
  // A quarter of all experts, and of the half that was kept.
  EXPECT_EQ(joined(step_named(steps, "plain.bonus-0.85.kld")),
            "eval kld M.gguf --base W/base.logits --json --window 128 --text e.txt --moce bonus "
            "--moce-bonus 0.85 --moce-residency epoch --arena-slots 128 --step-mode");
  EXPECT_EQ(joined(step_named(steps, "half.prior-0.1.speed-2")),
            "run -m W/half.gguf --file p.txt -n 128 --temp 0 --ignore-eos --json -q --moce prior "
            "--moce-lambda 0.1 --moce-residency epoch --arena-slots 64 --pack W/half.xpk");
  // Everything is made before anything is judged, and timed last, there and back.
  const auto place = [&](const std::string& name) {
    return &step_named(steps, name) - steps.data();
  };
  EXPECT_LT(place("again.build"), place("plain.exact.kld"));
  EXPECT_LT(place("again.exact.tasks"), place("plain.exact.speed-1"));
  EXPECT_LT(place("plain.exact.speed-1"), place("again.exact.speed-1"));
  EXPECT_LT(place("again.exact.speed-2"), place("plain.exact.speed-2"));
  EXPECT_LT(place("plain.exact.speed-2"), place("plain.exact.speed-3"));
}

TEST_F(Recipes, AModelMadeElsewhereIsJudgedAsItIsOrGoneOnWith) {
  const Recipe recipe = read(std::string(kHead) + R"(
[[arm]]
name = "theirs"
model = "T.gguf"
[[arm]]
name = "twice"
from = "theirs"
experts = "Q2_0"
[[arm]]
name = "half"
model = "T.gguf"
keep = 0.5
)");
  EXPECT_EQ(model_of(recipe, recipe.arms[0], "W"), "T.gguf");
  EXPECT_EQ(model_of(recipe, recipe.arms[1], "W"), "W/twice.gguf");
  const auto steps = recipe_steps(recipe, "W", {8, 512});
  EXPECT_EQ(joined(step_named(steps, "theirs.exact.kld")),
            "eval kld T.gguf --base W/base.logits --json --window 128 --text e.txt");
  EXPECT_TRUE(std::none_of(steps.begin(), steps.end(),
                           [](const RecipeStep& step) { return step.name == "theirs.build"; }));
  EXPECT_EQ(joined(step_named(steps, "twice.build")),
            "requantise T.gguf -o W/twice.gguf --force --json W/twice.report.json --experts Q2_0");
  EXPECT_NE(joined(step_named(steps, "half.build")).find("prune T.gguf"), std::string::npos);
  EXPECT_NE(joined(step_named(steps, "half.build")).find("--other-model"), std::string::npos);
}

TEST_F(Recipes, AbsoluteCountsAreOfEveryLayer) {
  const Recipe recipe = read(std::string(kHead) + "[[arm]]\nname = \"k\"\nkeep = 32\n");
  const auto steps = recipe_steps(recipe, "W", {8, 512});
  EXPECT_NE(joined(step_named(steps, "k.exact.speed-1")).find("--arena-slots 64"),
            std::string::npos);
}

// Which ids the second choice speaks of is in the file: docs/surgery.md.
TEST_F(Recipes, APrunedArmCanBePrunedAgain) {
  const std::string text = std::string(kHead) + R"(
[[arm]]
name = "half"
keep = 0.5
[[arm]]
name = "types"
from = "half"
experts = "Q4_0"
[[arm]]
name = "quarter"
from = "types"
keep = "50%"
importance = true
[[arm]]
name = "eight"
from = "quarter"
keep = 8
method = "random"
)";
  const Recipe recipe = read(text);
  const auto steps = recipe_steps(recipe, "W", {8, 512});
  // The importance is cut to each arm's experts in turn, by every arm that one behind it needs.
  EXPECT_NE(joined(step_named(steps, "half.build"))
                .find("--imatrix W/imatrix.gguf --imatrix-out W/half.imatrix.gguf"),
            std::string::npos);
  EXPECT_EQ(joined(step_named(steps, "quarter.build")),
            "prune W/types.gguf -o W/quarter.gguf --force --json W/quarter.report.json --keep 50% "
            "--method reap --stats W/stats.gguf --other-model --write-keep-map W/quarter.keep.json "
            "--imatrix W/half.imatrix.gguf");
  const auto slots = [&](const std::string& arm, const std::string& n) {
    EXPECT_NE(joined(step_named(steps, arm + ".exact.speed-1")).find("--arena-slots " + n),
              std::string::npos)
        << joined(step_named(steps, arm + ".exact.speed-1"));
  };
  slots("half", "64");
  slots("types", "64");
  slots("quarter", "32");
  slots("eight", "16");
  // Of a source that was pruned before, statistics name the experts otherwise than the file.
  try {
    recipe_steps(recipe, "W", {8, 512, true});
    ADD_FAILURE() << "it went on";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Usage);
    EXPECT_NE(std::string(error.what()).find("'quarter'"), std::string::npos) << error.what();
  }
}

TEST_F(Recipes, AnArmIsComparedWithItsBaseToo) {
  const Recipe recipe = read(std::string(kHead) + R"(
[[arm]]
name = "half"
keep = 0.5
[[arm]]
name = "small"
from = "half"
base = "half"
experts = "Q2_0"
bonus = [0, 0.85]
)");
  const auto steps = recipe_steps(recipe, "W", {8, 512});
  const RecipeStep& logits = step_named(steps, "half.as-base");
  EXPECT_EQ(joined(logits),
            "eval perplexity W/half.gguf --json --base-out W/half.as-base.logits --window 128 "
            "--text e.txt");
  EXPECT_EQ(joined(step_named(steps, "small.exact.against")),
            "eval kld W/small.gguf --base W/half.as-base.logits --json --window 128 --text e.txt "
            "--no-record");
  EXPECT_NE(joined(step_named(steps, "small.bonus-0.85.against")).find("--step-mode"),
            std::string::npos);
  EXPECT_LT(&logits, &step_named(steps, "small.exact.against"));
  EXPECT_TRUE(std::none_of(steps.begin(), steps.end(),
                           [](const RecipeStep& s) { return s.name == "half.exact.against"; }));
}

TEST_F(Recipes, PackSettingsGoToPack) {
  const Recipe recipe = read(std::string(kHead) +
                             "[[arm]]\nname = \"a\"\nkeep = 1.0\npack = true\npack_align = "
                             "\"4K\"\npack_content_id = true\n");
  const auto steps = recipe_steps(recipe, "W", {8, 512});
  EXPECT_EQ(joined(step_named(steps, "a.pack")),
            "pack W/a.gguf -o W/a.xpk --align 4K --content-id");
  // A share, not one expert.
  EXPECT_NE(joined(step_named(steps, "a.build")).find("--keep 1.0 "), std::string::npos);
}

TEST_F(Recipes, MistakesAreNamedWithTheirLine) {
  const auto says = [&](const std::string& text, const std::string& what) {
    try {
      read(text);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::Format);
      EXPECT_NE(std::string(error.what()).find(what), std::string::npos) << error.what();
    }
  };
  const std::string head = kHead;
  says("", "[source] is missing");
  says(head, "no [[arm]]");
  says("[source]\nmodel = 3\n", "line 2");
  says("[source\n", "line 1");
  says(head + "[sorce]\n", "sorce");
  says(head + "[[arm]]\nname = \"a\"\nkepe = 3\n", "kepe");
  says(head + "[[arm]]\nname = \"a\"\n[[arm]]\nname = \"a\"\n", "two arms");
  says(head + "[[arm]]\nname = \"../a\"\n", "'../a'");
  says(head + "[[arm]]\nname = \"a\"\nfrom = \"b\"\n", "'b'");
  says(head + "[[arm]]\nname = \"b\"\n[[arm]]\nname = \"a\"\nfrom = \"b\"\nmodel = \"T\"\n",
       "not both");
  says(head + "[[arm]]\nname = \"a\"\nbase = \"a\"\n", "base 'a'");
  says(head + "[[arm]]\nname = \"a\"\npack_align = \"4K\"\n", "pack = true");
  says(head + "[[arm]]\nname = \"a\"\nbonus = [\"x\"]\n", "numbers");
  says(head + "[[arm]]\nname = \"a\"\nbonus = [nan]\n", "numbers");
  says(head + "arm = 3\n", "arm");
  says("[source]\nmodel = \"M\"\n[evaluate]\ntext = [\"e\"]\n[[arm]]\nname = \"a\"\nkeep = 0.5\n",
       "[calibrate]");
  says("[source]\nmodel = \"M\"\n[evaluate]\ntext = [\"e\"]\narena = 2\n[[arm]]\nname = \"a\"\n",
       "arena");
}

TEST_F(Recipes, ResultsBecomeRows) {
  const Recipe recipe =
      read(std::string(kHead) + "[[arm]]\nname = \"b\"\n[[arm]]\nname = \"a\"\nbase = \"b\"\n");
  std::map<std::string, nlohmann::json> results;
  results["source"] = {{"ppl", 3.0},
                       {"ppl_interval", {2.5, 3.5}},
                       {"overlap", {{"sequences_of_13", 900}, {"shared", 7}}}};
  results["a.exact.kld"] = {{"ppl", 4.0},         {"ppl_interval", {3.5, 4.5}},
                            {"mean_kld", 0.0125}, {"mean_kld_interval", {0.01, 0.015}},
                            {"same_top", 0.9},    {"same_top_interval", {0.85, 0.95}},
                            {"mode", "batch"},    {"kld_quantiles", {{"99.9", 0.5}}}};
  results["a.exact.against"] = {{"mean_kld", 0.002},
                                {"mean_kld_interval", {0.001, 0.003}},
                                {"kld_quantiles", {{"99", 0.25}}}};
  results["a.exact.tasks"] = {{"accuracy", 0.5}, {"accuracy_interval", {0.4, 0.6}}, {"n", 100}};
  const double rates[] = {10, 14, 11};
  for (int r = 0; r < 3; ++r) {
    results["a.exact.speed-" + std::to_string(r + 1)] = {
        {"timings", {{"decode", {{"tokens_per_second", rates[r]}}}}},
        {"counters",
         {{"uses_steady", {{"arena", 59 + r}, {"ra_timely", 10}, {"ra_late", 5}, {"total", 100}}},
          {"reads_demand", {{"bytes", 3000}}},
          {"reads_spec", {{"bytes", 1000}}},
          {"tokens", 4}}}};
  }
  const auto result = recipe_result(recipe, results, {{"a", 5000000}, {"source", 8000000}});
  ASSERT_EQ(result["rows"].size(), 2u);
  const auto& row = result["rows"][1];
  EXPECT_EQ(row["speed"]["decode_tokens_per_second"], 11.0);
  EXPECT_EQ(row["speed"]["hit_rate"], 0.75);
  EXPECT_EQ(row["speed"]["bytes_per_token"], 1000.0);
  EXPECT_EQ(row["kld_quantiles"]["99.9"], 0.5);
  EXPECT_EQ(row["against"]["arm"], "b");
  EXPECT_EQ(row["against"]["kld_quantiles"]["99"], 0.25);
  EXPECT_EQ(result["source"]["ppl"], 3.0);
  EXPECT_EQ(result["source"]["overlap"]["shared"], 7);
  const std::string table = recipe_table(result);
  for (const char* line :
       {"| source | exact | 8.0 | - | - | 3.000 [2.500, 3.500] | - | - | - | - |",
        "| b | exact | - | - | - | - | - | - | - | - |",
        "| a | exact | 5.0 | 11.00 (10.00-14.00) | 75.0 (74.0-76.0) | 4.000 [3.500, 4.500] | "
        "0.0125 [0.0100, 0.0150] | b: 0.0020 [0.0010, 0.0030] | 90.00 [85.00, 95.00] | 50.0 "
        "[40.0, 60.0] |",
        "of 900 sequences of 13 tokens in the text that judges, 7 stand in the calibration text"}) {
    EXPECT_NE(table.find(line), std::string::npos) << line << "\n" << table;
  }
}

}  // namespace
}  // namespace penstock::measure
