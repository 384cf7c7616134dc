#include "cli/summary.h"

#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>

#include "base/machine.h"
#include "cli/dense_summary.h"
#include "cli/quality_summary.h"
#include "experts/io_choice.h"
#include "measure/counters_json.h"

namespace penstock::cli {
namespace {

using experts::Counters;
using experts::ReadCounts;
using experts::UseCounts;
using measure::uses_json;
using Json = nlohmann::ordered_json;

double share(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole);
}

Json reads_json(const ReadCounts& reads) {
  return {{"reads", reads.reads}, {"bytes", reads.bytes}};
}

Json io_json(const experts::IoReport& io) {
  return {{"requested", experts::io_mode_name(io.requested)},
          {"mapped", io.mapped},
          {"engine", experts::engine_name(io.engine)},
          {"direct", io.direct},
          {"proven", io.proven},
          {"alignment", io.alignment},
          {"file_system", io.file_system},
          {"registered_bytes", io.registered_bytes},
          {"reason", io.reason}};
}

Json measures_json(const experts::AheadMeasures& m) {
  return {{"layers", m.layers}, {"slots", m.slots},     {"overlap", m.overlap},
          {"exact", m.exact},   {"missing", m.missing}, {"covered", m.covered},
          {"issued", m.issued}, {"used", m.used},       {"late", m.late}};
}

// Predictions against what was selected; null without read-ahead.
Json ahead_json(const experts::Stream& stream, const Counters& c) {
  const experts::AheadMeter* meter = stream.ahead();
  if (meter == nullptr) return nullptr;
  Json out = {{"issued", c.ahead.issued},         {"used_same_token", c.ahead.used_same_token},
              {"used_later", c.ahead.used_later}, {"wasted", c.ahead.wasted},
              {"pending", c.ahead.pending},       {"cancelled", c.ahead.cancelled}};
  for (int d = 1; d <= experts::kMostAhead; ++d) {
    Json layers = Json::array();
    for (const experts::AheadMeasures& m : meter->by_layer(d)) layers.push_back(measures_json(m));
    Json total = measures_json(meter->total(d));
    total["by_layer"] = std::move(layers);
    out["predicted"].push_back(std::move(total));
  }
  out["control_prev"] = measures_json(meter->prev());
  out["control_fresh"] = measures_json(meter->fresh());
  if (const experts::AheadGovernor* governor = stream.governor()) {
    out["auto"] = {{"active", governor->active()},
                   {"trials", governor->trials()},
                   {"ns_per_token_with", governor->with_ns()},
                   {"ns_per_token_without", governor->without_ns()}};
  }
  return out;
}

// Whether the text shares 13 tokens in a row with the profile's.
const char* sample_of(const experts::Profile& profile, const engine::Session& session) {
  return experts::in_sample(profile, session.tokens()) ? "in-sample" : "held-out";
}

std::string ahead_rows(const experts::Stream& stream, const Counters& c) {
  const experts::AheadMeter* meter = stream.ahead();
  if (meter == nullptr || meter->total(1).layers == 0) return {};
  std::string out;
  if (c.ahead.issued != 0) {
    out += fmt::format(
        "  read-ahead  {} experts read ahead: {:.1f} % used ({} for the token they were read for), "
        "{} wasted, {} not used yet\n",
        c.ahead.issued, share(c.ahead.used(), c.ahead.issued), c.ahead.used_same_token,
        c.ahead.wasted, c.ahead.pending);
  }
  out += "  predicted ";
  for (int d = 1; d <= experts::kMostAhead; ++d) {
    const experts::AheadMeasures m = meter->total(d);
    if (m.layers == 0) continue;
    out +=
        fmt::format("  {} layer{} ahead: {:.1f} % of the selections, {:.1f} % of the missing;", d,
                    d == 1 ? "" : "s", share(m.overlap, m.slots), share(m.covered, m.missing));
  }
  out += fmt::format("  as the token before: {:.1f} %",
                     share(meter->prev().overlap, meter->prev().slots));
  if (meter->fresh().slots != 0) {
    out += fmt::format("; own router (control): {:.1f} %",
                       share(meter->fresh().overlap, meter->fresh().slots));
  }
  out += '\n';
  if (const experts::AheadGovernor* governor = stream.governor(); governor && governor->trials()) {
    out += fmt::format(
        "  read-ahead  {} after {} trial{}: {:.2f} ms a token with, {:.2f} without\n",
        governor->active() ? "on" : "off", governor->trials(), governor->trials() == 1 ? "" : "s",
        governor->with_ns() * 1e-6, governor->without_ns() * 1e-6);
  }
  return out;
}

// How the profile's use went: the warm fill, and whether the hit rates say anything about text that
// the profile has not seen.
std::string profile_rows(const engine::Session& session, const Counters& c) {
  const engine::Runtime& runtime = session.runtime();
  std::string out;
  if (const experts::Profile* profile = runtime.profile()) {
    const experts::FillReport& fill = runtime.load().fill;
    out += fmt::format("  profile     {}, {}; {} experts filled in before the prompt",
                       runtime.profile_path(), sample_of(*profile, session), fill.experts);
    if (fill.seconds > 0) {
      out += fmt::format(" in {:.2f} s, {:.2f} GB/s", fill.seconds,
                         static_cast<double>(fill.bytes) * 1e-9 / fill.seconds);
    }
    if (fill.failed != 0) out += fmt::format(", {} could not be read", fill.failed);
    out += '\n';
  }
  if (c.hot != 0) {
    out += fmt::format("  hot         {} experts protected, {} of them in memory; {} evicted\n",
                       c.hot, c.hot_resident, c.evict_hot);
  }
  return out;
}

std::string moce_settings(const experts::MoceOptions& o) {
  std::string out = experts::moce_name(o.mode);
  switch (o.mode) {
    case experts::Moce::Off:
      return out;
    case experts::Moce::Bonus:
      out += fmt::format(" {:g}", o.bonus);
      break;
    case experts::Moce::Prior:
      out += fmt::format(" lambda {:g}", o.lambda);
      break;
    case experts::Moce::MaxRank:
      out += fmt::format(" {}", o.window);
      break;
    case experts::Moce::CumProb:
      out += fmt::format(" {:g}", o.mass);
      break;
  }
  return out + fmt::format(", {} ranks kept, {} residency", o.protect,
                           experts::moce_residency_name(o.residency));
}

std::string moce_row(const engine::Runtime& runtime) {
  const experts::MoceOptions& asked = runtime.options().stream.moce;
  if (!asked.on()) return {};
  std::string out = fmt::format("  routing     cache-aware, {}", moce_settings(asked));
  const experts::CacheRouter* router = runtime.stream().moce();
  if (router == nullptr) return out + ": without effect, every expert has a slot\n";
  const experts::MoceMeasures m = router->total();
  const auto rows = static_cast<double>(std::max<uint64_t>(1, m.rows));
  out += fmt::format(": {:.2f} % of the slots replaced, {:.3f} % of the mass lost",
                     share(m.replaced, m.slots), 100 * m.mass_lost / rows);
  if (router->guard_events() != 0) {
    out += fmt::format("; halved {} times by the guard", router->guard_events());
  }
  return out + "\n";
}

Json moce_json(const engine::Runtime& runtime) {
  const experts::MoceOptions& asked = runtime.options().stream.moce;
  Json out = {{"mode", experts::moce_name(asked.mode)}};
  if (!asked.on()) return out;
  out["residency"] = experts::moce_residency_name(asked.residency);
  out["protect"] = asked.protect;
  out["bonus"] = asked.bonus;
  out["lambda"] = asked.lambda;
  out["window"] = asked.window;
  out["mass"] = asked.mass;
  out["guard"] = asked.guard;
  const experts::CacheRouter* router = runtime.stream().moce();
  out["active"] = router != nullptr;
  if (router == nullptr) return out;
  out["guard_events"] = router->guard_events();
  const auto measures = [&](const experts::MoceMeasures& m) {
    const double range = m.rows == 0 ? 0 : m.logit_range / static_cast<double>(m.rows);
    const bool comparable = range > 0 && asked.mode == experts::Moce::Bonus;
    Json one = {{"rows", m.rows},           {"slots", m.slots},       {"replaced", m.replaced},
                {"mass_lost", m.mass_lost}, {"route_kl", m.route_kl}, {"mean_logit_range", range}};
    if (comparable) one["lambda_equivalent"] = double{router->options().bonus} / range;
    return one;
  };
  out["total"] = measures(router->total());
  for (const experts::MoceMeasures& m : router->by_layer()) out["by_layer"].push_back(measures(m));
  return out;
}

Json residency_json(const engine::Session& session, const Counters& c) {
  const engine::Runtime& runtime = session.runtime();
  const experts::StreamOptions& options = runtime.options().stream;
  Json out = {{"evict", experts::evict_name(options.evict)},
              {"fill", experts::fill_name(options.fill)},
              {"hot_share", options.hot_share},
              {"hot", c.hot},
              {"hot_resident", c.hot_resident},
              {"profile", nullptr}};
  const experts::Profile* profile = runtime.profile();
  if (profile == nullptr) return out;
  const experts::FillReport& fill = runtime.load().fill;
  out["profile"] = {{"path", runtime.profile_path()},
                    {"tokens", profile->n_tokens},
                    {"tokens_sha256", hex(profile->tokens_id)},
                    {"routing", profile->routing},
                    {"sample", sample_of(*profile, session)}};
  out["filled"] = {{"experts", fill.experts},
                   {"failed", fill.failed},
                   {"bytes", fill.bytes},
                   {"seconds", fill.seconds}};
  return out;
}

// What was read, and how long it took. Of the mapped file nobody counts either.
std::string read_rows(const Counters& c) {
  const double row_mb = static_cast<double>(c.ple.bytes) * 1e-6;
  if (c.mapped != 0) {
    return c.ple.reads == 0 ? std::string()
                            : fmt::format("  read        {:.2f} MB of n-gram rows\n", row_mb);
  }
  const double decode_mb = static_cast<double>(c.demand.bytes + c.spec.bytes) * 1e-6;
  std::string out = fmt::format("  read        {:.2f} MB for the prompt, {:.2f} MB in decode",
                                static_cast<double>(c.prompt.bytes) * 1e-6, decode_mb);
  if (c.tokens != 0) {
    const auto tokens = static_cast<double>(c.tokens);
    out += fmt::format(" ({:.2f} MB and {:.2f} ms of waiting per token)", decode_mb / tokens,
                       static_cast<double>(c.stall_ns) * 1e-6 / tokens);
  }
  if (c.ple.reads != 0) out += fmt::format(", {:.2f} MB of n-gram rows", row_mb);
  out += "\n";
  if (c.io_busy_ns != 0) {
    out += fmt::format("  reads       {:.2f} at once on average",
                       static_cast<double>(c.io_latency_ns) / static_cast<double>(c.io_busy_ns));
    if (c.demand.reads != 0) {
      out += fmt::format("; demand: half within {:.2f} ms, 99 % within {:.2f} ms",
                         c.demand_latency.within_ns(0.5) * 1e-6,
                         c.demand_latency.within_ns(0.99) * 1e-6);
    }
    out += "\n";
  }
  return out;
}

std::string watchdog_row(const engine::Runtime& runtime) {
  const experts::Watchdog* watchdog = runtime.watchdog();
  if (watchdog == nullptr) return {};
  const experts::WatchdogReport r = watchdog->report();
  if (r.events.empty()) return {};
  uint64_t given_back = 0;
  std::array<int, 4> n{};
  for (const experts::WatchdogEvent& event : r.events) {
    given_back += event.given_back;
    ++n[static_cast<size_t>(event.pressure)];
  }
  return fmt::format(
      "  watchdog    {} warnings, {} times slots to give back ({}), {} aborts; at least {} were "
      "available, {} swapped out\n",
      n[1], n[2], format_bytes(given_back), n[3], format_bytes(r.min_available),
      format_bytes(r.max_swapped));
}

std::string phase_row(const char* name, int64_t tokens, double seconds) {
  if (tokens == 0) return {};
  return fmt::format("  {:<12}{:>8}{:>11.3f} s{:>12.2f}\n", name, tokens, seconds,
                     seconds > 0 ? static_cast<double>(tokens) / seconds : 0.0);
}

}  // namespace

