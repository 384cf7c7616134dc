#include "cli/plan_report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/machine.h"
#include "experts/io_choice.h"
#include "cli/dense_summary.h"

namespace penstock::cli {
namespace {

using Json = nlohmann::ordered_json;
using engine::time_text;

constexpr double kMega = 1e-6;
constexpr double kGiga = 1e-9;
constexpr double kMilli = 1e3;  // seconds to milliseconds

const char* kv_name(models::KvType kv) {
  return kv == models::KvType::F32 ? "f32" : "f16";
}

double percent_held(const experts::Plan& plan) {
  const uint64_t n = plan.shape.n_experts();
  return n == 0 ? 100.0 : 100.0 * static_cast<double>(plan.slots()) / static_cast<double>(n);
}

std::string head_text(const PlanReport& report) {
  const engine::OpenedModel& opened = *report.opened;
  const engine::RuntimeOptions& options = opened.options;
  const models::Info& info = opened.model->info();
  std::string out = fmt::format("{}\n", options.model_path);
  out += fmt::format("  {}, {} layers, {} experts\n", info.architecture, info.n_layer,
                     report.plan.outcome.plan.shape.n_experts());
  out += fmt::format("  experts are read from {}\n", opened.source.describe());
  out += fmt::format("  held        {}\n",
                     experts::io_choice(options.stream, report.plan.outcome.plan.shape));
  out += fmt::format("  disk        {}\n", report.reader);
  out += fmt::format("  compute     {} threads, {}, {} activations\n", options.threads,
                     quant::isa_name(quant::current_isa()),
                     options.precision == quant::Precision::Exact ? "f32" : "8-bit");
  out += fmt::format("  context     {} tokens in {}; prompts in chunks of {}{}\n", options.n_ctx,
                     kv_name(*options.kv), report.plan.prompt_chunk,
                     options.prompt_chunk != 0    ? ""
                     : report.plan.outcome.fits() ? ", the most that fits"
                                                  : ", the fewest tried");
  return out + converted_rows(opened.model->dense());
}

std::string figures_text(const engine::SpeedFigures& figures) {
  std::string out;
  if (figures.disk) {
    const engine::DiskFigures& disk = *figures.disk;
    out += fmt::format(
        "  reads       {:.2f} GB/s and {:.2f} ms for each wait; measured {} by {} reads\n",
        disk.bytes_per_s * kGiga, disk.latency_s * kMilli, time_text(disk.measured), disk.reads);
  }
  if (figures.decode && figures.decode_measured) {
    out += fmt::format(
        "  decode      {:.2f} ms a token with every expert in memory, {:.2f} of them for routed "
        "experts; measured {}, median of {}\n",
        figures.decode->token_s * kMilli, figures.decode->experts_s * kMilli,
        time_text(figures.compute_time), figures.decode_tokens);
  } else if (figures.decode) {
    out += fmt::format(
        "  decode      at least {:.2f} ms a token: estimated from the weights' bytes and the "
        "kernels' rates of {}, all else left out\n",
        figures.decode->token_s * kMilli, time_text(figures.compute_time));
  }
  if (figures.prompt_token_s > 0) {
    out += fmt::format("  prompt      {:.2f} ms a token of computing; measured in a chunk of {}\n",
                       figures.prompt_token_s * kMilli, figures.prompt_tokens);
  }
  return out;
}

std::string prompt_text(const char* what, const experts::PromptPrediction& p) {
  return fmt::format("{:.1f} tokens/s {} ({:.2f} s of computing, {:.2f} s of reading)",
                     p.tokens_per_s, what, p.compute_s, p.io_s);
}

std::string prediction_text(const PlanReport& report) {
  const engine::SpeedPrediction& speed = report.speed;
  if (speed.rows.empty()) return {};
  std::string out = fmt::format("\n  {:>9}{:>13}{:>11}{:>13}{:>15}{:>16}\n", "hits", "reads/token",
                                "MB/token", "tokens/s", "if overlapped", "if one by one");
  for (const engine::SpeedPrediction::Row& row : speed.rows) {
    const experts::DecodePrediction& p = row.decode;
    out += fmt::format("  {:>7.1f} %{:>13.1f}{:>11.2f}{:>13.2f}{:>15.2f}{:>16.2f}{}{}\n",
                       100 * p.hit_rate, p.misses, p.bytes * kMega, p.tokens_per_s(),
                       p.overlap_tokens_per_s(), p.serial_tokens_per_s(),
                       row.hits.what.empty() ? "" : "  ", row.hits.what);
  }
  if (!report.plan.outcome.plan.shape.holds_all()) {
    out += fmt::format(
        "  computing takes as long as {:.1f} reads: with fewer per token the disk "
        "need not be waited for\n",
        speed.break_even_reads);
  }
  if (speed.prompt_cold) {
    out += fmt::format("  prompt of {}: {}", report.plan.prompt_chunk,
                       prompt_text("with an empty arena", *speed.prompt_cold));
    if (speed.prompt_warm) out += "; " + prompt_text("with a full one", *speed.prompt_warm);
    out += '\n';
  }
  return out;
}

std::string speed_text(const PlanReport& report) {
  std::string out = "\nSpeed\n";
  if (!report.machine_problem.empty()) {
    out += fmt::format("  ignored: {}\n", report.machine_problem);
  }
  out += figures_text(report.figures);
  for (const std::string& note : report.notes) out += fmt::format("  note: {}\n", note);
  for (const std::string& what : report.figures.missing) {
    out += fmt::format("  not measured: {}\n", what);
  }
  if (!report.figures.missing.empty()) {
    out += "  so no speed is predicted; --calibrate-machine measures it in about half a minute\n";
  } else if (!report.plan.outcome.fits()) {
    out += "  no speed is predicted for a plan that does not fit\n";
  }
  return out + prediction_text(report);
}

Json prompt_json(const std::optional<experts::PromptPrediction>& p) {
  if (!p) return nullptr;
  return {{"tokens_per_s", p->tokens_per_s},
          {"compute_s", p->compute_s},
          {"bytes", p->bytes},
          {"io_s", p->io_s},
          {"seconds", p->seconds}};
}

Json figures_json(const engine::SpeedFigures& figures) {
  Json out = {
      {"missing", figures.missing}, {"disk", nullptr}, {"decode", nullptr}, {"prompt", nullptr}};
  if (figures.disk) {
    out["disk"] = {{"bytes_per_s", figures.disk->bytes_per_s},
                   {"latency_s", figures.disk->latency_s},
                   {"reads", figures.disk->reads},
                   {"span_bytes", figures.disk->span_bytes},
                   {"reader", figures.disk->reader},
                   {"measured", figures.disk->measured}};
  }
  if (figures.decode) {
    out["decode"] = {{"source", figures.decode_measured ? "measured" : "estimated"},
                     {"token_s", figures.decode->token_s},
                     {"experts_s", figures.decode->experts_s},
                     {"shared_s", figures.decode->shared_s},
                     {"tokens", figures.decode_tokens},
                     {"measured", figures.compute_time}};
  }
  if (figures.prompt_token_s > 0) {
    out["prompt"] = {{"token_s", figures.prompt_token_s},
                     {"tokens", figures.prompt_tokens},
                     {"measured", figures.compute_time}};
  }
  return out;
}

Json speed_json(const PlanReport& report) {
  Json rows = Json::array();
  for (const engine::SpeedPrediction::Row& row : report.speed.rows) {
    const experts::DecodePrediction& p = row.decode;
    rows.push_back({{"hit_rate", p.hit_rate},
                    {"source", row.hits.what},
                    {"misses", p.misses},
                    {"bytes", p.bytes},
                    {"io_s", p.io_s},
                    {"predicted_s", p.predicted_s},
                    {"overlap_s", p.overlap_s},
                    {"serial_s", p.serial_s},
                    {"tokens_per_s", p.tokens_per_s()}});
  }
  Json out = {{"figures", figures_json(report.figures)}, {"decode", std::move(rows)}};
  out["break_even_reads"] =
      report.speed.rows.empty() ? Json() : Json(report.speed.break_even_reads);
  out["prompt_cold"] = prompt_json(report.speed.prompt_cold);
  out["prompt_warm"] = prompt_json(report.speed.prompt_warm);
  return out;
}

Json memory_json(const PlanReport& report) {
  const experts::Plan& plan = report.plan.outcome.plan;
  Json terms;
  for (const auto& [name, bytes] : plan.rows()) terms[name] = bytes;
  Json classes = Json::array();
  for (const experts::SlotClass& c : plan.shape.classes) {
    classes.push_back({{"slot_bytes", c.slot_bytes}, {"slots", c.slots}, {"experts", c.n_experts}});
  }
  return {{"terms", std::move(terms)},
          {"peak_decode", plan.peak_decode},
          {"peak_prefill", plan.peak_prefill},
          {"budget", plan.budget},
          {"budget_source", plan.memory_chosen ? "--memory" : "available - fuse - margin"},
          {"available", plan.available},
          {"available_source", plan.available_source},
          {"fuse", plan.fuse},
          {"margin", plan.margin},
          {"slots", plan.slots()},
          {"experts", plan.shape.n_experts()},
          {"slot_classes", std::move(classes)},
          {"hard_floor", plan.hard_floor},
          {"token_cycle", plan.cycle},
          {"transit_slots", plan.shape.transit},
          {"warnings", plan.warnings}};
}

}  // namespace

std::string plan_text(const PlanReport& report) {
  const experts::Plan& plan = report.plan.outcome.plan;
  std::string out = head_text(report);
  out += "\nMemory\n" + experts::format_plan(plan);
  out += fmt::format("  {:.1f} % of the experts have a slot\n", percent_held(plan));
  out += speed_text(report);
  if (!report.advice.empty()) out += "\nSuggestions\n";
  for (const std::string& advice : report.advice) out += fmt::format("  {}\n", advice);
  return out;
}

Json plan_report_json(const PlanReport& report) {
  const engine::OpenedModel& opened = *report.opened;
  const engine::RuntimeOptions& options = opened.options;
  Json out = {{"model", options.model_path},
              {"architecture", opened.model->info().architecture},
              {"fits", report.plan.outcome.fits()}};
  if (const auto& refusal = report.plan.outcome.refusal) {
    out["why"] = refusal->why;
    out["shortfall"] = refusal->shortfall;
    out["remedies"] = refusal->remedies;
  }
  out["settings"] = {{"n_ctx", options.n_ctx},
                     {"kv", kv_name(*options.kv)},
                     {"prompt_chunk", report.plan.prompt_chunk},
                     {"threads", options.threads},
                     {"isa", quant::isa_name(quant::current_isa())},
                     {"precision", options.precision == quant::Precision::Exact ? "exact" : "fast"},
                     {"pack", opened.source.pack ? Json(opened.source.pack->path) : Json()},
                     {"reader", report.reader}};
  out["memory"] = memory_json(report);
  out["dense_converted"] = converted_json(opened.model->dense());
  out["machine_file"] = {{"path", report.machine_file}, {"problem", report.machine_problem}};
  out["speed"] = speed_json(report);
  out["notes"] = report.notes;
  out["suggestions"] = report.advice;
  return out;
}

}  // namespace penstock::cli
