// Reports: the same records give the same bytes, every number leads back to its
// record, and what must not be compared, or does not count, is said.
#include "measure/report.h"

#include <gtest/gtest.h>

#include <regex>
#include <set>

#include "base/error.h"
#include "measure/formula.h"
#include "measure/report_groups.h"
#include "measure/report_support.h"
#include "measure/report_tables.h"
#include "measure/report_text.h"
#include "models/tiny_models.h"

namespace penstock::measure {
namespace {

using testing::Made;
using testing::MadeRun;
using Json = nlohmann::json;
namespace fs = std::filesystem;

bool holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

size_t count_of(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

// Every element is closed in order, identities are unique, and every link
// within the page has a target. Returns the first fault, "" if there is none.
std::string html_fault(const std::string& html) {
  static const std::set<std::string> empty = {"meta", "!DOCTYPE"};
  std::vector<std::string> open;
  std::set<std::string> ids, links;
  for (size_t at = html.find('<'); at != std::string::npos; at = html.find('<', at + 1)) {
    const size_t end = html.find('>', at);
    if (end == std::string::npos) return "an element does not end";
    const std::string tag = html.substr(at + 1, end - at - 1);
    const size_t first = tag.starts_with('/') ? 1 : 0;
    const std::string name = tag.substr(first, tag.find_first_of(" /", first) - first);
    if (const size_t id = tag.find(" id=\""); id != std::string::npos) {
      const std::string value = tag.substr(id + 5, tag.find('"', id + 5) - id - 5);
      if (!ids.insert(value).second) return "twice: " + value;
    }
    if (const size_t link = tag.find("href=\"#"); link != std::string::npos) {
      links.insert(tag.substr(link + 7, tag.find('"', link + 7) - link - 7));
    }
    if (first == 1) {
      if (open.empty() || open.back() != name) return "closes " + name;
      open.pop_back();
    } else if (empty.count(name) == 0 && !tag.ends_with('/')) {
      open.push_back(name);
    }
  }
  for (const std::string& link : links) {
    if (ids.count(link) == 0) return "leads nowhere: " + link;
  }
  return open.empty() ? "" : "not closed: " + open.back();
}

std::vector<std::vector<std::string>> csv_rows(const std::string& text) {
  std::vector<std::vector<std::string>> rows(1, std::vector<std::string>(1));
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted && c == '"' && i + 1 < text.size() && text[i + 1] == '"') {
      rows.back().back() += '"';
      ++i;
    } else if (c == '"') {
      quoted = !quoted;
    } else if (!quoted && c == ',') {
      rows.back().emplace_back();
    } else if (!quoted && c == '\n') {
      rows.emplace_back(1);
    } else {
      rows.back().back() += c;
    }
  }
  rows.pop_back();
  return rows;
}

class ReportTest : public ::testing::Test {
 protected:
  std::string folder() const { return folder_.path() + "/runs"; }

  std::string add(const Made& made) { return testing::id_of(testing::put_run(folder(), made)); }
  std::string add(const Json& record) {
    return testing::id_of(testing::put_record(folder(), record));
  }

  // Three runs of each of three sizes, interleaved, and the first size again.
  std::vector<MadeRun> sweep() {
    std::vector<MadeRun> runs;
    double started = 1000;
    for (int repeat = 0; repeat < 3; ++repeat) {
      for (const int slots : {64, 128, 256}) {
        const double decode = 400.0 / slots + 0.01 * repeat;
        runs.push_back({std::to_string(slots) + " slots",
                        add(Made{.slots = slots, .decode_s = decode, .started = started++})});
      }
    }
    return runs;
  }

  Report report_of(const std::vector<std::string>& paths) {
    archive_ = {};
    for (const std::string& path : paths) archive_.add(path);
    return make_report(archive_);
  }
  Report report() { return report_of({folder()}); }

  std::string refusal() {
    try {
      report();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::Format);
      return error.what();
    }
    return {};
  }

  penstock::testing::TemporaryFolder folder_;
  Archive archive_;
};

std::string everything(const Report& report) {
  const ReportPage page = report_page(report, "Title", "plots");
  std::string out = report_html(report) + report_markdown(report) + report_csv(report) +
                    report_json(report).dump() + report_table(report) + page.markdown;
  for (const ReportFile& plot : page.plots) out += plot.name + plot.text;
  return out;
}

const ReportGroup* group_called(const Report& report, const std::string& label) {
  for (const ReportSection& section : report.sections) {
    for (const ReportComparison& comparison : section.comparisons) {
      for (const ReportGroup& group : comparison.groups) {
        if (group.label == label) return &group;
      }
    }
  }
  return nullptr;
}