std::string summary_table(engine::Session& session, const std::string& end) {
  const engine::Runtime& runtime = session.runtime();
  const engine::Timings& timings = session.timings();
  const engine::LoadReport& load = runtime.load();
  const Counters counters = runtime.counters();
  const experts::Plan& plan = runtime.plan();

  std::string out;
  out += fmt::format("  {:<12}{:>8}{:>13}{:>12}\n", "phase", "tokens", "time", "tokens/s");
  out += fmt::format("  {:<12}{:>8}{:>11.3f} s{:>12}\n", "load", "",
                     load.open_s + load.dense_s + load.arena_s, "");
  if (load.fill.seconds > 0) {
    out += fmt::format("  {:<12}{:>8}{:>11.3f} s{:>12}\n", "warm fill", "", load.fill.seconds, "");
  }
  out += phase_row("prompt", timings.prefill_tokens, timings.prefill_s);
  out += phase_row("first token", timings.first_tokens, timings.first_s);
  out += phase_row("decode", timings.decode_tokens, timings.decode_s);

  UseCounts uses = counters.first;
  uses += counters.steady;
  if (uses.total() != 0) {
    const uint64_t misses = uses.miss_issued + uses.miss_joined;
    const uint64_t ahead = uses.ra_timely + uses.ra_late;
    out += fmt::format(
        "  experts     {} uses: arena hits {:.2f} % ({}), read-ahead hits {:.2f} % ({}, {} of them "
        "late), misses {:.2f} % ({})\n",
        uses.total(), share(uses.arena, uses.total()), uses.arena, share(ahead, uses.total()),
        ahead, uses.ra_late, share(misses, uses.total()), misses);
  }
  if (counters.mapped != 0) {
    out += fmt::format("  experts     {} uses, all in the mapped file; {} fetched from the disk\n",
                       counters.mapped, format_bytes(storage_bytes_read()));
  }
  out += moce_row(runtime);
  out += profile_rows(session, counters);
  out += ahead_rows(runtime.stream(), counters);
  out += read_rows(counters);
  out += fmt::format("  experts in  {}\n", runtime.source().describe());
  out += fmt::format("  held        {}\n", experts::io_choice(runtime.options().stream, plan.shape,
                                                              runtime.io_automatic()));
  if (counters.records_verified != 0) {
    out += fmt::format("  verified    {} of {} records read, all sound\n",
                       counters.records_verified, counters.experts_read);
  }
  out += fmt::format("  disk        {}\n", runtime.stream().io().describe());
  if (runtime.rows() != nullptr) {
    out += fmt::format("  n-gram rows {}\n", runtime.rows()->io().describe());
  }
  if (plan.slots() != 0) {
    out += fmt::format("  arena       {} of {} experts ({:.1f} %), {}, {} of it on huge pages\n",
                       plan.slots(), plan.shape.n_experts(),
                       share(plan.slots(), plan.shape.n_experts()), format_bytes(plan.arena),
                       format_bytes(load.arena_huge_bytes));
  }
  const uint64_t planned = std::max(plan.peak_decode, plan.peak_prefill) - plan.slack;
  out +=
      fmt::format("  memory      {} planned at the peak, without slack; {} measured at the peak\n",
                  format_bytes(planned), format_bytes(session.peak_footprint()));
  out += dense_rows(runtime.load().dense);
  out += quality_row(runtime);
  out += watchdog_row(runtime);
  out += fmt::format("  compute     {} threads, {}, {} activations\n", runtime.options().threads,
                     quant::isa_name(quant::current_isa()),
                     runtime.options().precision == quant::Precision::Exact ? "f32" : "8-bit");
  if (!end.empty()) out += fmt::format("  ended       {}\n", end);
  if (runtime.options().stream.alias) {
    out += "  EXPERTS WERE ALIASED: this measures compute alone, the output means nothing\n";
  }
  return out;
}

