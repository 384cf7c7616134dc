// penstock record: looks at records that `run --record` wrote.
#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "cli/commands.h"
#include "measure/archive.h"
#include "measure/record_verify.h"

namespace penstock::cli {
namespace {

struct Flags {
  std::vector<std::string> files, drop;
  std::string folder;
  bool json = false, with_files = false;
};

std::vector<std::string> all_files(const Flags& flags) {
  std::vector<std::string> all;
  for (const std::string& path : flags.files) {
    const std::vector<std::string> found = measure::record_files(path);
    if (found.empty()) fail(ErrorKind::Usage, "{}: no records in this folder", path);
    all.insert(all.end(), found.begin(), found.end());
  }
  return all;
}

int run_verify(const Flags& flags) {
  bool sound = true;
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (const std::string& path : all_files(flags)) {
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

int run_trim(const Flags& flags) {
  namespace fs = std::filesystem;
  std::error_code error;
  fs::create_directories(flags.folder, error);
  if (error) fail(ErrorKind::Io, "{}: {}", flags.folder, error.message());
  for (const std::string& path : all_files(flags)) {
    const measure::RecordCheck check = measure::verify_record(path);
    if (!check.sound()) fail(ErrorKind::Format, "{}: {}", path, check.problems.front());
    const auto record = nlohmann::json::parse(read_text_file(path));
    std::vector<std::string> drop;  // campaigns have no tokens: what is not there need not go
    for (const std::string& name : flags.drop) {
      if (record.contains(name)) drop.push_back(name);
    }
    const auto trimmed = measure::trim_record(record, drop);
    fmt::print("{}\n", measure::write_record(flags.folder, trimmed));
    if (!flags.with_files) continue;
    fs::create_directories(fs::path(flags.folder) / "files");
    for (const auto& [hash, what] : measure::files_of(trimmed)) {
      const fs::path from = fs::path(path).parent_path() / "files" / hash;
      fs::copy_file(from, fs::path(flags.folder) / "files" / hash,
                    fs::copy_options::overwrite_existing);
    }
  }
  return 0;
}

}  // namespace

void add_record(CLI::App& app, Action* action) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand("record", "Checks records and cuts them down.");
  command->require_subcommand(0, 1);
  CLI::App* verify = command->add_subcommand(
      "verify", "Schema, hash, the files beside it, and the identities of every counter.");
  verify->add_option("file", flags->files, "records, or folders of them")->required();
  verify->add_flag("--json", flags->json, "the findings as JSON");
  verify->callback([flags, action] { *action = [flags] { return run_verify(*flags); }; });
  CLI::App* trim = command->add_subcommand(
      "trim", "Copies of records without long members, under the same names.");
  trim->add_option("file", flags->files, "records, or folders of them")->required();
  trim->add_option("--drop", flags->drop, "members to cut out")->delimiter(',')->required();
  trim->add_option("-o,--out", flags->folder, "folder of the copies")->required();
  trim->add_flag("--files", flags->with_files, "copies the files that belong to them too");
  trim->callback([flags, action] { *action = [flags] { return run_trim(*flags); }; });
  command->callback([command, verify, trim, action] {
    if (verify->parsed() || trim->parsed()) return;
    *action = [command] {
      fmt::print("{}", command->help());
      return static_cast<int>(ErrorKind::Usage);
    };
  });
}

}  // namespace penstock::cli
