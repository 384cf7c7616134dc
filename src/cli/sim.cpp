// penstock sim: replays routing traces with other policies, sizes and options.
#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/progress.h"
#include "cli/commands.h"
#include "engine/speed.h"
#include "experts/profile.h"
#include "measure/sim_plot.h"
#include "measure/sim_report.h"

namespace penstock::cli {
namespace {

struct Flags {
  std::vector<std::string> traces;
  std::vector<std::string> policies, slots = {"run"}, read_ahead = {"off"}, moce = {"off"};
  std::vector<double> hot_caps = {100 * experts::kDefaultHotShare};
  std::vector<int> half_lives, widths = {0}, reads = {0};
  int sizes = 20, distance = 1, threads = 0, protect = 3;
  bool warm = false;
  std::string profile, model, machine_file, json, svg, residency = "epoch";
  std::optional<double> disk_gbps, latency_ms, compute_ms, experts_ms, shared_ms;
};

double number(const std::string& text, const std::string& flag) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) {
    fail(ErrorKind::Usage, "{}: '{}' is no number", flag, text);
  }
  return value;
}

std::vector<uint64_t> sizes_of(const Flags& flags, const measure::TraceModel& model) {
  std::vector<uint64_t> out;
  for (const std::string& text : flags.slots) {
    if (text == "run") {
      out.push_back(0);
    } else if (text == "sweep") {
      const std::vector<uint64_t> sweep = measure::sweep_slots(model, flags.sizes);
      out.insert(out.end(), sweep.begin(), sweep.end());
    } else if (text.ends_with('%')) {
      const double percent = number(text.substr(0, text.size() - 1), "--slots");
      if (percent <= 0 || percent > 100) fail(ErrorKind::Usage, "--slots: {} of all experts", text);
      out.push_back(static_cast<uint64_t>(
          std::llround(percent / 100 * static_cast<double>(model.shape.n_experts()))));
    } else {
      const double slots = number(text, "--slots");
      if (slots < 1 || slots > 1e9) fail(ErrorKind::Usage, "--slots: {} slots", text);
      out.push_back(static_cast<uint64_t>(slots));
    }
  }
  return out;
}

// "bonus:0.85", "prior:0.1", "maxrank:20", "cumprob:0.9"; without a value the engine's default.
experts::MoceOptions moce_of(const std::string& text, const Flags& flags) {
  experts::MoceOptions out;
  const size_t colon = text.find(':');
  out.mode = experts::parse_moce(text.substr(0, colon));
  out.protect = flags.protect;
  out.residency = experts::parse_moce_residency(flags.residency);
  if (colon == std::string::npos) return out;
  const double value = number(text.substr(colon + 1), "--moce");
  switch (out.mode) {
    case experts::Moce::Off:
      fail(ErrorKind::Usage, "--moce off has no value");
    case experts::Moce::Bonus:
      out.bonus = static_cast<float>(value);
      break;
    case experts::Moce::Prior:
      out.lambda = static_cast<float>(value);
      break;
    case experts::Moce::MaxRank:
      if (value < 1 || value > 65535) fail(ErrorKind::Usage, "--moce {}: 1 to 65535 ranks", text);
      out.window = static_cast<int>(value);
      break;
    case experts::Moce::CumProb:
      out.mass = static_cast<float>(value);
      break;
  }
  return out;
}

std::vector<measure::SimAhead> aheads_of(const Flags& flags) {
  std::vector<measure::SimAhead> out;
  for (const std::string& text : flags.read_ahead) {
    if (text == "off") {
      out.push_back({});
    } else if (text == "on") {
      for (const int width : flags.widths) {
        for (const int reads : flags.reads) out.push_back({true, flags.distance, width, reads});
      }
    } else {
      fail(ErrorKind::Usage, "--read-ahead {}: use on or off", text);
    }
  }
  return out;
}