Json timings_json(const engine::Session& session, const engine::Runtime& runtime) {
  const engine::Timings& timings = session.timings();
  const engine::LoadReport& load = runtime.load();
  return {{"load", {{"open_s", load.open_s}, {"dense_s", load.dense_s}, {"arena_s", load.arena_s}}},
          {"fill", {{"experts", load.fill.experts}, {"seconds", load.fill.seconds}}},
          {"scratch_map", {{"seconds", timings.scratch_s}}},
          {"prefill",
           {{"tokens", timings.prefill_tokens},
            {"seconds", timings.prefill_s},
            {"tokens_per_second", timings.prefill_rate()}}},
          {"first_token", {{"tokens", timings.first_tokens}, {"seconds", timings.first_s}}},
          {"decode",
           {{"tokens", timings.decode_tokens},
            {"seconds", timings.decode_s},
            {"tokens_per_second", timings.decode_rate()}}}};
}

Json counters_json(const engine::Session& session) {
  const engine::Runtime& runtime = session.runtime();
  const Counters c = runtime.counters();
  return {{"uses_first", uses_json(c.first)},
          {"uses_steady", uses_json(c.steady)},
          {"uses_mapped", c.mapped},
          {"uses_expected", c.uses_expected},
          {"steps", c.steps},
          {"tokens", c.tokens},
          {"reads_demand", reads_json(c.demand)},
          {"reads_spec", reads_json(c.spec)},
          {"reads_fill", reads_json(c.fill)},
          {"reads_prompt", reads_json(c.prompt)},
          {"reads_ple", reads_json(c.ple)},
          {"read_ahead", ahead_json(runtime.stream(), c)},
          {"residency", residency_json(session, c)},
          {"cache_aware_routing", moce_json(runtime)},
          {"experts_read", c.experts_read},
          {"records_verified", c.records_verified},
          {"stall_ns", c.stall_ns},
          {"stall_events", c.stall_events},
          {"io_busy_ns", c.io_busy_ns},
          {"io_latency_ns", c.io_latency_ns},
          {"read_latencies", measure::latencies_json(c)},
          {"read_errors_retried", c.read_errors_retried},
          {"evict_total", c.evict_total},
          {"evict_hot", c.evict_hot},
          {"prompt_experts_touched", c.prompt_experts_touched},
          {"prompt_arena_used", c.prompt_arena_used},
          {"prompt_stall_ns", c.prompt_stall_ns},
          {"dev_bytes", storage_bytes_read()}};
}

