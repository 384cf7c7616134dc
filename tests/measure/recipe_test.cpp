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
  says(head + "[[arm]]\nname = \"a\"\nbonus = [\"x\"]\n", "numbers");
  says(head + "[[arm]]\nname = \"a\"\nbonus = [nan]\n", "numbers");
  says(head + "arm = 3\n", "arm");
  says("[source]\nmodel = \"M\"\n[evaluate]\ntext = [\"e\"]\n[[arm]]\nname = \"a\"\nkeep = 0.5\n",
       "[calibrate]");
  says("[source]\nmodel = \"M\"\n[evaluate]\ntext = [\"e\"]\narena = 2\n[[arm]]\nname = \"a\"\n",
       "arena");
}

TEST_F(Recipes, ResultsBecomeRows) {
  const Recipe recipe = read(std::string(kHead) + "[[arm]]\nname = \"a\"\n");
  std::map<std::string, nlohmann::json> results;
  results["a.exact.kld"] = {{"ppl", 4.0},         {"ppl_interval", {3.5, 4.5}},
                            {"mean_kld", 0.0125}, {"mean_kld_interval", {0.01, 0.015}},
                            {"same_top", 0.9},    {"mode", "batch"}};
  results["a.exact.tasks"] = {{"accuracy", 0.5}, {"accuracy_interval", {0.4, 0.6}}, {"n", 100}};
  const double rates[] = {10, 14, 11};
  for (int r = 0; r < 3; ++r) {
    results["a.exact.speed-" + std::to_string(r + 1)] = {
        {"timings", {{"decode", {{"tokens_per_second", rates[r]}}}}},
        {"counters",
         {{"uses_steady", {{"arena", 60}, {"ra_timely", 10}, {"ra_late", 5}, {"total", 100}}},
          {"reads_demand", {{"bytes", 3000}}},
          {"reads_spec", {{"bytes", 1000}}},
          {"tokens", 4}}}};
  }
  const auto rows = recipe_rows(recipe, results, {{"a", 5000000}});
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0]["speed"]["decode_tokens_per_second"], 11.0);
  EXPECT_EQ(rows[0]["speed"]["hit_rate"], 0.75);
  EXPECT_EQ(rows[0]["speed"]["bytes_per_token"], 1000.0);
  const std::string table = recipe_table(rows);
  EXPECT_NE(table.find("| a | exact | 5.0 | 11.00 (10.00-14.00) | 75.0 | 4.000 [3.500, 4.500] | "
                       "0.0125 [0.0100, 0.0150] | 90.00 | 50.0 [40.0, 60.0] |"),
            std::string::npos)
      << table;
}

}  // namespace
}  // namespace penstock::measure
