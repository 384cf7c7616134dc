// This repository's own documents: every figure has a claim, and the page of benchmarks is what the
// archived campaigns give.
#include <algorithm>
#include <filesystem>

#include "e2e/program.h"

namespace penstock::testing {
namespace {

namespace fs = std::filesystem;
const std::string kSource = PENSTOCK_SOURCE_DIR;

class Documents : public Program {};

TEST_F(Documents, EveryFigureHasAClaimThatHolds) {
  const Outcome outcome = run({"audit", kSource + "/bench/claims.toml"});
  EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
}

TEST_F(Documents, BenchmarksAreWhatTheRecordsGive) {
  std::vector<std::string> arguments = {"report"};
  for (const auto& campaign : fs::directory_iterator(kSource + "/bench/results/campaigns")) {
    arguments.push_back(campaign.path().string());
  }
  const std::string page = path("docs/benchmarks.md"), plots = path("docs/plots");
  fs::create_directories(plots);
  arguments.insert(arguments.end(), {"--docs", page, "--plots", plots});
  const Outcome outcome = run(arguments);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_TRUE(read_all(page) == read_all(kSource + "/docs/benchmarks.md"))
      << "penstock report bench/results/campaigns/* --docs docs/benchmarks.md --plots docs/plots";
  size_t compared = 0;
  for (const auto& plot : fs::directory_iterator(plots)) {
    const std::string name = plot.path().filename().string();
    EXPECT_TRUE(read_all(plot.path().string()) == read_all(kSource + "/docs/plots/" + name))
        << name;
    ++compared;
  }
  EXPECT_GT(compared, 10u);
}

TEST_F(Documents, AnEditedRecordIsFound) {
  const fs::path campaign = kSource + "/bench/results/campaigns/streaming-3g";
  fs::copy(campaign, path("records"), fs::copy_options::recursive);
  std::string edited;
  for (const auto& entry : fs::directory_iterator(path("records"))) {
    if (entry.path().extension() != ".json") continue;
    std::string text = read_all(entry.path().string());
    const size_t at = text.find("\"decode_ms\":");
    if (at == std::string::npos) continue;
    text[at + 12] = text[at + 12] == '9' ? '8' : '9';
    write("records/" + entry.path().filename().string(), text);
    edited = entry.path().stem().string();
    break;
  }
  ASSERT_FALSE(edited.empty());
  const Outcome verified = run({"record", "verify", path("records/" + edited + ".json")});
  EXPECT_EQ(verified.code, 6);
  expect_words(verified.out, {"its name is not its hash", "decode_ms"});
  const Outcome report = run({"report", path("records"), "-o", path("report")});
  EXPECT_EQ(report.code, 6);
  expect_words(report.err, {edited.substr(0, 8)});
}

TEST_F(Documents, AReportWithoutNamesIsOfWhatBenchLeftHere) {
  fs::current_path(path(""));
  const Outcome nothing = run({"report"});
  EXPECT_EQ(nothing.code, 2);
  expect_words(nothing.err, {"penstock bench quick"});
  EXPECT_FALSE(fs::exists(path("report")));
  fs::copy(kSource + "/bench/results/campaigns/streaming-3g", path("bench-records"),
           fs::copy_options::recursive);
  const Outcome report = run({"report"});
  EXPECT_EQ(report.code, 0) << report.err;
  expect_words(report.out, {"report/report.html"});
  expect_words(read_all(path("report/report.html")), {"streaming-3g", "</html>"});
  fs::current_path("/");
}

}  // namespace
}  // namespace penstock::testing