TEST_F(ReportTest, OrderAndPlaceOfFilesDecideNothing) {
  add(testing::made_campaign({"64 slots", "128 slots", "256 slots"}, sweep()));
  const std::string first = everything(report());
  std::vector<std::string> files;
  for (const auto& entry : fs::directory_iterator(folder())) {
    if (entry.is_regular_file()) files.push_back(entry.path().string());
  }
  std::sort(files.rbegin(), files.rend());
  EXPECT_EQ(everything(report_of(files)), first);
  // Elsewhere, and twice.
  const std::string other = folder_.path() + "/other";
  fs::copy(folder(), other, fs::copy_options::recursive);
  EXPECT_EQ(everything(report_of({other, folder()})), first);
  EXPECT_FALSE(holds(first, folder_.path()));
  EXPECT_FALSE(holds(first, "/somewhere"));
}

TEST_F(ReportTest, HtmlIsWholeAndLeadsFromEveryFigureToItsRecord) {
  add(testing::made_campaign({"64 slots", "128 slots", "256 slots"}, sweep()));
  const Report r = report();
  const std::string html = report_html(r);
  EXPECT_EQ(html_fault(html), "");
  EXPECT_FALSE(holds(html, "<script"));
  EXPECT_EQ(count_of(html, "http"), count_of(html, "http://www.w3.org/2000/svg"));
  EXPECT_TRUE(holds(html, "prefers-color-scheme:dark"));
  for (const Archived* record : r.records) EXPECT_TRUE(holds(html, "record " + record->id));
  EXPECT_TRUE(holds(html, html_text("{/timings/decode/tokens} / {/timings/decode/seconds}")));
  // 95 steps in 6.25 s to 6.27 s: the median links to its values.
  EXPECT_TRUE(
      std::regex_search(html.substr(0, 20000), std::regex("<a href=\"#g1-decode_tok_s\">15.18 "
                                                          "<small>15.15 to 15.20</small></a>")));
}

TEST_F(ReportTest, EveryValueCanBeComputedAgain) {
  add(testing::made_campaign({"64 slots", "128 slots", "256 slots"}, sweep()));
  add(testing::made_peer("other", 5000, 1));
  const Report r = report();
  const auto rows = csv_rows(report_csv(r));
  EXPECT_EQ(rows[0][0], "record");
  size_t values = 0;
  for (size_t i = 1; i < rows.size(); ++i) {
    ASSERT_EQ(rows[i].size(), 10u);
    const Archived* record = archive_.find(rows[i][0]);
    ASSERT_NE(record, nullptr);
    const Formula formula(rows[i][8]);
    EXPECT_EQ(fmt::format("{}", formula.evaluate(record->value)), rows[i][6]);
    std::string pointers;
    for (const std::string& pointer : formula.pointers()) {
      pointers += (pointers.empty() ? "" : " ") + pointer;
    }
    EXPECT_EQ(rows[i][9], pointers);
    ++values;
  }
  EXPECT_GT(values, 9u * 20);
  const Json json = Json(report_json(r));
  EXPECT_EQ(json["records"].size(), 10u);
  const Json& figure =
      json["sections"][0]["comparisons"][0]["groups"][0]["figures"]["decode_tok_s"];
  EXPECT_EQ(figure["n"], 3);
  EXPECT_DOUBLE_EQ(figure["median"].get<double>(), 95 / 6.26);
}

TEST_F(ReportTest, ACampaignIsReportedWholeOrNotAtAll) {
  std::vector<MadeRun> runs = sweep();
  add(testing::made_campaign({"64 slots", "128 slots", "256 slots"}, runs));
  EXPECT_EQ(refusal(), "");
  fs::remove(folder() + "/" + runs[4].record + ".json");
  const std::string message = refusal();
  EXPECT_TRUE(holds(message, runs[4].record)) << message;
  EXPECT_TRUE(holds(message, "128 slots"));
}

TEST_F(ReportTest, WhatWasEditedIsRefusedAndNamed) {
  const std::string path = testing::put_run(folder(), Made{});
  std::string text = read_text_file(path);
  text.replace(text.find("\"seconds\":4.0"), 13, "\"seconds\":2.0");
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
  const std::string message = refusal();
  EXPECT_TRUE(holds(message, fs::path(path).filename().string())) << message;
  EXPECT_TRUE(holds(message, "hash")) << message;
}