// Every combination that makes sense; the clairvoyant policies know neither rerouting nor reads
// ahead nor counts.
std::vector<measure::SimSetting> settings_of(const Flags& flags, const measure::TraceModel& model) {
  std::vector<measure::SimPolicy> policies;
  for (const std::string& name : flags.policies) policies.push_back(measure::parse_policy(name));
  if (policies.empty()) {
    using P = measure::SimPolicy;
    policies = {P::Lru, P::Lfu, P::Cycle, P::ClairvoyantAdmits, P::Clairvoyant};
    if (!flags.profile.empty()) policies.insert(policies.begin() + 2, P::Profile);
  }
  const std::vector<uint64_t> sizes = sizes_of(flags, model);
  std::vector<measure::SimSetting> out;
  for (const uint64_t slots : sizes) {
    for (int warm = 0; warm <= (flags.warm ? 1 : 0); ++warm) {
      for (const measure::SimPolicy policy : policies) {
        measure::SimSetting s{.policy = policy, .slots = slots, .warm = warm != 0};
        if (measure::is_clairvoyant(policy)) {
          out.push_back(s);
          continue;
        }
        std::vector<int> half_lives = flags.half_lives;
        if (half_lives.empty())
          half_lives = {experts::default_half_life(measure::evict_of(policy))};
        for (const double hot : flags.hot_caps) {
          for (const int half_life : half_lives) {
            for (const measure::SimAhead& ahead : aheads_of(flags)) {
              for (const std::string& moce : flags.moce) {
                s.hot_share = hot / 100;
                s.half_life = half_life;
                s.ahead = ahead;
                s.moce = moce_of(moce, flags);
                out.push_back(s);
              }
            }
          }
        }
      }
    }
  }
  return out;
}

std::string model_id_of(const measure::TraceModel& model) {
  const auto settings = nlohmann::json::parse(model.settings);
  const auto at = settings.find("model_id");
  return at != settings.end() && at->is_string() ? at->get<std::string>() : std::string();
}

std::vector<float> shares_of(const Flags& flags, const measure::TraceModel& model) {
  if (flags.profile.empty()) return {};
  if (flags.profile == "self") return measure::shares_of_trace(model);
  const experts::Profile profile = experts::read_profile(flags.profile);
  const std::string id = model_id_of(model);
  if (!id.empty() && id != hex(profile.model_id)) {
    fail(ErrorKind::Format, "{} was made from another model than {}", flags.profile, model.path);
  }
  return profile.shares();
}

// What was measured on this machine with the trace's model.
std::optional<measure::SimCost> measured_cost(const Flags& flags,
                                              const measure::TraceModel& model) {
  engine::RuntimeOptions options;
  options.model_path = flags.model;
  options.threads = flags.threads;
  const engine::OpenedModel opened = engine::open_model(options);
  const std::string id = model_id_of(model);
  if (!id.empty() && id != hex(opened.file->model_id())) {
    fail(ErrorKind::Usage, "{} was recorded with another model than {}", model.path, flags.model);
  }
  const std::string path =
      flags.machine_file.empty() ? engine::default_machine_file() : flags.machine_file;
  const engine::SpeedFigures figures = engine::speed_figures(
      opened, path.empty() ? engine::MachineFile() : engine::MachineFile::read(path));
  for (const std::string& what : figures.missing) log::warn("not measured: {}", what);
  if (!figures.disk || !figures.decode) {
    log::warn("no speed is estimated; `penstock plan {} --calibrate-machine` measures it",
              flags.model);
    return std::nullopt;
  }
  measure::SimCost cost;
  cost.compute = *figures.decode;
  cost.disk = {figures.disk->bytes_per_s, figures.disk->latency_s};
  cost.source = fmt::format(
      "{}: reads measured {}, computing {} {}", path, engine::time_text(figures.disk->measured),
      figures.decode_measured ? "measured" : "estimated", engine::time_text(figures.compute_time));
  return cost;
}

