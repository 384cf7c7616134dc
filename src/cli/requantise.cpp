// penstock requantise: the model with other types.
#include <memory>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/rewriting.h"

namespace penstock::cli {
namespace {

int run_requantise(const RewriteFlags& flags) {
  if (flags.rules().empty()) {
    fail(ErrorKind::Usage,
         "nothing to do: say which types, as --experts Q2_0 (see penstock help requantise)");
  }
  const gguf::Model model = gguf::Model::open(flags.model);
  const std::optional<GivenImatrix> imatrix = read_importance(flags);
  surgery::RewritePlan plan = surgery::copy_plan(model);
  plan_types(flags, model.model_id(), imatrix, &plan);
  if (surgery::type_changes(plan).empty()) {
    fail(ErrorKind::Usage, "{}: every tensor has its type already: there is nothing to write",
         flags.model);
  }
  if (!flags.out.empty()) carry_out(flags, imatrix, plan);
  return 0;
}

}  // namespace

void add_requantise(CLI::App& app, Action* action) {
  auto flags = std::make_shared<RewriteFlags>();
  CLI::App* command = app.add_subcommand(
      "requantise",
      "Writes a model with other types: Q2_0 experts, for example. Tells the error of every "
      "tensor. Lossy: measure what it costs.");
  command->alias("requantize");
  flags->add_output(*command);
  flags->add_types(*command);
  command->footer(
      "Examples:\n"
      "  penstock requantise MODEL-BF16.gguf -o MODEL-Q2_0.gguf --experts Q2_0 --imatrix M.gguf\n"
      "  penstock requantise MODEL.gguf -o OUT.gguf --experts Q2_0 \\\n"
      "      --keep-type 'blk.*.ffn_down_exps.weight=Q4_0' --dense Q8_0\n"
      "Without -o it tells what would be done. More: docs/surgery.md");
  command->callback([flags, action] { *action = [flags] { return run_requantise(*flags); }; });
}

}  // namespace penstock::cli