TEST_F(ReportTest, WhatFailedHasARow) {
  const Json failed = testing::made_record(
      {.started = 5, .change = [](Json& r) {
         r["settings"] = r["inputs"] = r["timings"] = r["plan"] = r["lossy"] = nullptr;
         r["quality_key"] = nullptr;
         r["turns"] = r["tokens"] = r["counters"] = Json::array();
         r["outcome"] = {{"state", "error"},
                         {"exit_code", 3},
                         {"error", "/somewhere/else/model.gguf: does not fit\nand a table"}};
       }});
  std::vector<MadeRun> runs = sweep();
  runs.push_back({"1 slot", add(failed), "failed"});
  runs.push_back({"0 slots", "", "refused", "no memory | left"});
  runs.push_back({"128 slots", "", "failed", "the server did not answer"});
  add(testing::made_campaign({"64 slots", "128 slots", "256 slots", "1 slot", "0 slots"}, runs));
  const Report r = report();
  ASSERT_EQ(r.sections.size(), 1u);
  ASSERT_EQ(r.sections[0].comparisons.size(), 1u);
  EXPECT_EQ(r.sections[0].comparisons[0].groups.size(), 5u);
  for (const std::string& text : {report_html(r), report_csv(r), report_table(r),
                                  report_json(r).dump(), report_markdown(r)}) {
    EXPECT_TRUE(holds(text, "error: model.gguf: does not fit")) << text.substr(0, 3000);
    EXPECT_TRUE(holds(text, "the server did not answer"));
    EXPECT_TRUE(holds(text, "no memory"));
    EXPECT_FALSE(holds(text, "and a table"));
  }
  EXPECT_EQ(html_fault(report_html(r)), "");
  const ReportGroup* half = group_called(r, "128 slots");
  ASSERT_NE(half, nullptr);
  EXPECT_EQ(half->runs.size(), 4u);
  EXPECT_EQ(half->find("decode_tok_s")->spread.n, 3u);
}

TEST_F(ReportTest, ADecodeThatEndedEarlyIsNoResult) {
  add(Made{.steps = 95, .started = 1});
  add(Made{.steps = 11, .started = 2});
  const Report r = report();
  // It stands with the runs that agree with it otherwise, without figures of
  // decode.
  ASSERT_EQ(r.sections[0].comparisons.size(), 1u);
  const ReportGroup& group = r.sections[0].comparisons[0].groups[0];
  ASSERT_EQ(group.runs.size(), 2u);
  EXPECT_EQ(group.find("decode_tok_s")->spread.n, 1u);
  EXPECT_EQ(group.find("hit_pct")->spread.n, 1u);
  EXPECT_EQ(group.find("prefill_tok_s")->spread.n, 2u);
  EXPECT_TRUE(holds(report_table(r), "12 tokens, fewer than 64, ended by: token limit"));
}

TEST_F(ReportTest, FewRunsAndMovedControlsAreMarked) {
  std::vector<MadeRun> runs = sweep();
  runs.pop_back();
  Json campaign = testing::made_campaign({"64 slots", "128 slots", "256 slots"}, runs);
  campaign["control"] = {
      {"arm", "64 slots"}, {"first", 10.0}, {"last", 9.6}, {"moved", -0.04}, {"void", false}};
  const std::string sound = add(campaign);
  Report r = report();
  EXPECT_FALSE(r.sections[0].is_void);
  EXPECT_EQ(group_called(r, "64 slots")->marks, std::vector<std::string>());
  EXPECT_EQ(group_called(r, "256 slots")->marks, std::vector<std::string>{"n < 3"});
  fs::remove(folder() + "/" + sound + ".json");

  campaign["control"]["last"] = 9.4;  // whatever the manifest says about itself
  add(campaign);
  r = report();
  EXPECT_TRUE(r.sections[0].is_void);
  for (const std::string& text :
       {report_html(r), report_markdown(r), report_table(r), report_page(r, "T", "p").markdown}) {
    EXPECT_TRUE(holds(text, "VOID"));
    EXPECT_TRUE(holds(text, "6.0 %"));
  }
  for (const ReportPlot& plot : report_plots(r.sections[0], r.sections[0].comparisons[0])) {
    EXPECT_TRUE(holds(plot.svg, "VOID")) << plot.name;
  }
}

TEST_F(ReportTest, TheControlAtTheEndStandsForItself) {
  std::vector<MadeRun> runs = sweep();
  runs.push_back({.arm = "64 slots", .record = add(Made{.started = 99}), .control = true});
  add(testing::made_campaign({"64 slots", "128 slots", "256 slots"}, runs));
  const Report r = report();
  EXPECT_EQ(group_called(r, "64 slots")->runs.size(), 3u);
  ASSERT_NE(group_called(r, "64 slots, again at the end (control)"), nullptr);
}

