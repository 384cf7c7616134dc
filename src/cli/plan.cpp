// penstock plan: the memory a model would take with these settings, and the speed to be expected.
#include <fmt/format.h>

#include <atomic>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/plan_report.h"
#include "cli/runtime_flags.h"
#include "engine/calibrate_machine.h"
#include "experts/plan_advice.h"
#include "experts/stream_setup.h"
#include "measure/sim.h"

namespace penstock::cli {
namespace {

struct Flags {
  RuntimeFlags runtime;
  std::string machine_file;
  std::optional<double> hit_rate;  // per cent
  std::string trace;
  bool calibrate = false;
  bool json = false;
};

engine::CalibrationProgress progress_bars() {
  struct Line {
    std::string phase;
    std::unique_ptr<Progress> bar;
  };
  return [line = std::make_shared<Line>()](std::string_view phase, uint64_t done, uint64_t total,
                                           const char* unit) {
    if (line->phase != phase) {
      line->phase = phase;
      line->bar = std::make_unique<Progress>(line->phase, total, unit);
    }
    line->bar->set(done);
  };
}

// Opens what would read the experts, and says what it is.
std::string reader_text(const engine::OpenedModel& opened) {
  const experts::StreamOptions& stream = opened.options.stream;
  experts::IoReport report;
  experts::open_backend(*opened.source.files, stream.io,
                        experts::backend_capacity(opened.source.geometry, stream.depth),
                        experts::pool_threads(stream.depth), stream.decorate, &report);
  return report.describe();
}

// What a routing trace of this model would have found in the plan's arena.
double traced_rate(const std::string& path, const engine::OpenedModel& opened,
                   const experts::ArenaShape& shape) {
  const measure::TraceModel trace = measure::read_trace_model(path);
  const auto settings = nlohmann::json::parse(trace.settings);
  const experts::Geometry& geometry = opened.source.geometry;
  bool same =
      settings.value("model_id", hex(opened.file->model_id())) == hex(opened.file->model_id()) &&
      trace.geometry.layers.size() == geometry.layers.size();
  for (size_t l = 0; same && l < geometry.layers.size(); ++l) {
    same = trace.geometry.layers[l].n_expert == geometry.layers[l].n_expert &&
           trace.geometry.layers[l].n_used == geometry.layers[l].n_used;
  }
  if (!same) {
    fail(ErrorKind::Usage, "{} was recorded with another model than {}", path,
         opened.options.model_path);
  }
  const experts::StreamOptions& stream = opened.options.stream;
  measure::SimSetting setting;
  setting.policy = measure::parse_policy(experts::evict_name(stream.evict));
  setting.hot_share = stream.hot_share;
  setting.half_life = stream.half_life;
  setting.moce = stream.moce;
  if (stream.moce.on() && !trace.logits) {
    fail(ErrorKind::Usage, "{} has no logits to route with --moce: record it with --trace-logits",
         path);
  }
  std::vector<float> shares;
  if (opened.profile) shares = opened.profile->shares();
  setting.warm = !shares.empty() && stream.fill == experts::Fill::Warm;
  return measure::replayed_hit_rate(trace, shape, setting, shares);
}

std::vector<engine::HitRate> given_rates(const Flags& flags, const engine::OpenedModel& opened,
                                         const PlanReport& report) {
  std::vector<engine::HitRate> rates;
  if (flags.hit_rate) rates.push_back({*flags.hit_rate / 100, "--hit-rate"});
  if (!flags.trace.empty() && report.plan.outcome.fits()) {
    rates.push_back({traced_rate(flags.trace, opened, report.plan.outcome.plan.shape),
                     fmt::format("{} replayed, without read-ahead", flags.trace)});
  }
  if (!opened.profile) return rates;
  rates.push_back({experts::static_hit_rate(report.figures.layers, opened.profile->shares(),
                                            report.plan.outcome.plan.shape),
                   "the profile's most used experts, on the profile's own text"});
  return rates;
}

engine::MachineFile machine_file(const Flags& flags) {
  std::string path = flags.machine_file;
  if (path.empty()) path = engine::default_machine_file();
  if (path.empty() && flags.calibrate) {
    fail(ErrorKind::Usage,
         "neither HOME nor XDG_CACHE_HOME says where to keep what is measured: name a file with "
         "--machine-file");
  }
  return path.empty() ? engine::MachineFile() : engine::MachineFile::read(path);
}

int run_plan(const Flags& flags) {
  const engine::OpenedModel opened = engine::open_model(flags.runtime.options());
  PlanReport report;
  report.opened = &opened;
  report.plan = opened.plan(memory_facts(), 0);
  report.reader = reader_text(opened);

  engine::MachineFile machine = machine_file(flags);
  report.machine_problem = machine.problem();
  if (flags.calibrate) {
    machine.check_writable();
    log::info("measuring reads, kernels and the model for {}, about half a minute", machine.path());
    const std::atomic<bool>& cancel = interrupt_flag();
    report.notes = engine::calibrate_machine(opened, report.plan, &machine, progress_bars(),
                                             [&] { return !cancel.load(); });
    machine.write();
  }
  report.machine_file = machine.path();
  report.figures = engine::speed_figures(opened, machine);
  report.speed =
      engine::predict_speed(report.figures, report.plan, given_rates(flags, opened, report));
  const experts::PlanOutcome& outcome = report.plan.outcome;
  if (outcome.fits()) report.advice = experts::plan_advice(report.plan.request, outcome.plan);

  if (flags.json) {
    fmt::print("{}\n", plan_report_json(report).dump(1, ' ', false,
                                                     nlohmann::json::error_handler_t::replace));
    return outcome.fits() ? 0 : static_cast<int>(ErrorKind::Plan);
  }
  fmt::print("{}", plan_text(report));
  std::fflush(stdout);  // before the refusal, which goes to standard error
  if (!outcome.fits()) {
    fail(ErrorKind::Plan, "the model does not fit: {}\n{}", outcome.refusal->why,
         experts::format_refusal(*outcome.refusal));
  }
  return 0;
}

}  // namespace

void add_plan(CLI::App& app, Action* action) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand(
      "plan", "The memory a model would take with these settings, and how fast it would be.");
  command->footer(
      "Examples:\n"
      "  penstock plan MODEL.gguf --memory 8G\n"
      "  penstock plan MODEL.gguf --memory 8G --calibrate-machine   measures, then predicts\n"
      "  penstock plan MODEL.gguf --ctx 32768 --hit-rate 85 --json\n"
      "\n"
      "Only headers are read, unless --calibrate-machine is given. Exit code 3: it does not fit.");
  flags->runtime.add_to(*command);
  command->add_option("model_file", "the same as --model")->each([flags](const std::string& path) {
    flags->runtime.set_model(path);
  });
  command
      ->add_flag("--calibrate-machine", flags->calibrate,
                 "measures expert reads, kernels and this model's computing, about half a minute, "
                 "and keeps the figures")
      ->group("Speed");
  command->add_option("--machine-file", flags->machine_file, "where measured figures are kept")
      ->default_str("~/.cache/penstock/machine.json")
      ->group("Speed");
  command
      ->add_option("--hit-rate", flags->hit_rate,
                   "per cent of expert uses found in memory, as a run's summary says it")
      ->check(CLI::Range(0.0, 100.0))
      ->group("Speed");
  command
      ->add_option("--trace", flags->trace,
                   "a routing trace of this model: replayed for the hit rate to expect")
      ->group("Speed");
  command->add_flag("--json", flags->json, "a JSON object instead of text (docs/plan.md)");
  command->callback([flags, action] { *action = [flags] { return run_plan(*flags); }; });
}

}  // namespace penstock::cli