Json watchdog_json(const engine::Runtime& runtime) {
  const experts::Watchdog* watchdog = runtime.watchdog();
  if (watchdog == nullptr) return nullptr;
  const experts::WatchdogReport r = watchdog->report();
  const experts::WatchdogPolicy& p = r.policy;
  Json events = Json::array();
  for (const experts::WatchdogEvent& event : r.events) {
    events.push_back({{"at_s", event.sample.at_s},
                      {"pressure", experts::pressure_name(event.pressure)},
                      {"available", event.sample.available},
                      {"swapped", event.sample.swapped},
                      {"given_back", event.given_back}});
  }
  return {{"policy",
           {{"period_ms", p.period_ms},
            {"fuse", p.fuse},
            {"warn_below", p.warn_below()},
            {"shrink_below", p.shrink_below()},
            {"abort_below", p.abort_below()},
            {"swap_limit", p.swap_limit},
            {"shrink_share", p.shrink_share},
            {"shrink_pause_ms", p.shrink_pause_ms}}},
          {"samples", r.samples},
          {"min_available", r.samples == 0 ? Json() : Json(r.min_available)},
          {"max_swapped", r.max_swapped},
          {"slots_left", runtime.stream().shape().slots()},
          {"events", std::move(events)}};
}

Json source_json(const engine::Runtime& runtime) {
  Json out;
  if (const auto& pack = runtime.source().pack) {
    out["pack"] = {{"path", pack->path},
                   {"model_id", hex(pack->model_id)},
                   {"layout", pack->layout},
                   {"align", pack->align},
                   {"layers", pack->n_layers},
                   {"verify", experts::verify_name(pack->verify_every)},
                   {"overridden", pack->overridden}};
  } else {
    out["pack"] = nullptr;
  }
  out["io"] = io_json(runtime.stream().io());
  if (runtime.rows() != nullptr) out["rows_io"] = io_json(runtime.rows()->io());
  return out;
}