TEST_F(ReportTest, ModelsPromptsAndLengthsAreSeparated) {
  add(Made{.started = 1});
  add(Made{.started = 2, .model = std::string(64, 'd'), .model_path = "small.gguf"});
  add(Made{.started = 3, .prompt = "5\n6\n8\n"});
  add(Made{.started = 4, .prompt = "5\n6\n7\n8\n"});
  add(Made{.steps = 127, .started = 5});
  const Report r = report();
  ASSERT_EQ(r.sections.size(), 1u);
  EXPECT_EQ(r.sections[0].comparisons.size(), 5u);
  EXPECT_TRUE(holds(report_markdown(r), "5 comparisons, each by itself"));
  EXPECT_TRUE(holds(report_markdown(r), "128 tokens generated, 127 timed"));
}

TEST_F(ReportTest, PeersStandBesideUsOnTheSamePrompt) {
  std::vector<MadeRun> runs = sweep();
  // Its prompt's file holds the text, ours the token ids.
  for (int i = 0; i < 3; ++i) {
    const Json peer = testing::made_peer("other", 9500 + i, i, [](Json& r) {
      r["inputs"]["prompt"]["file"] = hex(sha256("the text"));
    });
    runs.push_back({"peer", testing::id_of(testing::put_record(folder(), peer, "the text"))});
  }
  // Another count of prompt tokens is another prompt.
  runs.push_back({"peer with BOS", add(testing::made_peer("other", 9500, 9, [](Json& r) {
                    r["inputs"]["prompt"]["tokens"] = 4;
                  }))});
  add(testing::made_campaign({"64 slots", "128 slots", "256 slots", "peer", "peer with BOS"},
                             runs));
  const Report r = report();
  ASSERT_EQ(r.sections[0].comparisons.size(), 2u);
  const ReportGroup* peer = group_called(r, "peer");
  ASSERT_NE(peer, nullptr);
  EXPECT_NEAR(peer->find("decode_tok_s")->spread.median, 95 / 9.501, 1e-12);
  EXPECT_EQ(r.sections[0].comparisons[0].groups.size(), 4u);
  // Settings of two programs are not set against each other.
  for (const Difference& d : peer->differences) EXPECT_NE(d.kind, "settings");
}

TEST_F(ReportTest, WhatNoOptionNamesIsPointedOut) {
  std::vector<MadeRun> runs;
  for (int i = 0; i < 3; ++i) runs.push_back({"a", add(Made{.started = 1.0 + i})});
  for (int i = 0; i < 3; ++i) {
    runs.push_back({"b", add(Made{.slots = 128, .started = 11.0 + i, .change = [](Json& r) {
                                    r["environment"]["MALLOC_ARENA_MAX"] = "1";
                                    r["settings"]["evict"] = "lru";
                                  }})});
  }
  add(testing::made_campaign({"a", "b"}, runs));
  const Report r = report();
  std::map<std::string, bool> named;
  for (const Difference& d : group_called(r, "b")->differences) named[d.name] = d.named;
  const std::map<std::string, bool> wanted = {
      {"slots", true}, {"arena_slots", true}, {"evict", false}, {"MALLOC_ARENA_MAX", false}};
  EXPECT_EQ(named, wanted);
  EXPECT_TRUE(holds(report_table(r),
                    "b also differs from the first configuration in what no option names: "
                    "environment MALLOC_ARENA_MAX, evict."));
  EXPECT_FALSE(r.sections[0].comparisons[0].by_slots);
}

TEST_F(ReportTest, SeveralSettingsAtOnceAreSaid) {
  for (int i = 0; i < 3; ++i) add(Made{.started = 1.0 + i});
  for (int i = 0; i < 3; ++i) {
    add(Made{.slots = 128,
             .started = 11.0 + i,
             .lossy = {"moce"},
             .more_argv = {"--evict", "lru"},
             .change = [](Json& r) { r["settings"]["evict"] = "lru"; }});
  }
  const std::string table = report_table(report());
  EXPECT_TRUE(holds(table, "in 2 settings at once (evict, slots)")) << table;
  EXPECT_TRUE(holds(table, "in what no option names: identity lossy.")) << table;
  EXPECT_TRUE(holds(table, "lossy: moce"));
}

