// One token, from a timeline into a record and onto a plot.
#include "measure/token_timeline.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "measure/archive.h"
#include "measure/report.h"

namespace penstock::measure {
namespace {

using experts::TokenTimeline;
using Json = nlohmann::json;

TokenTimeline made_token() {
  using experts::ReadReason, experts::Work;
  TokenTimeline token;
  token.token = 5;
  token.ns = 8'000'000;
  const auto work = [&](Work what, int layer, int64_t from, int64_t ns) {
    token.spans.push_back({false, static_cast<uint8_t>(what), layer, 0, from, ns});
  };
  const auto read = [&](ReadReason what, int64_t from, int64_t ns) {
    token.spans.push_back({true, static_cast<uint8_t>(what), -1, 1'500'000, from, ns});
  };
  work(Work::Dense, 0, 0, 2'500'000);  // over the end of the first of four strips
  read(ReadReason::Demand, 100'000, 1'000'000);
  read(ReadReason::Spec, 200'000, 500'000);
  work(Work::Stall, 0, 2'500'000, 1'000'000);
  work(Work::Experts, 1, 3'500'000, 4'500'000);
  return token;
}

struct Drawn {
  Json record;
  ReportSection section;
  ReportComparison comparison;
  Archived loaded;

  explicit Drawn(Json value) {
    loaded.value = std::move(value);
    ReportRun run;
    run.record = &loaded;
    run.values["decode_tok_s"] = 1;
    ReportGroup group;
    group.label = "a group";
    group.runs.push_back(run);
    comparison.groups.push_back(group);
  }
  ReportPlot plot() const { return token_plot(section, comparison); }
};

size_t count(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

TEST(TokenTimelineTest, SpansHaveNamesAndMicroseconds) {
  const Json json = Json(token_timeline_json(made_token()));
  EXPECT_EQ(json["token"], 5);
  EXPECT_EQ(json["ms"], 8.0);
  ASSERT_EQ(json["spans"].size(), 5u);
  EXPECT_EQ(json["spans"][0], Json::parse(R"(["dense", 0.0, 2500.0, 0, 0])"));
  EXPECT_EQ(json["spans"][2], Json::parse(R"(["read ahead", 200.0, 500.0, -1, 1500000])"));
}

TEST(TokenTimelineTest, EverySpanIsDrawnInItsStrips) {
  const Drawn drawn(Json{{"token_timeline", Json(token_timeline_json(made_token()))}});
  const ReportPlot plot = drawn.plot();
  EXPECT_EQ(plot.name, "token");
  EXPECT_NE(plot.svg.find("token 5, 8.0 ms"), std::string::npos);
  EXPECT_EQ(count(plot.svg, "<title>dense, layer 0, 2.500 ms"), 2u);    // strips 1 and 2
  EXPECT_EQ(count(plot.svg, "<title>experts, layer 1, 4.500 ms"), 3u);  // 2, 3 and 4
  EXPECT_EQ(count(plot.svg, "<title>read demand, 1.50 MB, 1.000 ms"), 1u);
  EXPECT_EQ(count(plot.svg, "<title>read ahead"), 1u);
  EXPECT_EQ(count(plot.svg, "<title>waiting for reads"), 1u);
}

TEST(TokenTimelineTest, WhatIsNoTimelineIsNotDrawn) {
  const Json good = Json(token_timeline_json(made_token()));
  const auto drawn = [](Json timeline) {
    return !Drawn(Json{{"token_timeline", std::move(timeline)}}).plot().svg.empty();
  };
  EXPECT_TRUE(drawn(good));
  EXPECT_TRUE(Drawn(Json::object()).plot().svg.empty());
  for (const char* pointer : {"/ms", "/token", "/spans", "/spans/0", "/spans/1/0", "/spans/1/1",
                              "/spans/1/2", "/spans/1/3", "/spans/1/4"}) {
    for (const Json& bad : {Json("x<y"), Json(nullptr), Json(-5), Json(1e300), Json::array()}) {
      if (std::string(pointer) == "/spans/1/0" && bad.is_string()) continue;  // any name will do
      Json changed = good;
      changed[Json::json_pointer(pointer)] = bad;
      if (std::string(pointer) == "/spans" && bad.is_array()) continue;  // nothing happened
      EXPECT_FALSE(drawn(changed)) << pointer << " " << bad;
    }
  }
}

}  // namespace
}  // namespace penstock::measure
