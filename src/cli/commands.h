// The subcommands: each file parses its arguments, calls the library and prints.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace penstock::cli {

// Set by the subcommand that was chosen; returns the exit code. Errors are thrown.
using Action = std::function<int()>;

void add_run(CLI::App& app, Action* action);
void add_serve(CLI::App& app, Action* action);
void add_logits(CLI::App& app, Action* action);
void add_tokenize(CLI::App& app, Action* action);
void add_plan(CLI::App& app, Action* action);
void add_inspect(CLI::App& app, Action* action);
void add_synth(CLI::App& app, Action* action);
void add_calibrate(CLI::App& app, Action* action);
void add_eval(CLI::App& app, Action* action);
void add_recipe(CLI::App& app, Action* action);
void add_stats(CLI::App& app, Action* action);
void add_prune(CLI::App& app, Action* action);
void add_requantise(CLI::App& app, Action* action);
void add_pack(CLI::App& app, Action* action);
void add_iobench(CLI::App& app, Action* action);
void add_sim(CLI::App& app, Action* action);
void add_bench(CLI::App& app, Action* action);
void add_record(CLI::App& app, Action* action);
void add_report(CLI::App& app, Action* action);
void add_diff(CLI::App& app, Action* action);
void add_audit(CLI::App& app, Action* action);

}  // namespace penstock::cli
