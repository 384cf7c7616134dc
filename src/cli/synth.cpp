// penstock synth: a model of a released shape with random weights.
#include "surgery/synth.h"

#include <fmt/format.h>

#include <memory>
#include <string>

#include "base/error.h"
#include "base/file.h"
#include "base/machine.h"
#include "base/progress.h"
#include "base/thread_pool.h"
#include "cli/commands.h"

namespace penstock::cli {
namespace {

struct Flags {
  std::string preset, out, expert_type, dense_type, like, shard = "0";
  int64_t layers = 0;
  uint64_t experts = 0, ple_rows = 2000000, seed = 1;
  double scale = 1.0;
  int threads = 0;
};

gguf::TypeId type_option(const char* flag, const std::string& name) {
  gguf::TypeId type{};
  if (!surgery::parse_type(name, &type)) {
    fail(ErrorKind::Usage, "{} {}: there is no such type", flag, name);
  }
  return type;
}

int run_synth(const Flags& flags) {
  surgery::SynthOptions options;
  options.preset = flags.preset;
  options.layers = flags.layers;
  options.experts = flags.experts;
  options.scale = flags.scale;
  options.ple_rows = flags.ple_rows;
  options.seed = flags.seed;
  if (!flags.expert_type.empty()) {
    options.expert_type = type_option("--expert-type", flags.expert_type);
    options.has_expert_type = true;
  }
  if (!flags.dense_type.empty()) {
    options.dense_type = type_option("--dense-type", flags.dense_type);
    options.has_dense_type = true;
  }
  if (!flags.like.empty()) {
    options.like = surgery::parse_tensor_list(read_text_file(flags.like), flags.like);
  }
  const int threads =
      flags.threads > 0 ? flags.threads : static_cast<int>(cpu_facts().cores.size());
  ThreadPool pool(std::max(threads, 1));
  std::unique_ptr<Progress> bar;
  const surgery::SynthResult result = surgery::write_synthetic(
      options, flags.out, parse_size(flags.shard), pool, [&](uint64_t done, uint64_t total) {
        if (!bar) bar = std::make_unique<Progress>("writing", total);
        bar->set(done);
      });
  if (bar) bar->finish();
  for (const std::string& file : result.files) fmt::print("{}\n", file);
  fmt::print("{} tensors, {:.3f} B parameters, {} in {:.1f} s ({:.0f} MB/s)\n", result.n_tensors,
             static_cast<double>(result.n_parameters) * 1e-9, format_bytes(result.bytes),
             result.seconds, static_cast<double>(result.bytes) * 1e-6 / result.seconds);
  return 0;
}

}  // namespace

void add_synth(CLI::App& app, Action* action) {
  auto flags = std::make_shared<Flags>();
  std::string presets;
  for (const std::string_view preset : surgery::synth_presets()) {
    presets += fmt::format("{}{}", presets.empty() ? "" : ", ", preset);
  }
  CLI::App* command = app.add_subcommand(
      "synth",
      "Writes a model of a released shape with random weights, whose router reuses experts as "
      "published curves say. For benchmarks: its text means nothing.");
  command->add_option("preset", flags->preset, presets)->required();
  command->add_option("-o,--out", flags->out, "the GGUF file to write")->required();
  command->add_option("--layers", flags->layers, "only so many layers")->check(CLI::PositiveNumber);
  command->add_option("--experts", flags->experts, "experts per layer")->check(CLI::PositiveNumber);
  command->add_option("--expert-type", flags->expert_type, "type of all routed experts, as Q4_K");
  command->add_option("--dense-type", flags->dense_type, "type of all other matrices");
  command->add_option("--like", flags->like,
                      "a published list of tensors (name, type, shape per line; also what `inspect "
                      "--tensors` prints): use its types");
  command->add_option("--ple-rows", flags->ple_rows, "rows of the n-gram table, about")
      ->capture_default_str();
  command
      ->add_option("--scale", flags->scale,
                   "shrink hidden and expert widths and the vocabulary by this factor")
      ->capture_default_str();
  command->add_option("--seed", flags->seed, "another seed gives other weights")
      ->capture_default_str();
  command->add_option("--shard", flags->shard, "split into files of at most this size, as 4G")
      ->default_str("one file");
  command->add_option("-t,--threads", flags->threads, "threads")
      ->check(CLI::Range(1, 1024))
      ->default_str("one per physical core");
  command->callback([flags, action] { *action = [flags] { return run_synth(*flags); }; });
}

}  // namespace penstock::cli
