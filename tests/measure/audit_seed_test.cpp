// The published figures of docs/seed: what becomes of each is what its README says.
#include <gtest/gtest.h>

#include <map>

#include "audit_support.h"
#include "base/file.h"
#include "measure/record_verify.h"

namespace penstock::measure {
namespace {

std::string trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(' ');
  return begin == std::string::npos ? ""
                                    : text.substr(begin, text.find_last_not_of(' ') + 1 - begin);
}

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> out(1);
  for (const char c : text) {
    if (c == at) {
      out.emplace_back();
    } else {
      out.back() += c;
    }
  }
  return out;
}

struct Row {
  std::string mark;
  std::set<std::string> verdicts;
};

std::map<int, Row> table_of(const std::string& readme) {
  std::map<int, Row> out;
  for (const std::string& line : split(readme, '\n')) {
    const std::vector<std::string> cells = split(line, '|');
    if (cells.size() < 6 ||
        trimmed(cells[1]).find_first_not_of("0123456789") != std::string::npos ||
        trimmed(cells[1]).empty()) {
      continue;
    }
    Row& row = out[std::stoi(cells[1])];
    row.mark = trimmed(cells[3]);
    for (const std::string& verdict : split(cells[4], ',')) row.verdicts.insert(trimmed(verdict));
  }
  return out;
}

TEST(AuditSeed, EveryRowIsJudgedAsItsTableSays) {
  const std::string folder = std::string(PENSTOCK_SOURCE_DIR) + "/docs/seed";
  const std::map<int, Row> table = table_of(read_text_file(folder + "/README.md"));
  ASSERT_EQ(table.size(), 28u);
  const Audit audit =
      measure::audit({.claims = folder + "/claims.toml", .documents = {}, .records = {}});
  EXPECT_FALSE(audit.ok());
  EXPECT_EQ(audit.records, 8u);
  std::map<int, std::set<std::string>> found;
  for (const ClaimResult& result : audit.claims) {
    const int row = std::stoi(result.claim.id.substr(4));
    for (const Finding& finding : result.findings) {
      EXPECT_FALSE(finding.accepted);
      found[row].insert(verdict_name(finding.verdict));
    }
  }
  for (const auto& [number, row] : table) {
    EXPECT_EQ(found[number], row.verdicts) << "row " << number;
    const auto has = [&, at = number](const char* name) { return found[at].count(name) != 0; };
    const bool wrong = has("MISMATCH") || has("NO SOURCE");
    if (row.mark == "✓") {
      EXPECT_FALSE(wrong) << "row " << number;
    } else if (row.mark == "✗") {
      EXPECT_TRUE(wrong) << "row " << number;
    } else if (row.mark == "⚠") {
      EXPECT_TRUE(has("NOT MEASURED") || has("MISLABELLED")) << "row " << number;
    } else if (row.mark == "?") {
      EXPECT_TRUE(has("NO SOURCE")) << "row " << number;
    } else {
      EXPECT_EQ(row.mark, "✓ value, ✗ label");
      EXPECT_TRUE(!wrong && has("MISLABELLED")) << "row " << number;
    }
  }
}

TEST(AuditSeed, ItsRecordsAreSound) {
  const std::string folder = std::string(PENSTOCK_SOURCE_DIR) + "/docs/seed/records";
  size_t n = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const RecordCheck check = verify_record(entry.path());
    EXPECT_TRUE(check.sound()) << entry.path() << (check.sound() ? "" : check.problems[0]);
    ++n;
  }
  EXPECT_EQ(n, 8u);
}

}  // namespace
}  // namespace penstock::measure
