// The program: global options, the table of subcommands, and the one place where errors become
// messages and exit codes.
#include <cstdio>
#include <exception>
#include <string>

#include "base/error.h"
#include "base/log.h"
#include "base/map_guard.h"
#include "cli/commands.h"
#include "cli/version.h"
#include "quant/matmul.h"

namespace {

constexpr const char* kAbout =
    "Penstock runs mixture-of-experts language models that do not fit in memory: the dense "
    "weights\n"
    "stay in RAM, the routed experts are streamed from the SSD through a bounded arena while the\n"
    "CPU works on those already there.";

constexpr const char* kFooter =
    "Start here:\n"
    "  penstock run -p \"In the beginning\"           the sample model completes a text\n"
    "  penstock run -m MODEL.gguf --memory 8G --chat  talk to your own GGUF within 8 GB\n"
    "  penstock serve -m MODEL.gguf --memory 8G       the same for other programs: OpenAI's API\n"
    "  penstock inspect MODEL.gguf                    what is in a file, and would it run here?\n"
    "  penstock plan MODEL.gguf --memory 8G           the memory it would take, and how fast\n"
    "  penstock help run                              everything about one command\n"
    "\n"
    "Exit codes: 0 success, 1 internal error, 2 wrong usage, 3 the memory plan does not fit,\n"
    "4 memory ran out while running, 5 an I/O error, 6 an invalid file, 7 not supported,\n"
    "8 non-finite numbers, 130 interrupted.";

}  // namespace

int main(int argc, char** argv) {
  using namespace penstock;
  install_map_guard();
  CLI::App app{kAbout, "penstock"};
  app.require_subcommand(0, 1);
  app.fallthrough();
  app.get_formatter()->column_width(34);

  std::string isa_name;
  bool quiet = false;
  bool verbose = false;
  app.set_version_flag(
      "--version", [] { return cli::version_text(); },
      "version, git revision, compiler, instruction sets");
  app.add_option("--isa", isa_name, "instruction set of the kernels: scalar, avx2, neon, neon-dot")
      ->default_str("best of this machine");
  app.add_flag("-q,--quiet", quiet, "no messages but errors and results");
  app.add_flag("-v,--verbose", verbose, "more messages");

  cli::Action action;
  cli::add_run(app, &action);
  cli::add_serve(app, &action);
  cli::add_plan(app, &action);
  cli::add_inspect(app, &action);
  cli::add_tokenize(app, &action);
  cli::add_logits(app, &action);
  cli::add_synth(app, &action);
  cli::add_calibrate(app, &action);
  cli::add_stats(app, &action);
  cli::add_eval(app, &action);
  cli::add_recipe(app, &action);
  cli::add_prune(app, &action);
  cli::add_requantise(app, &action);
  cli::add_pack(app, &action);
  cli::add_iobench(app, &action);
  cli::add_sim(app, &action);
  cli::add_bench(app, &action);
  cli::add_record(app, &action);
  cli::add_report(app, &action);
  cli::add_diff(app, &action);
  cli::add_audit(app, &action);
  app.footer(kFooter);  // after the subcommands, which would inherit it
  std::string topic;
  CLI::App* help = app.add_subcommand("help", "how to use a command: penstock help run");
  help->add_option("command", topic, "the command to explain");

  try {
    app.parse(argc, argv);
    if (quiet) log::set_level(log::Level::Quiet);
    if (verbose) log::set_level(log::Level::Debug);
    if (!isa_name.empty()) {
      quant::Isa isa{};
      if (!quant::parse_isa(isa_name, &isa)) {
        fail(ErrorKind::Usage, "unknown instruction set '{}': use scalar, avx2, neon or neon-dot",
             isa_name);
      }
      if (!quant::set_isa(isa)) {
        fail(ErrorKind::Usage, "this processor or build does not have '{}'", isa_name);
      }
    }
    if (help->parsed()) {
      const CLI::App* about = topic.empty() ? &app : nullptr;
      for (const CLI::App* command : app.get_subcommands(nullptr)) {
        if (command->get_name() == topic) about = command;
      }
      if (about == nullptr) fail(ErrorKind::Usage, "there is no command '{}'", topic);
      std::fputs(about->help(topic.empty() ? "" : "penstock").c_str(), stdout);
      return 0;
    }
    if (!action) {
      std::fputs(app.help().c_str(), stdout);
      return 0;
    }
    return action();
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    return code == 0 ? 0 : static_cast<int>(ErrorKind::Usage);
  } catch (const Error& error) {
    std::fprintf(stderr, "penstock: error: %s\n", error.what());
    return error.exit_code();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "penstock: internal error: %s\n", error.what());
    return static_cast<int>(ErrorKind::Internal);
  }
}