Json plan_json(engine::Session& session) {
  const engine::Runtime& runtime = session.runtime();
  const experts::Plan& plan = runtime.plan();
  Json terms;
  for (const auto& [name, bytes] : plan.rows()) terms[name] = bytes;
  const Footprint memory = footprint();
  const engine::PromptMemory& prompt = session.prompt_memory();
  return {
      {"terms", std::move(terms)},
      {"slots", plan.slots()},
      {"experts", plan.shape.n_experts()},
      {"token_cycle", plan.cycle},
      {"hard_floor", plan.hard_floor},
      {"budget", plan.budget},
      {"available", plan.available},
      {"available_source", plan.available_source},
      {"fuse", plan.fuse},
      {"peak_decode", plan.peak_decode},
      {"peak_prefill", plan.peak_prefill},
      {"n_ctx", runtime.options().n_ctx},
      {"prompt_chunk", runtime.options().prompt_chunk},
      {"threads", runtime.options().threads},
      {"io", runtime.stream().io().describe()},
      {"held", experts::io_choice(runtime.options().stream, plan.shape, runtime.io_automatic())},
      {"arena_huge_bytes", runtime.load().arena_huge_bytes},
      {"measured",
       {{"footprint", memory.total()},
        {"peak_footprint", session.peak_footprint()},
        {"anonymous", memory.anonymous},
        {"locked_file", memory.locked_file},
        {"peak_rss", memory.peak_rss},
        {"prompt_scratch",
         {{"planned", prompt.scratch},
          {"footprint_before", prompt.before},
          {"footprint_peak", prompt.peak},
          {"footprint_after", prompt.after},
          {"state", prompt.state},
          {"kept", prompt.kept()},
          {"prompts_that_kept", session.prompts_that_kept_scratch()}}}}}};
}

Json sampling_json(const engine::SamplerOptions& sampling) {
  return {{"temperature", sampling.temperature},
          {"top_k", sampling.top_k},
          {"top_p", sampling.top_p},
          {"min_p", sampling.min_p},
          {"repetition_penalty", sampling.repetition_penalty},
          {"presence_penalty", sampling.presence_penalty},
          {"frequency_penalty", sampling.frequency_penalty},
          {"seed", sampling.seed}};
}

}  // namespace penstock::cli
