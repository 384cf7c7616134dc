// penstock audit: recomputes what documents claim from the records that were archived.
#include "measure/audit.h"

#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "cli/commands.h"

namespace penstock::cli {
namespace {

struct Flags {
  measure::AuditRequest request;
  bool json = false, github = false;
};

int run_audit(const Flags& flags) {
  const measure::Audit audit = measure::audit(flags.request);
  if (flags.json) {
    fmt::print("{}\n", measure::audit_json(audit).dump(1, ' ', false,
                                                       nlohmann::json::error_handler_t::replace));
  } else {
    fmt::print("{}", flags.github ? measure::audit_markdown(audit) : measure::audit_table(audit));
  }
  return audit.ok() ? 0 : static_cast<int>(ErrorKind::Format);
}

}  // namespace

void add_audit(CLI::App& app, Action* action) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand(
      "audit", "Recomputes every number that documents claim from the records behind it.");
  command->footer(
      "Examples:\n"
      "  penstock audit bench/claims.toml\n"
      "  penstock audit bench/claims.toml README.md\n"
      "  penstock audit claims.toml --records runs/ --github >> \"$GITHUB_STEP_SUMMARY\"\n"
      "\n"
      "Exit code 6 when a claim is not ok, or a number with a unit has no claim. docs/audit.md "
      "has\n"
      "the format of claims, the rules and the verdicts.");
  command->add_option("claims", flags->request.claims, "the claims file (TOML)")->required();
  command->add_option("document", flags->request.documents,
                      "Markdown files or folders, instead of those that the claims file names");
  command->add_option("--records", flags->request.records,
                      "files and folders of records, in addition to the claims file's");
  CLI::Option* json = command->add_flag("--json", flags->json, "everything, as JSON");
  command->add_flag("--github", flags->github, "a summary in GitHub's Markdown")->excludes(json);
  command->callback([flags, action] { *action = [flags] { return run_audit(*flags); }; });
}

}  // namespace penstock::cli
