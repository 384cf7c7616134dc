// penstock bench: campaigns of runs, built in or from a file.
#include "measure/bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "cli/bench_folder.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/runtime_flags.h"
#include "cli/version.h"
#include "engine/opened_model.h"
#include "measure/json_schema.h"

namespace penstock::cli {
namespace {

struct Flags {
  std::string campaign, model, folder = kBenchFolder, llama_server, llama_version, limit;
  int repeats = 0;
  uint64_t tokens = 0;
  bool print = false, json = false;
};

std::string builtin_text(const Flags& flags) {
  measure::BuiltinRequest request;
  request.name = flags.campaign;
  request.sample = flags.model.empty();
  request.model = request.sample ? sample_model_path() : flags.model;
  request.repeats = flags.repeats;
  request.tokens = flags.tokens;
  request.limit = flags.limit;
  const MemoryFacts memory = memory_facts();
  request.memory =
      memory.cgroup_limit != 0 ? std::min(memory.total, memory.cgroup_limit) : memory.total;
  request.llama_server = flags.llama_server;
  request.llama_version = flags.llama_version;
  engine::RuntimeOptions options;
  options.model_path = request.model;
  const engine::OpenedModel model = engine::open_model(options);
  const experts::Plan plan = model.plan(memory_facts(), 0).outcome.plan;
  request.experts = plan.shape.n_experts();
  request.fewest_slots = plan.hard_floor;
  return measure::builtin_campaign(request);
}

// A campaign file, or the manifest of one that was run.
std::string file_text(const std::string& path) {
  std::string text = read_text_file(path);
  if (!path.ends_with(".json")) return text;
  return measure::campaign_toml(measure::parse_json(text, path), path);
}

bool is_builtin(const std::string& name) {
  const auto& names = measure::builtin_campaigns();
  return std::find(names.begin(), names.end(), name) != names.end();
}

int run_bench(const Flags& flags) {
  const bool builtin = is_builtin(flags.campaign);
  if (!builtin && !std::filesystem::exists(flags.campaign)) {
    fail(ErrorKind::Usage,
         "there is no file '{}', nor a campaign of that name: quick, roofline, arena-sweep, "
         "read-ahead, peers",
         flags.campaign);
  }
  if (!builtin && (!flags.model.empty() || flags.repeats != 0 || flags.tokens != 0 ||
                   !flags.limit.empty() || !flags.llama_server.empty())) {
    fail(ErrorKind::Usage, "a campaign file says itself what is run: only -o goes with it");
  }
  const std::string text = builtin ? builtin_text(flags) : file_text(flags.campaign);
  if (flags.print) {
    std::fputs(text.c_str(), stdout);
    return 0;
  }
  const measure::Campaign campaign = measure::read_campaign(text, flags.campaign);
  measure::BenchOptions options;
  options.folder = flags.folder;
  options.executable = std::filesystem::read_symlink("/proc/self/exe").string();
  options.producer = producer();
  options.interrupted = &interrupt_flag();
  options.say = [](const std::string& line) { log::info("{}", line); };
  measure::Bench bench(campaign, options);
  const std::string manifest = bench.run();
  if (manifest.empty()) {
    log::info("interrupted; the same command goes on from here");
    return 130;
  }
  if (flags.json) {
    fmt::print("{}\n",
               bench.manifest().dump(1, ' ', false, nlohmann::json::error_handler_t::replace));
  } else {
    const std::string named =
        flags.folder == kBenchFolder ? "" : fmt::format(" {} -o DIR", flags.folder);
    fmt::print("\n{}\n  records in {}; penstock report{} makes a page with pictures of them\n",
               measure::bench_table(bench.manifest(), flags.folder), flags.folder, named);
  }
  size_t finished = 0;
  for (const auto& run : bench.manifest().at("runs")) finished += run.at("state") == "finished";
  if (finished == 0) fail(ErrorKind::Io, "no run of the campaign finished");
  return 0;
}

}  // namespace

void add_bench(CLI::App& app, Action* action) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand(
      "bench",
      "Runs a campaign: several configurations, several times, in turn, with a record of every "
      "run. Built in: quick (two minutes on the sample model), roofline, arena-sweep, read-ahead, "
      "peers; or a TOML file (docs/bench.md), or the manifest of a campaign that is to be run "
      "again. An interrupted campaign goes on when it is started "
      "again.");
  command->add_option("campaign", flags->campaign, "a built-in campaign or a file")->required();
  command->add_option("-m,--model", flags->model, "GGUF file; default: the sample model");
  command->add_option("-o,--out", flags->folder, "folder of the records")->capture_default_str();
  command->add_option("--repeats", flags->repeats, "rounds; at least 3")
      ->check(CLI::Range(3, 1000));
  command->add_option("-n,--tokens", flags->tokens, "tokens that every run generates");
  command->add_option(
      "--limit", flags->limit,
      "memory of every run, enforced by a cgroup: 8G; for peers also 4G,8G,16G (without "
      "it 4G,8G,12G,16G as far as this machine has more)");
  command->add_option("--llama-server", flags->llama_server,
                      "peers: llama.cpp's llama-server to compare with");
  command->add_option("--llama-version", flags->llama_version, "peers: which version that is");
  command->add_flag("--print", flags->print, "prints the campaign as a file and runs nothing");
  command->add_flag("--json", flags->json, "the manifest instead of a table");
  command->callback([flags, action] { *action = [flags] { return run_bench(*flags); }; });
}

}  // namespace penstock::cli