TEST_F(ReportTest, QualityThatFailsIsNoHeadline) {
  for (int i = 0; i < 3; ++i) add(Made{.started = 1.0 + i, .lossy = {"moce"}});
  const std::string key = Made{}.quality_key;
  Json kld = {{"kind", "kld"},
              {"text", "t.txt"},
              {"model_id", "m"},
              {"base_model_id", "m"},
              {"mean_kld", 0.01},
              {"same_top", 0.995},
              {"ln_ppl_ratio_interval", {0.0, 0.01}}};
  const Json tasks = {{"kind", "tasks"}, {"accuracy", 0.9}, {"n", 60}};
  const auto table = [&](const Json& list) {
    std::ofstream(folder() + "/quality.json")
        << Json{{"schema", "penstock-quality-1"}, {"quality_key", key}, {"measurements", list}};
    return report_markdown(report());
  };
  EXPECT_TRUE(holds(table({kld, tasks}), "quality: passed"));
  EXPECT_TRUE(holds(table(Json::array({kld})), "quality: incomplete: no tasks"));
  kld["mean_kld"] = 0.03;
  const std::string failed = table({kld, tasks});
  EXPECT_TRUE(holds(failed, "quality: failed: mean KLD 0.03, at most 0.02")) << failed;
  EXPECT_TRUE(holds(failed, "quality failed")) << failed;  // beside the label of the speed
}

TEST_F(ReportTest, ConfigurationsAreCalledByWhatTellsThemApart) {
  for (const int slots : {128, 64, 1000}) {
    for (int i = 0; i < 2; ++i) add(Made{.slots = slots, .started = slots + i * 1.0});
  }
  const Report r = report();
  std::vector<std::string> labels;
  for (const ReportGroup& group : r.sections[0].comparisons[0].groups)
    labels.push_back(group.label);
  EXPECT_EQ(labels, (std::vector<std::string>{"slots = 64", "slots = 128", "slots = 1000"}));
  EXPECT_TRUE(r.sections[0].comparisons[0].by_slots);
  bool drawn = false;
  for (const ReportPlot& plot : report_plots(r.sections[0], r.sections[0].comparisons[0])) {
    EXPECT_EQ(html_fault(svg_file(plot)), "") << plot.name;
    drawn = drawn || plot.name == "slots";
  }
  EXPECT_TRUE(drawn);
}

TEST_F(ReportTest, WhatComputesSomethingElseDoesNotTakeTheArenaPlotAway) {
  for (const int slots : {128, 64, 1000}) {
    for (int i = 0; i < 3; ++i) add(Made{.slots = slots, .started = slots + i * 1.0});
  }
  for (int i = 0; i < 3; ++i) {
    add(Made{.slots = 256,
             .started = 2000.0 + i,
             .lossy = {"alias-experts"},
             .more_argv = {"--alias-experts"}});
  }
  const Report r = report();
  const ReportComparison& comparison = r.sections[0].comparisons[0];
  ASSERT_EQ(comparison.groups.size(), 4u);
  EXPECT_TRUE(comparison.by_slots);
  for (const ReportGroup& group : comparison.groups) {
    EXPECT_EQ(of_an_arena_plot(comparison, group), group.lossy.empty()) << group.label;
  }
}

// The reference example of spec/streaming.md §M.1: 55.79 ms, 107.8 MB, 6.94
// GB/s, 72.49 ms.
TEST_F(ReportTest, BoundsAreThoseOfTheModel) {
  std::vector<MadeRun> runs;
  for (int i = 0; i < 3; ++i) {
    runs.push_back(
        {"a", add(Made{.decode_s = 95 * 0.07249, .started = 1.0 + i, .change = [](Json& r) {
                         Json& end = r["counters"][1]["counters"];
                         end["reads_spec"] = {{"reads", 1}, {"bytes", 96 * uint64_t{106800000}}};
                       }})});
  }
  Json campaign = testing::made_campaign({"a"}, runs);
  campaign["measured"] = {{"compute_ms", 55.79}, {"disk_bytes_per_s", 6.94e9}};
  add(campaign);
  const Report r = report();
  const auto& roof = group_called(r, "a")->roofline;
  ASSERT_TRUE(roof.has_value());
  EXPECT_NEAR(roof->measured_ms.median, 72.49, 1e-9);
  EXPECT_NEAR(roof->serial_ms.median, 71.3, 0.05);
  EXPECT_NEAR(roof->overlap_ms.median, 55.79, 1e-9);
  EXPECT_NEAR(roof->share.median, 100 * 55.79 / 72.49, 1e-9);
  EXPECT_EQ(html_fault(report_html(r)), "");
}