std::optional<measure::SimCost> cost_of(const Flags& flags, const measure::TraceModel& model) {
  if (!flags.disk_gbps && !flags.compute_ms) {
    if (flags.latency_ms || flags.experts_ms || flags.shared_ms) {
      fail(ErrorKind::Usage, "a speed needs both --disk-gbps and --compute-ms");
    }
    return flags.model.empty() ? std::nullopt : measured_cost(flags, model);
  }
  if (!flags.disk_gbps || !flags.compute_ms) {
    fail(ErrorKind::Usage, "a speed needs both --disk-gbps and --compute-ms");
  }
  measure::SimCost cost;
  cost.compute = {*flags.compute_ms / 1e3, flags.experts_ms.value_or(0) / 1e3,
                  flags.shared_ms.value_or(0) / 1e3};
  cost.disk = {*flags.disk_gbps * 1e9, flags.latency_ms.value_or(0) / 1e3};
  if (cost.compute.experts_s + cost.compute.shared_s > cost.compute.token_s) {
    fail(ErrorKind::Usage, "--experts-ms and --shared-ms are parts of --compute-ms");
  }
  cost.source = fmt::format("what was given: {:g} GB/s and {:g} ms a wait, {:g} ms of computing",
                            *flags.disk_gbps, flags.latency_ms.value_or(0), *flags.compute_ms);
  return cost;
}

void write_text(const std::string& path, const std::string& text) {
  AtomicFile file(path);
  file.write(text.data(), text.size());
  file.commit();
}

int run_sim(const Flags& flags) {
  measure::SimReport report;
  report.profile = flags.profile;
  for (const std::string& path : flags.traces) {
    report.traces.push_back(measure::read_trace_model(path));
  }
  const measure::TraceModel& first = report.traces.front();
  report.cost = cost_of(flags, first);
  measure::SimRequest request;
  request.cost = report.cost;
  request.threads =
      flags.threads > 0 ? flags.threads : static_cast<int>(std::thread::hardware_concurrency());
  request.settings = settings_of(flags, first);
  const bool as_run = std::any_of(request.settings.begin(), request.settings.end(),
                                  [](const auto& setting) { return setting.slots == 0; });
  for (const measure::TraceModel& model : report.traces) {
    if (model.shape.class_of != first.shape.class_of ||
        model.shape.n_experts() != first.shape.n_experts() ||
        model_id_of(model) != model_id_of(first)) {
      fail(ErrorKind::Usage, "{} and {} are of different models: replay them one by one",
           first.path, model.path);
    }
    if (as_run && model.shape.slots() != first.shape.slots()) {
      fail(ErrorKind::Usage,
           "--slots run: {} was recorded with {} slots, {} with {}: replay them one by one, or "
           "give --slots",
           first.path, first.shape.slots(), model.path, model.shape.slots());
    }
    request.shares = shares_of(flags, model);
    Progress bar(fmt::format("replaying {} settings", request.settings.size()),
                 File::open_read(model.path).size());
    request.progress = [&](uint64_t done, uint64_t) { bar.set(done); };
    std::vector<measure::SimResult> results = measure::simulate(model, request);
    bar.finish();
    measure::add_results(report.results, results);
    if (report.traces.size() > 1) report.by_trace.push_back(std::move(results));
  }
  measure::finish_results(report.results, report.cost);
  if (!flags.svg.empty()) write_text(flags.svg, measure::sim_plot(report));
  if (flags.json.empty()) {
    fmt::print("{}", measure::sim_table(report));
    return 0;
  }
  const std::string text =
      measure::sim_json(report).dump(1, ' ', false, nlohmann::json::error_handler_t::replace) +
      "\n";
  if (flags.json == "-") {
    fmt::print("{}", text);
  } else {
    write_text(flags.json, text);
    fmt::print("{}", measure::sim_table(report));
  }
  return 0;
}

void add_speed(CLI::App& app, Flags& flags) {
  const char* const group = "Speed";
  app.add_option("-m,--model", flags.model,
                 "the trace's model: take what `plan --calibrate-machine` measured with it")
      ->group(group);
  app.add_option("--machine-file", flags.machine_file, "where measured figures are kept")
      ->default_str("~/.cache/penstock/machine.json")
      ->group(group);
  app.add_option("--disk-gbps", flags.disk_gbps, "expert reads, in GB/s")
      ->check(CLI::Range(1e-3, 1e4))
      ->group(group);
  app.add_option("--disk-latency-ms", flags.latency_ms, "of a wait, beyond bytes and rate")
      ->check(CLI::Range(0.0, 1e4))
      ->group(group);
  app.add_option("--compute-ms", flags.compute_ms, "of a token with every expert in memory")
      ->check(CLI::Range(1e-3, 1e6))
      ->group(group);
  app.add_option("--experts-ms", flags.experts_ms, "of these, for routed experts: hides reads")
      ->check(CLI::Range(0.0, 1e6))
      ->group(group);
  app.add_option("--shared-ms", flags.shared_ms,
                 "of these, between routers and routed experts: hides reads")
      ->check(CLI::Range(0.0, 1e6))
      ->group(group);
}

}  // namespace

