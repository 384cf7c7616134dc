// penstock iobench: what the storage gives when experts are read at random.
#include "experts/iobench.h"

#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/machine.h"
#include "cli/commands.h"
#include "cli/runtime_flags.h"
#include "experts/expert_source.h"
#include "gguf/model.h"
#include "models/model.h"

namespace penstock::cli {
namespace {

struct Flags {
  std::string file, io = "auto", pack = "auto";
  experts::IoBenchOptions options;
  bool json = false;
};

void print_row(const experts::IoBenchRow& row, bool busy) {
  fmt::print("{:>6}{:>10.2f}{:>11.0f}{:>10.2f}{:>10.2f}{:>11.3f}", row.depth,
             row.bytes_per_s() / 1e9, static_cast<double>(row.experts) / row.seconds,
             static_cast<double>(row.p50_ns) * 1e-6, static_cast<double>(row.p99_ns) * 1e-6,
             row.bytes == 0 ? 0.0 : row.cpu_s / (static_cast<double>(row.bytes) / 1e9));
  if (busy) fmt::print("{:>14.1f}", row.busy_bytes_per_s / 1e9);
  fmt::print("\n");
  std::fflush(stdout);
}

nlohmann::json report_json(const experts::IoBenchReport& report, const std::string& model) {
  nlohmann::json rows = nlohmann::json::array();
  for (const experts::IoBenchRow& row : report.rows) {
    rows.push_back({{"depth", row.depth},
                    {"seconds", row.seconds},
                    {"experts", row.experts},
                    {"bytes", row.bytes},
                    {"bytes_per_s", row.bytes_per_s()},
                    {"p50_ns", row.p50_ns},
                    {"p99_ns", row.p99_ns},
                    {"cpu_s", row.cpu_s},
                    {"busy_bytes_per_s", row.busy_bytes_per_s}});
  }
  return {{"model", model},
          {"io", report.io.describe()},
          {"direct", report.io.direct},
          {"file_system", report.io.file_system},
          {"span_bytes", report.span_bytes},
          {"huge_bytes", report.huge_bytes},
          {"rows", rows}};
}

int run_iobench(const Flags& flags) {
  experts::StreamOptions stream;
  stream.io = experts::parse_io_mode(flags.io);
  stream.pack = {flags.pack, false};
  const std::string path = flags.file.empty() ? sample_model_path() : flags.file;
  const auto file =
      std::make_shared<const gguf::Model>(gguf::Model::open(path, {.allow_missing_experts = true}));
  const auto model = models::open({.trunk = file, .draft = nullptr, .table = nullptr}, {});
  const experts::ExpertSource source = experts::open_expert_source(*file, model->experts(), stream);
  experts::IoBenchOptions options = flags.options;
  options.io = stream.io;
  const bool busy = options.busy_threads > 0;
  if (!flags.json) {
    const uint64_t span = experts::expert_span(source.geometry);
    fmt::print("{}: {} of experts, read at random{}\n{}\n", path, format_bytes(span),
               busy ? fmt::format(", {} threads reading memory", options.busy_threads) : "",
               source.files->report().describe());
    if (span < experts::kDriveCache) {
      fmt::print("note: below {} a drive's own cache may answer\n",
                 format_bytes(experts::kDriveCache));
    }
    fmt::print("\n{:>6}{:>10}{:>11}{:>10}{:>10}{:>11}{}\n", "depth", "GB/s", "experts/s", "p50 ms",
               "p99 ms", "CPU s/GB", busy ? "   memory GB/s" : "");
  }
  const experts::IoBenchReport report = experts::iobench(source.geometry, *source.files, options,
                                                         [&](const experts::IoBenchRow& row) {
                                                           if (!flags.json) print_row(row, busy);
                                                         });
  if (flags.json) {
    fmt::print("{}\n", report_json(report, path).dump(1));
  } else {
    fmt::print("\n{}; {} of the memory read into is on huge pages\n", report.io.describe(),
               format_bytes(report.huge_bytes));
  }
  return 0;
}

}  // namespace

void add_iobench(CLI::App& app, Action* action) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand(
      "iobench", "How fast this storage gives a model's experts, read at random.");
  command->add_option("-m,--model,model_file", flags->file, "GGUF file, or any shard of a set")
      ->default_str("the sample model");
  command->add_option("--io", flags->io, "how experts are read: auto, uring, pread, buffered")
      ->check(CLI::IsMember({"auto", "uring", "pread", "buffered"}))
      ->capture_default_str();
  command
      ->add_option("--pack", flags->pack,
                   "a pack file, none (the model itself), or auto (a pack beside the model)")
      ->capture_default_str();
  command->add_option("--depths", flags->options.depths, "experts in flight, one run for each")
      ->delimiter(',')
      ->check(CLI::Range(1, 64))
      ->default_str("1,2,4,8,16,32");
  command->add_option("--seconds", flags->options.seconds, "measured, for each depth")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
  command->add_option("--warm-up", flags->options.warm_up_s, "seconds before")
      ->check(CLI::Range(0.0, 3600.0))
      ->capture_default_str();
  command
      ->add_option("--busy", flags->options.busy_threads,
                   "threads that meanwhile read memory as fast as they can, as computing does")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command->add_option("--seed", flags->options.seed, "of the random order")->capture_default_str();
  command->add_flag("--json", flags->json, "a JSON object instead of a table");
  command->callback([flags, action] { *action = [flags] { return run_iobench(*flags); }; });
}

}  // namespace penstock::cli
