// Formulas over records, spreads of runs, and the test of two groups.
#include "measure/formula.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "measure/archive.h"
#include "measure/figures.h"
#include "measure/record.h"
#include "measure/spread.h"

namespace penstock::measure {
namespace {

using Json = nlohmann::json;

double eval(const std::string& formula, const Json& record = Json::object()) {
  return Formula(formula).evaluate(record);
}

std::string error_of(const std::string& formula, const Json& record = Json::object()) {
  try {
    eval(formula, record);
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

TEST(Formula, ArithmeticHasItsUsualOrder) {
  EXPECT_DOUBLE_EQ(eval("1 + 2 * 3 - 8 / 4"), 5);
  EXPECT_DOUBLE_EQ(eval("(1 + 2) * -3"), -9);
  EXPECT_DOUBLE_EQ(eval("2 - 3 - 4"), -5);
  EXPECT_DOUBLE_EQ(eval("16 / 4 / 2"), 2);
  EXPECT_DOUBLE_EQ(eval("--1.5e3"), 1500);
  EXPECT_DOUBLE_EQ(eval("most(1, least(5, 3))"), 3);
}

TEST(Formula, PointersLeadIntoTheRecord) {
  const Json record = {{"a", {{"b", 6}, {"x/y~z", 4}}}, {"list", {1, 2, 5}}};
  EXPECT_DOUBLE_EQ(eval("{/a/b} / {/a/x~1y~0z}", record), 1.5);
  EXPECT_DOUBLE_EQ(eval("{/list/-1} - {/list/-2}", record), 3);
  EXPECT_DOUBLE_EQ(eval("sum({/list}) + count({/list})", record), 11);
  EXPECT_DOUBLE_EQ(eval("max({/list}) - min({/list})", record), 4);
  EXPECT_EQ(Formula("{/a} + {/list/0}").pointers(), (std::vector<std::string>{"/a", "/list/0"}));
}

TEST(Formula, WhatIsNoNumberIsSaidByName) {
  const Json record = {{"text", "12"}, {"none", nullptr}, {"list", {1}}, {"empty", Json::array()}};
  EXPECT_NE(error_of("{/gone}", record).find("nothing at /gone"), std::string::npos);
  EXPECT_NE(error_of("{/list/1}", record).find("/list/1"), std::string::npos);
  EXPECT_NE(error_of("{/list/-2}", record).find("/list/-2"), std::string::npos);
  EXPECT_NE(error_of("{/text}", record).find("string"), std::string::npos);
  EXPECT_NE(error_of("{/none}", record).find("null"), std::string::npos);
  EXPECT_NE(error_of("1 / ({/list/0} - 1)", record).find("division by zero"), std::string::npos);
  EXPECT_NE(error_of("1e308 * 10", record).find("not finite"), std::string::npos);
  EXPECT_NE(error_of("sum({/empty})", record).find("empty"), std::string::npos);
}

TEST(Formula, HostileTextsAreRefusedWithTheColumn) {
  for (const char* text : {"", "1 +", "1 2", "{/a", "{a}", "(1", "nan", "inf", "exp(1)", "1..2 +",
                           "sum(1)", "1 ** 2", "{/a} {/b}", "least(1)", "0x10"}) {
    EXPECT_NE(error_of(text).find("column"), std::string::npos) << text;
  }
  EXPECT_FALSE(error_of(std::string(3000, '(')).empty());
  EXPECT_FALSE(error_of(std::string(3000, '-') + "1").empty());
  EXPECT_FALSE(error_of(std::string(100000, '1')).empty());
}

TEST(Figures, EveryOneIsOfAPhaseAndHasItsOwnName) {
  for (const char* schema : {kRecordSchema, kPeerSchema}) {
    std::vector<std::string> names;
    for (const Figure& figure : figures_of(schema)) {
      names.push_back(figure.name);
      EXPECT_EQ(find_figure(schema, figure.name), &figure);
      EXPECT_FALSE(figure.phase.empty());
      if (figure.phase == "cold start") continue;  // of several phases, or said by its name
      for (const std::string& pointer : figure.formula.pointers()) {
        const std::string phase = phase_of(schema, pointer);
        EXPECT_TRUE(phase.empty() || phase == figure.phase || pointer == "/settings/slots")
            << figure.name << " takes " << pointer << " of " << phase;
      }
    }
    std::sort(names.begin(), names.end());
    EXPECT_EQ(std::adjacent_find(names.begin(), names.end()), names.end());
  }
  EXPECT_TRUE(figures_of("something else").empty());
}

TEST(Figures, ADecodeThatEndedEarlyIsNone) {
  Json peer = {{"schema", kPeerSchema},
               {"values", {{"decode_tokens", 63}, {"decode_ms", 1000}}},
               {"outcome", {{"state", "finished"}, {"stop_reason", nullptr}}}};
  EXPECT_EQ(why_no_decode(peer), "");
  EXPECT_DOUBLE_EQ(*figure_value(*find_figure(kPeerSchema, "decode_tok_s"), peer), 63);
  peer["values"]["decode_tokens"] = 0;
  peer["outcome"]["stop_reason"] = "end of text";
  EXPECT_NE(why_no_decode(peer).find("end of text"), std::string::npos);
  peer["outcome"]["state"] = "watchdog";
  EXPECT_NE(why_no_decode(peer).find("watchdog"), std::string::npos);
}

TEST(Spread, MedianLeastAndMost) {
  EXPECT_DOUBLE_EQ(spread_of({3, 1, 2}).median, 2);
  EXPECT_DOUBLE_EQ(spread_of({4, 1, 2, 3}).median, 2.5);
  EXPECT_EQ(spread_of({}).n, 0u);
  EXPECT_EQ(spread_text(spread_of({13.8, 12.96, 13.53}), 2), "13.53 (12.96 to 13.80, n = 3)");
}

// The values of scipy.stats.mannwhitneyu, method "exact" and, with ties or many values,
// "asymptotic" with its continuity correction.
TEST(Spread, MannWhitney) {
  EXPECT_NEAR(mann_whitney({1, 2, 3, 4, 5}, {6, 7, 8, 9, 10}), 2.0 / 252, 1e-12);
  EXPECT_NEAR(mann_whitney({1, 2, 3}, {4, 5, 6}), 0.1, 1e-12);
  EXPECT_NEAR(mann_whitney({1, 4, 5, 8}, {2, 3, 6, 7}), 1.0, 1e-12);
  EXPECT_NEAR(mann_whitney({5, 5, 5}, {5, 5, 5}), 1.0, 1e-12);
  EXPECT_NEAR(mann_whitney({1}, {2}), 1.0, 1e-12);
  EXPECT_EQ(mann_whitney({}, {1, 2}), 1.0);
  std::vector<double> a, b;
  for (int i = 0; i < 15; ++i) {
    a.push_back(i);
    b.push_back(i + 6.5);
  }
  EXPECT_NEAR(mann_whitney(a, b), 0.001619713575230349, 1e-12);
}

}  // namespace
}  // namespace penstock::measure