void add_sim(CLI::App& app, Action* action) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand(
      "sim", "Replays routing traces with other eviction policies, arena sizes and options.");
  command->footer(
      "Examples:\n"
      "  penstock run -m MODEL.gguf -p \"...\" -n 500 --trace-routing a.xrt\n"
      "  penstock sim a.xrt --slots sweep --svg a.svg\n"
      "  penstock sim a.xrt --slots 10%,20%,40% --hot-cap 0,25 --profile self --warm\n"
      "  penstock sim a.xrt --slots sweep --disk-gbps 3.2 --compute-ms 60\n"
      "  penstock sim l.xrt --moce off,bonus:0.4,bonus:0.85     (needs --trace-logits)\n"
      "\n"
      "docs/simulator.md says what the figures mean, and what they do not.");
  command->add_option("trace", flags->traces, "files written by run --trace-routing")->required();
  command
      ->add_option("--policy", flags->policies,
                   "lru, lfu, profile, cycle, clairvoyant, clairvoyant-admits")
      ->delimiter(',')
      ->default_str("all; profile with --profile");
  command
      ->add_option("--slots", flags->slots,
                   "numbers, N% of all experts, run (as it was) or sweep (from the fewest to all)")
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--sizes", flags->sizes, "how many sizes a sweep has")
      ->check(CLI::Range(2, 200))
      ->capture_default_str();
  command->add_option("--hot-cap", flags->hot_caps, "per cent of the slots protected as hot")
      ->delimiter(',')
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str();
  command
      ->add_option("--half-life", flags->half_lives,
                   "tokens after which counts are halved (profile: 32, else 8)")
      ->delimiter(',')
      ->check(CLI::Range(1, 1000000000));
  command->add_option("--profile", flags->profile,
                      "a profile, or self: the trace's own counts (in-sample)");
  command->add_flag("--warm", flags->warm,
                    "also with an arena that starts with what the profile counts most");
  command->add_option("--read-ahead", flags->read_ahead, "off, on: by the trace's predictions")
      ->delimiter(',')
      ->capture_default_str()
      ->group("With --trace-logits");
  command->add_option("--ahead-distance", flags->distance, "layers")
      ->check(CLI::Range(1, 2))
      ->capture_default_str()
      ->group("With --trace-logits");
  command->add_option("--ahead-width", flags->widths, "candidates of a layer; 0: the engine's")
      ->delimiter(',')
      ->check(CLI::Range(0, 65535))
      ->capture_default_str()
      ->group("With --trace-logits");
  command->add_option("--ahead-reads", flags->reads, "of these, read at most; 0: the engine's")
      ->delimiter(',')
      ->check(CLI::Range(0, 65535))
      ->capture_default_str()
      ->group("With --trace-logits");
  command
      ->add_option("--moce", flags->moce,
                   "off, bonus:B, prior:LAMBDA, maxrank:WINDOW, cumprob:MASS")
      ->delimiter(',')
      ->capture_default_str()
      ->group("With --trace-logits");
  command->add_option("--moce-protect", flags->protect, "ranks selected in memory or not")
      ->capture_default_str()
      ->group("With --trace-logits");
  command->add_option("--moce-residency", flags->residency, "epoch or live")
      ->check(CLI::IsMember({"epoch", "live"}))
      ->capture_default_str()
      ->group("With --trace-logits");
  add_speed(*command, *flags);
  command->add_option("-t,--threads", flags->threads, "settings replayed at once")
      ->check(CLI::Range(1, 1024))
      ->default_str("all processors");
  command->add_option("--json", flags->json, "writes everything as JSON; - for standard output")
      ->group("Output");
  command->add_option("--svg", flags->svg, "draws hits and estimated speed against arena size")
      ->group("Output");
  command->callback([flags, action] { *action = [flags] { return run_sim(*flags); }; });
}

}  // namespace penstock::cli