TEST_F(ReportTest, QualityIsThatOfTheSameKeyOrUnmeasured) {
  add(Made{.started = 1});
  add(Made{.slots = 128, .started = 2, .quality_key = std::string(64, 'f')});
  const Json store = {
      {"schema", "penstock-quality-1"},
      {"quality_key", std::string(64, 'c')},
      {"settings", Json::object()},
      {"measurements",
       {{{"kind", "kld"}, {"text", "t.txt"}, {"mean_kld", 0.125}, {"same_top", 0.9}},
        {{"kind", "kld"}, {"mean_kld", "none"}}}}};
  std::ofstream(folder() + "/quality.json") << store.dump();
  const Report r = report();
  ASSERT_EQ(r.qualities.size(), 1u);
  const std::string markdown = report_markdown(r);
  EXPECT_TRUE(holds(markdown, "0.1250"));
  EXPECT_TRUE(holds(markdown, "{/measurements/0/mean_kld}"));
  EXPECT_EQ(count_of(markdown, "quality: unmeasured"), 1u);
  EXPECT_EQ(group_called(r, "slots = 128")->quality.size(), 0u);
  EXPECT_EQ(group_called(r, "slots = 64")->quality.size(), 1u);
}

TEST_F(ReportTest, QualityIsDrawnAgainstSpeedOverModels) {
  for (int i = 0; i < 2; ++i) {
    const std::string key(64, i == 0 ? 'c' : 'f');
    add(Made{.started = 1.0 + i, .model = std::string(64, i == 0 ? 'a' : 'd'), .quality_key = key});
    const Json eval = {
        {"kind", "perplexity"}, {"quality_key", key}, {"text", "t"}, {"ppl", 4.0 + i}};
    std::ofstream(folder() + "/eval" + std::to_string(i) + ".json") << eval.dump();
  }
  const Report r = report();
  ASSERT_EQ(r.sections[0].comparisons.size(), 2u);
  const auto plots = quality_plots(r.sections[0]);
  ASSERT_EQ(plots.size(), 1u);
  EXPECT_EQ(plots[0].name, "quality-perplexity");
  EXPECT_EQ(html_fault(report_html(r)), "");
}

TEST_F(ReportTest, OneQualityIsNotDrawn) {
  const std::string key(64, 'c');
  add(Made{.started = 1, .quality_key = key});
  add(Made{.slots = 128, .started = 2, .quality_key = key});
  const Json eval = {{"kind", "perplexity"}, {"quality_key", key}, {"text", "t"}, {"ppl", 4.0}};
  std::ofstream(folder() + "/eval.json") << eval.dump();
  const Report r = report();
  ASSERT_EQ(r.sections[0].comparisons[0].groups.size(), 2u);
  EXPECT_EQ(group_called(r, "slots = 128")->quality.size(), 1u);
  EXPECT_TRUE(quality_plots(r.sections[0]).empty());
}

TEST_F(ReportTest, HostileNamesStayText) {
  const std::string evil = "<script>alert(1)</script>\"'|`*_&\x01\xef\xbf\xbf\n# head";
  std::vector<MadeRun> runs;
  runs.push_back({evil, add(Made{.started = 1, .model_path = evil})});
  runs.push_back({evil, "", "refused", evil});
  Json campaign = testing::made_campaign({evil}, runs);
  campaign["name"] = evil;
  campaign["definition"]["description"] = evil;
  add(campaign);
  std::ofstream(folder() + "/odd\xff\x02name.json") << "{}";
  const Report r = report();
  const std::string html = report_html(r);
  EXPECT_FALSE(holds(html, "<script"));
  EXPECT_EQ(html_fault(html), "");
  for (const char c : html) EXPECT_TRUE(c == '\n' || static_cast<unsigned char>(c) >= 0x20);
  for (const ReportPlot& plot : report_plots(r.sections[0], r.sections[0].comparisons[0])) {
    EXPECT_EQ(html_fault(svg_file(plot)), "");
    EXPECT_FALSE(holds(plot.svg, "\xef\xbf\xbf"));
  }
  for (const auto& row : csv_rows(report_csv(r))) EXPECT_EQ(row.size(), 10u);
  // No line of a table has more cells than its head.
  const std::string markdown = report_markdown(r);
  EXPECT_FALSE(holds(markdown, "<script"));
  EXPECT_FALSE(holds(markdown, "\n# head"));
  EXPECT_TRUE(Json::accept(report_json(r).dump()));
  EXPECT_EQ(r.unused.size(), 1u);
}

TEST_F(ReportTest, PagesReferToPlotsThatAreThere) {
  std::vector<MadeRun> runs = sweep();
  add(testing::made_campaign({"64 slots", "128 slots", "256 slots"}, runs));
  add(Made{.started = 77, .model = std::string(64, '9')});
  const ReportPage page = report_page(report(), "Speed", "plots");
  std::set<std::string> names;
  for (const ReportFile& plot : page.plots) {
    EXPECT_TRUE(names.insert(plot.name).second) << plot.name;
    EXPECT_EQ(html_fault(plot.text), "") << plot.name;
    EXPECT_TRUE(holds(page.markdown, "](plots/" + plot.name + ")"));
  }
  EXPECT_EQ(count_of(page.markdown, "]("),
            count_of(page.markdown, "](plots/") + count_of(page.markdown, "](#"));
  EXPECT_TRUE(holds(page.markdown, "# Speed"));
  EXPECT_TRUE(holds(page.markdown, "How much arena is worth."));
  EXPECT_TRUE(holds(page.markdown, "- two *stars*"));
  EXPECT_TRUE(holds(page.markdown, "A Processor, 4 logical processors on 2 cores, 8.0 GiB"));
}

