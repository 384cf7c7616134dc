// What two groups of records differ in, and what may be said about their
// speeds.
#include <gtest/gtest.h>

#include "base/error.h"
#include "measure/record_diff.h"
#include "measure/report_support.h"
#include "models/tiny_models.h"

namespace penstock::measure {
namespace {

using testing::Made;
using Json = nlohmann::json;

Archived archived(const Json& record) {
  Archived out;
  out.value = Json::parse(canonical_text(record));
  out.id = record_id(out.value);
  out.schema = out.value.value("schema", "");
  return out;
}

struct Sides {
  std::vector<Archived> a, b;
  RecordDiff diff() const {
    std::vector<const Archived*> left, right;
    for (const Archived& one : a) left.push_back(&one);
    for (const Archived& one : b) right.push_back(&one);
    return diff_records(std::move(left), std::move(right));
  }
};

Sides runs(size_t n, size_t m, double times) {
  Sides sides;
  for (size_t i = 0; i < n; ++i) {
    const double d = static_cast<double>(i);
    sides.a.push_back(
        archived(testing::made_record({.decode_s = 5 + 0.01 * d, .started = 100 + d})));
  }
  for (size_t i = 0; i < m; ++i) {
    const double d = static_cast<double>(i);
    sides.b.push_back(
        archived(testing::made_record({.decode_s = (5 + 0.01 * d) / times, .started = 200 + d})));
  }
  return sides;
}

const Difference* find(const RecordDiff& diff, const std::string& kind, const std::string& name) {
  for (const Difference& d : diff.differences) {
    if (d.kind == kind && d.name == name) return &d;
  }
  return nullptr;
}

bool holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(RecordDiff, FiveRunsShowWhatTwoCannot) {
  const RecordDiff five = runs(5, 5, 1.25).diff();
  EXPECT_EQ(five.sentence, "B is faster by 25.0 %, p = 0.008, 5 runs each");
  EXPECT_EQ(runs(5, 5, 0.8).diff().sentence, "B is slower by 20.0 %, p = 0.008, 5 runs each");
  const std::string two = runs(2, 2, 1.25).diff().sentence;
  EXPECT_TRUE(two.starts_with("no difference that 2 runs each could show")) << two;
  EXPECT_TRUE(holds(two, "4 of each")) << two;
  const std::string same = runs(5, 5, 1).diff().sentence;
  EXPECT_TRUE(same.starts_with("no difference that 5 runs each could show")) << same;
  EXPECT_FALSE(holds(same, "4 of each")) << same;
  EXPECT_TRUE(runs(3, 5, 1.25).diff().sentence.starts_with("B is faster by"));
}

TEST(RecordDiff, SettingsAreNamedOrNot) {
  Sides sides;
  sides.a.push_back(archived(testing::made_record({})));
  sides.b.push_back(archived(testing::made_record({.slots = 128, .change = [](Json& r) {
                                                     r["settings"]["evict"] = "lru";
                                                     r["environment"]["OMP_NUM_THREADS"] = "3";
                                                     r["machine"]["kernel"]["release"] = "6.2";
                                                     r["producer"]["executable_sha256"] =
                                                         std::string(64, '7');
                                                   }})));
  const RecordDiff diff = sides.diff();
  ASSERT_NE(find(diff, "settings", "slots"), nullptr);
  EXPECT_TRUE(find(diff, "settings", "slots")->named);
  ASSERT_NE(find(diff, "settings", "evict"), nullptr);
  EXPECT_FALSE(find(diff, "settings", "evict")->named);
  EXPECT_EQ(find(diff, "environment", "OMP_NUM_THREADS")->a, "-");
  EXPECT_EQ(find(diff, "machine", "kernel")->b, "6.2");
  EXPECT_EQ(find(diff, "identity", "executable")->b, "777777777777");
  EXPECT_EQ(find(diff, "settings", "sampling/seed"), nullptr);
  EXPECT_TRUE(diff.uncomparable.empty());
  const std::string table = diff_table(diff);
  EXPECT_TRUE(holds(table, "evict                      lfu -> lru\n")) << table;
}

TEST(RecordDiff, OtherModelsPromptsAndLengthsAreNotCompared) {
  const auto against = [](const Made& made) {
    Sides sides = runs(1, 0, 1);
    sides.b.push_back(archived(testing::made_record(made)));
    return sides;
  };
  const Sides alike = against({});
  EXPECT_TRUE(alike.diff().uncomparable.empty());
  const auto expect = [&](const Made& made, const std::string& word) {
    const Sides sides = against(made);
    const RecordDiff diff = sides.diff();
    EXPECT_TRUE(holds(diff.sentence, "UNCOMPARABLE")) << diff.sentence;
    EXPECT_TRUE(holds(diff.sentence, word)) << diff.sentence;
    EXPECT_TRUE(diff_table(diff).starts_with("UNCOMPARABLE"));
    EXPECT_EQ(diff_json(diff)["comparable"], false);
    EXPECT_TRUE(diff_json(diff)["figures"]["decode_tok_s"]["p"].is_null());
  };
  expect({.model = std::string(64, 'd')}, "models");
  expect({.prompt = "5\n6\n8\n"}, "prompts");
  expect({.prompt = "5\n6\n7\n8\n"}, "3 and 4 tokens");
  expect({.steps = 127}, "95 and 127 decode steps");
  // Without an identity nothing says that the models are the same.
  Sides unnamed;
  const auto peer = [](double started) {
    return archived(testing::made_peer("other", 5000, started, [](Json& r) {
      r["inputs"]["model"] = {{"path", ""}, {"model_id", nullptr}};
    }));
  };
  unnamed.a.push_back(peer(1));
  unnamed.b.push_back(peer(2));
  EXPECT_TRUE(holds(unnamed.diff().sentence, "UNCOMPARABLE"));
}

TEST(RecordDiff, OutputsAreComparedTokenByToken) {
  const auto against = [](const std::function<void(Json&)>& change) {
    Sides sides = runs(1, 0, 1);
    sides.b.push_back(archived(testing::made_record({.started = 7, .change = change})));
    return sides.diff().output;
  };
  EXPECT_EQ(against([](Json&) {}), "equal, 96 tokens");
  EXPECT_EQ(against([](Json& r) { r["turns"][0]["tokens"][40] = 9; }),
            "differ from token 41 on (7 against 9)");
  EXPECT_EQ(against([](Json& r) { r["turns"][0]["tokens"].erase(95); }),
            "equal as far as both go: 96 and 95 tokens");
  EXPECT_EQ(against([](Json& r) { r.erase("turns"); }), "not both say which tokens they generated");
  Sides mixed = runs(2, 1, 1);
  mixed.a[0].value["turns"][0]["tokens"][0] = 1;
  EXPECT_TRUE(holds(mixed.diff().output, "A did not even agree"));
}

TEST(RecordDiff, CountersAndGroupsAreCompared) {
  Sides sides = runs(3, 3, 1);
  for (Archived& record : sides.b) {
    record.value["counters"][1]["counters"]["evict_total"] = 12;
  }
  sides.b[1].value["settings"]["evict"] = "lru";
  const RecordDiff diff = sides.diff();
  ASSERT_EQ(diff.counters.size(), 1u);
  EXPECT_EQ(diff.counters[0].pointer, "/counters/-1/counters/evict_total");
  EXPECT_EQ(diff.counters[0].b, 12);
  ASSERT_EQ(diff.within.size(), 1u);
  EXPECT_EQ(diff.within[0], "B: settings evict");
}

TEST(RecordDiff, RunsWithoutAResultAreSaid) {
  Sides sides = runs(1, 0, 1);
  sides.b.push_back(archived(testing::made_record({.steps = 10})));
  RecordDiff diff = sides.diff();
  EXPECT_EQ(diff.not_results.size(), 1u);
  for (const FigureChange& figure : diff.figures) {
    EXPECT_EQ(figure.b.empty(), figure.phase == "decode" && figure.name != "decode_tokens")
        << figure.name;
  }
  sides.b[0] = archived(testing::made_record({.change = [](Json& r) {
    r["outcome"]["state"] = "error";
    r["timings"] = nullptr;
  }}));
  diff = sides.diff();
  EXPECT_EQ(diff.sentence, "B has no decode result");
  EXPECT_THROW(diff_records({}, {}), Error);
}

TEST(RecordDiff, AnyMemberMayBeMissingOrOfAnotherKind) {
  const Json whole = testing::made_record({});
  for (const auto& [name, member] : whole.items()) {
    for (const Json& value : {Json(), Json("text"), Json(-1), Json::array({1, "x", nullptr}),
                              Json{{"model", 5}, {"a", {{"b", 1}}}}}) {
      Json record = whole;
      record[name] = value;
      Sides sides = runs(1, 0, 1);
      Archived odd;
      odd.value = record;
      odd.id = std::string(64, '0');
      odd.schema = kRecordSchema;
      sides.b.push_back(odd);
      const RecordDiff diff = sides.diff();
      EXPECT_FALSE(diff_table(diff).empty());
      EXPECT_NO_THROW(diff_json(diff).dump());
    }
  }
}

TEST(RecordDiff, OptionsAreReadAsTheyWereGiven) {
  const auto options = options_of(
      Json{"penstock", "run", "--temp", "-0.5", "--evict=lru", "-t", "2", "--record", "x", 5});
  EXPECT_EQ(options.at("temp"), std::vector<std::string>{"-0.5"});
  EXPECT_EQ(options.at("evict"), std::vector<std::string>{"lru"});
  EXPECT_EQ(options.at("t"), std::vector<std::string>{"2"});
  EXPECT_EQ(options.count("record"), 0u);
  EXPECT_TRUE(options_of(Json("no list")).empty());
}

}  // namespace
}  // namespace penstock::measure
