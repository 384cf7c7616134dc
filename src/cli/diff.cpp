// penstock diff: in what two runs, or two groups of runs, differ.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "cli/commands.h"
#include "measure/archive.h"
#include "measure/record_diff.h"

namespace penstock::cli {
namespace {

struct Flags {
  std::vector<std::string> both, a, b;
  bool json = false;
};

// Records of one side; what does not verify is not compared.
std::vector<const measure::Archived*> records_in(const measure::Archive& archive) {
  std::vector<const measure::Archived*> out;
  std::string problems;
  for (const measure::Archived& entry : archive.entries()) {
    for (const std::string& problem : entry.problems) {
      problems += fmt::format("\n  {}: {}", measure::shown_name(entry.path), problem);
    }
    if (entry.is_record()) out.push_back(&entry);
  }
  if (!problems.empty()) {
    fail(ErrorKind::Format, "what does not verify is not compared:{}", problems);
  }
  return out;
}

int run_diff(const Flags& flags) {
  std::vector<std::string> left = flags.a, right = flags.b;
  if (!flags.both.empty()) {
    if (flags.both.size() != 2 || !left.empty() || !right.empty()) {
      fail(ErrorKind::Usage, "name two records or folders, or groups by --a FILE... --b FILE...");
    }
    left = {flags.both[0]};
    right = {flags.both[1]};
  }
  if (left.empty() || right.empty()) {
    fail(ErrorKind::Usage, "name two records or folders, or groups by --a FILE... --b FILE...");
  }
  measure::Archive a, b;
  for (const std::string& path : left) a.add(path);
  for (const std::string& path : right) b.add(path);
  const measure::RecordDiff diff = measure::diff_records(records_in(a), records_in(b));
  if (flags.json) {
    fmt::print("{}\n", measure::diff_json(diff).dump(1));
  } else {
    fmt::print("{}", measure::diff_table(diff));
  }
  return 0;
}

}  // namespace

void add_diff(CLI::App& app, Action* action) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command =
      app.add_subcommand("diff", "Says in what two runs, or two groups of runs, differ.");
  command->footer(
      "Examples:\n"
      "  penstock diff runs/0f3a.json runs/77ab.json\n"
      "  penstock diff before/ after/\n"
      "  penstock diff --a before/*.json --b after/*.json --json");
  command->add_option("record", flags->both, "two records, or two folders of them");
  command->add_option("--a", flags->a, "records of the first group");
  command->add_option("--b", flags->b, "records of the second group");
  command->add_flag("--json", flags->json, "everything as JSON");
  command->callback([flags, action] { *action = [flags] { return run_diff(*flags); }; });
}

}  // namespace penstock::cli