TEST_F(ReportTest, WhatIsNotFiniteOrNotThereIsNoFigure) {
  add(testing::made_peer("other", 1e-308, 1));  // 95 / 1e-308 overflows
  add(testing::made_peer("other", 0, 2));
  add(testing::made_peer("other", 5000, 3,
                         [](Json& r) { r["values"]["decode_tokens"] = nullptr; }));
  const std::string text = everything(report());
  EXPECT_FALSE(std::regex_search(report_csv(report()), std::regex("(^|,)-?(inf|nan)")));
  EXPECT_FALSE(holds(text, ">inf"));
  EXPECT_TRUE(holds(text, "it has no decode steps"));
}

TEST_F(ReportTest, FreeMembersMayHoldAnything) {
  Json deep = 1;
  for (int i = 0; i < 40; ++i) deep = Json{{"seconds", deep}, {"tokens", -1}};
  const std::vector<Json> odd = {
      Json::object(),
      deep,
      {{"prefill", {{"tokens", 1e308}, {"seconds", 1e-308}}}, {"decode", 5}, {"slots", "many"}},
      {{"slots", {1, 2}}, {"terms", {{"arena", nullptr}}}, {"decode", {{"tokens", "x"}}}},
      {{"sampling", {{"temperature", Json::array()}}}, {"measured", true}, {"slots", -1e300}},
      nullptr};
  double started = 1;
  for (const char* member : {"settings", "plan", "dense", "timings", "watchdog", "experts",
                             "quality_settings", "machine"}) {
    for (const Json& value : odd) {
      add(Made{.started = started++, .change = [&](Json& r) {
                 if (member == std::string("machine")) {
                   r[member]["cpu"] = r[member]["kernel"] =
                       value.is_null() ? Json::object() : value;
                 } else {
                   r[member] = value;
                 }
               }});
    }
  }
  const Report r = report();
  EXPECT_EQ(r.records.size(), 48u);
  const std::string text = everything(r);
  EXPECT_EQ(html_fault(report_html(r)), "");
  EXPECT_FALSE(std::regex_search(report_csv(r), std::regex("(^|,)-?(inf|nan)")));
  for (const char* word : {"=\"nan", "=\"inf", "=\"-inf", ">nan", ">inf", ">-inf"}) {
    EXPECT_FALSE(holds(text, word)) << word;
  }
}

TEST_F(ReportTest, FreeMembersOfCampaignsMayHoldAnything) {
  const std::string id = add(Made{});
  const std::vector<Json> odd = {Json::object(),
                                 {{"description", 5}, {"notes", Json::array()}},
                                 {{"compute_ms", "x"}, {"disk_bytes_per_s", -1}},
                                 {{"compute_ms", 1e308}, {"disk_bytes_per_s", 1e-300}},
                                 {{"control_limit", Json::object()}}};
  for (const Json& value : odd) {
    for (const double first : {0.0, 1e308, 1e-308}) {
      Json campaign = testing::made_campaign({"a", "never run"}, {{"a", id}, {"unknown", ""}});
      campaign["definition"] = campaign["measured"] = campaign["conditions"] = value;
      campaign["control"] = {
          {"arm", "a"}, {"first", first}, {"last", 1e308}, {"moved", 0}, {"void", false}};
      const std::string name = add(campaign);
      const Report r = report();
      const std::string text = everything(r);
      EXPECT_EQ(html_fault(report_html(r)), "");
      EXPECT_TRUE(holds(text, "Arm never run has no runs."));
      EXPECT_EQ(r.sections[0].is_void, first != 1e308);
      EXPECT_FALSE(holds(text, "inf %"));
      fs::remove(folder() + "/" + name + ".json");
    }
  }
}

