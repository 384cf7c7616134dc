// penstock record: looks at records that `run --record` wrote.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "cli/commands.h"
#include "measure/record_verify.h"

namespace penstock::cli {
namespace {

struct Flags {
  std::vector<std::string> files;
  bool json = false;
};

int run_verify(const Flags& flags) {
  bool sound = true;
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (const std::string& path : flags.files) {
    const measure::RecordCheck check = measure::verify_record(path);
    sound = sound && check.sound();
    if (flags.json) {
      out.push_back({{"path", path}, {"id", check.id}, {"problems", check.problems}});
      continue;
    }
    fmt::print("{}: {}\n", path, check.sound() ? "sound" : "NOT SOUND");
    for (const std::string& problem : check.problems) fmt::print("  {}\n", problem);
  }
  if (flags.json) {
    fmt::print("{}\n", out.dump(1, ' ', false, nlohmann::json::error_handler_t::replace));
  }
  return sound ? 0 : static_cast<int>(ErrorKind::Format);
}

}  // namespace

void add_record(CLI::App& app, Action* action) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command =
      app.add_subcommand("record", "Checks run records, which `run --record DIR` writes.");
  command->require_subcommand(0, 1);
  CLI::App* verify = command->add_subcommand(
      "verify", "Schema, hash, the files beside it, and the identities of every counter.");
  verify->add_option("file", flags->files, "records")->required();
  verify->add_flag("--json", flags->json, "the findings as JSON");
  verify->callback([flags, action] { *action = [flags] { return run_verify(*flags); }; });
  command->callback([command, verify, action] {
    if (verify->parsed()) return;
    *action = [command] {
      fmt::print("{}", command->help());
      return static_cast<int>(ErrorKind::Usage);
    };
  });
}

}  // namespace penstock::cli