TEST_F(ReportTest, RecordsOfEvaluationsAreQuality) {
  const auto evaluated = [&](double started, const std::string& key, double kld) {
    return add(Made{.started = started, .quality_key = key, .change = [&](Json& r) {
                      r["evaluation"] = {{"kind", "kld"},
                                         {"text", "t.txt"},
                                         {"mean_kld", kld},
                                         {"mean_kld_error", 0.0125},
                                         {"same_top", 0.75}};
                    }});
  };
  add(Made{.started = 1});
  const std::string matched = evaluated(2, std::string(64, 'c'), 0.375);
  const std::string other = evaluated(3, std::string(64, '0'), 0.625);
  const Report r = report();
  ASSERT_EQ(r.sections[0].comparisons.size(), 1u);
  EXPECT_EQ(r.sections[0].comparisons[0].groups.size(), 1u);
  ASSERT_EQ(r.sections[0].comparisons[0].groups[0].quality.size(), 1u);
  EXPECT_EQ(r.sections[0].comparisons[0].groups[0].quality[0].file->id, matched);
  ASSERT_EQ(r.untimed.size(), 1u);
  EXPECT_EQ(r.untimed[0].file->id, other);
  const std::string html = report_html(r);
  EXPECT_EQ(html_fault(html), "");
  EXPECT_TRUE(holds(html, "0.3750 <small>+- 0.0125</small>"));
  EXPECT_TRUE(holds(html, "0.6250"));
}

// Pages that the kernel maps are no reads of this program: no bound can be computed for them.
TEST_F(ReportTest, MappedRunsShowWhatTheSystemFetched) {
  std::vector<MadeRun> runs;
  for (int i = 0; i < 3; ++i) {
    const auto mapped = [](Json& r) {
      Json& end = r["counters"][1]["counters"];
      end["uses_first"] = end["uses_steady"] = testing::made_uses(0, 0, 0);
      end["uses_mapped"] = end["uses_expected"];
      end["reads_demand"] = {{"reads", 0}, {"bytes", 0}};
      r["memory"][1]["storage_bytes_read"] = 96 * 3000000;
      for (Json& row : r["tokens"]) {
        row[6] = row[8] = row[9] = row[12] = 0;
        row[11] = 10;
      }
    };
    runs.push_back({"a", add(Made{.started = 1.0 + i})});
    runs.push_back({"mapped", add(Made{.slots = 1, .started = 10.0 + i, .change = mapped})});
  }
  Json campaign = testing::made_campaign({"a", "mapped"}, runs);
  campaign["measured"] = {{"compute_ms", 5.0}, {"disk_bytes_per_s", 1e9}};
  add(campaign);
  const Report r = report();
  EXPECT_TRUE(group_called(r, "a")->roofline.has_value());
  EXPECT_FALSE(group_called(r, "mapped")->roofline.has_value());
  EXPECT_EQ(group_called(r, "mapped")->find("storage_mb_per_token")->spread.median, 3);
  EXPECT_TRUE(holds(report_markdown(r), "fetched from storage, MB/token"));
}

TEST_F(ReportTest, CutRecordsGiveWhatIsLeft) {
  const std::string path = testing::put_run(folder(), Made{});
  const Json cut = trim_record(Json::parse(read_text_file(path)), {"tokens", "counters", "turns"});
  fs::remove(path);
  EXPECT_EQ(write_record(folder(), cut), path);
  add(Made{.started = 2});
  const Report r = report();
  ASSERT_EQ(r.sections[0].comparisons.size(), 1u);
  const ReportGroup& group = r.sections[0].comparisons[0].groups.at(0);
  EXPECT_EQ(group.find("decode_tok_s")->spread.n, 2u);
  EXPECT_EQ(group.find("hit_pct")->spread.n, 1u);
  EXPECT_TRUE(holds(report_markdown(r), "n = 1"));
}

TEST_F(ReportTest, NothingToReportIsSaid) {
  fs::create_directories(folder());
  std::ofstream(folder() + "/other.json") << "{\"a\": 1}";
  EXPECT_THROW(report(), Error);
  std::ofstream(folder() + "/broken.json") << std::string(100000, '[');
  EXPECT_TRUE(holds(refusal(), "broken.json"));
}

TEST(ReportText, PathsAreCutAndTextStaysText) {
  EXPECT_EQ(without_folders("/a/b/c.gguf: cannot open /d"), "c.gguf: cannot open /d");
  EXPECT_EQ(without_folders("at 3/4 of x/y/z"), "at 3/4 of x/y/z");
  EXPECT_EQ(without_folders("('/home/someone/x y')"), "('x y')");
  EXPECT_EQ(shortened("\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4", 4), "\xc3\xa4...");
  EXPECT_EQ(number_text(1e300, 2), "1e+300");
  EXPECT_EQ(number_text(0, 2), "0.00");
  EXPECT_EQ(csv_cell("a\"b,c"), "\"a\"\"b,c\"");
  EXPECT_EQ(slug(" A b/c! "), "a-b-c");
}

}  // namespace
}  // namespace penstock::measure
