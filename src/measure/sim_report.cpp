#include "measure/sim_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "measure/counters_json.h"

namespace penstock::measure {
namespace {

using Json = nlohmann::ordered_json;

Json setting_json(const SimSetting& s) {
  Json out = {{"policy", policy_name(s.policy)}, {"hot_share", s.hot_share},
              {"half_life", s.half_life},        {"warm", s.warm},
              {"read_ahead", nullptr},           {"moce", nullptr}};
  if (s.ahead.on) {
    out["read_ahead"] = {
        {"distance", s.ahead.distance}, {"width", s.ahead.width}, {"reads", s.ahead.reads}};
  }
  if (s.moce.on()) {
    out["moce"] = {{"mode", experts::moce_name(s.moce.mode)},
                   {"bonus", s.moce.bonus},
                   {"lambda", s.moce.lambda},
                   {"protect", s.moce.protect},
                   {"window", s.moce.window},
                   {"mass", s.moce.mass},
                   {"residency", experts::moce_residency_name(s.moce.residency)},
                   {"quality", "unmeasured"}};
  }
  return out;
}

Json estimate_json(const SimReport& report, const SimResult& r) {
  if (!report.cost || r.counts.tokens == 0) return nullptr;
  return {{"stall_s_per_token", r.counts.stall_s / static_cast<double>(r.counts.tokens)},
          {"token_s", r.token_s},
          {"tokens_per_s", r.tokens_per_s()}};
}

Json moce_json(const experts::MoceMeasures& m) {
  const double rows = static_cast<double>(std::max<uint64_t>(1, m.rows));
  return {{"slots", m.slots},
          {"replaced", m.replaced},
          {"mass_lost", m.mass_lost / rows},
          {"route_kl", m.route_kl / rows},
          {"mean_logit_range", m.logit_range / rows}};
}

Json result_json(const SimReport& report, const SimResult& r) {
  const SimCounts& c = r.counts;
  const bool bytes_known = c.decode_bytes > 0 || c.demand_reads + c.spec_reads == 0;
  Json out = {{"setting", setting_json(r.setting)},
              {"slots", r.slots},
              {"arena_bytes", r.arena_bytes},
              {"uses_first", uses_json(c.first)},
              {"uses_steady", uses_json(c.steady)},
              {"uses_expected", c.uses_expected},
              {"steps", c.steps},
              {"tokens", c.tokens},
              {"turns", c.turns},
              {"hit_rate", c.hit_rate()},
              {"misses_per_token", c.misses_per_token()},
              {"bytes_per_token", bytes_known ? Json(c.bytes_per_token()) : Json()},
              {"turn_start",
               {{"tokens", c.turn_start_tokens},
                {"misses", c.turn_start_misses},
                {"misses_per_token", c.turn_start_misses_per_token()}}},
              {"experts_read",
               {{"demand", c.demand_reads},
                {"spec", c.spec_reads},
                {"prompt", c.prompt_reads},
                {"fill", c.fill_reads}}},
              {"prompt_experts_touched", c.prompt_experts_touched},
              {"prompt_arena_used", c.prompt_arena_used},
              {"evict_total", c.evict_total},
              {"evict_hot", c.evict_hot},
              {"hot", c.hot},
              {"bound_misses", r.bound_misses ? Json(*r.bound_misses) : Json()},
              {"estimate", estimate_json(report, r)}};
  if (r.setting.ahead.on) {
    out["ahead"] = {
        {"issued", c.ahead.issued},         {"used_same_token", c.ahead.used_same_token},
        {"used_later", c.ahead.used_later}, {"wasted", c.ahead.wasted},
        {"pending", c.ahead.pending},       {"cancelled", c.ahead.cancelled}};
  }
  if (r.setting.moce.on()) out["cache_aware_routing"] = moce_json(c.moce);
  return out;
}

Json results_json(const SimReport& report, const std::vector<SimResult>& results) {
  Json out = Json::array();
  for (const SimResult& r : results) out.push_back(result_json(report, r));
  return out;
}

// Above the bound, in per cent of it.
std::string gap_text(const SimResult& r) {
  if (!r.bound_misses) return {};
  const uint64_t misses = r.counts.misses();
  if (*r.bound_misses == 0) return misses == 0 ? "0 %" : "-";
  return fmt::format(
      "{:+.1f} %", 100 * (static_cast<double>(misses) / static_cast<double>(*r.bound_misses) - 1));
}

}  // namespace

std::vector<std::string> sim_caveats(const SimReport& report) {
  std::vector<std::string> out = {
      "a hit rate is no speed: what looks best here is confirmed on the engine before it is used",
      "the text decides: use traces of given and of generated text",
      "uniformly random routing hits slots / experts with any policy and says nothing"};
  const auto any = [&](const auto& what) {
    return std::any_of(report.results.begin(), report.results.end(), what);
  };
  if (any([](const SimResult& r) { return r.setting.moce.on(); })) {
    out.emplace_back(
        "cache-aware routing is replayed open loop: other experts would have made other hidden "
        "states and tokens; logits are rounded to 16 bits; quality: unmeasured");
  }
  if (any([](const SimResult& r) { return r.setting.ahead.on; })) {
    out.emplace_back(report.cost ? "read-ahead runs on an estimated clock: one read after the other"
                                 : "read-ahead without a cost model: every guess arrives in time");
  }
  if (any([](const SimResult& r) { return is_clairvoyant(r.setting.policy); })) {
    out.emplace_back(
        "the clairvoyant bound holds for policies that neither reroute nor read ahead");
  }
  if (report.profile == "self" && any([](const SimResult& r) {
        return r.setting.warm || r.setting.policy == SimPolicy::Profile;
      })) {
    out.emplace_back("the profile is the trace's own: in-sample");
  }
  if (!report.warning.empty()) out.push_back(report.warning);
  return out;
}

std::string sim_table(const SimReport& report) {
  const bool bytes = !report.traces.front().read_bytes.empty();
  size_t width = 8;
  for (const SimResult& r : report.results) width = std::max(width, setting_text(r.setting).size());
  std::string out =
      fmt::format("  {:<{}}{:>8}{:>9}{:>9}{:>9}{:>13}{:>11}{:>12}{:>10}", "policy", width, "slots",
                  "arena", "ahead", "misses", "misses/token", "MB/token", "turn start", "to bound");
  if (report.cost) out += fmt::format("{:>12}{:>11}", "stall ms", "tokens/s");
  out += '\n';
  for (const SimResult& r : report.results) {
    const SimCounts& c = r.counts;
    out += fmt::format("  {:<{}}{:>8}{:>7.2f} %{:>7.2f} %{:>7.2f} %{:>13.2f}{:>11}{:>12.2f}{:>10}",
                       setting_text(r.setting), width, r.slots, 100 * c.arena_rate(),
                       100 * c.ahead_rate(), 100 * c.miss_rate(), c.misses_per_token(),
                       bytes ? fmt::format("{:.2f}", c.bytes_per_token() * 1e-6) : "-",
                       c.turn_start_misses_per_token(), gap_text(r));
    if (report.cost && c.tokens != 0) {
      out += fmt::format("{:>12.2f}{:>11.2f}", 1e3 * c.stall_s / static_cast<double>(c.tokens),
                         r.tokens_per_s());
    }
    out += '\n';
  }
  if (!report.results.empty()) {
    const SimCounts& c = report.results.front().counts;
    out += fmt::format(
        "  of {} uses of {} tokens in {} turns; turn start: misses per token in the first {} of a "
        "turn\n",
        c.uses().total(), c.tokens, c.turns, kTurnStart);
  }
  if (report.cost) out += fmt::format("  estimated from {}\n", report.cost->source);
  for (const std::string& caveat : sim_caveats(report)) out += fmt::format("  note: {}\n", caveat);
  return out;
}

Json sim_json(const SimReport& report) {
  Json out = {{"format", "penstock-simulation"}, {"version", 1}};
  for (const TraceModel& model : report.traces) {
    out["traces"].push_back({{"path", model.path},
                             {"logits", model.logits},
                             {"layers", model.geometry.layers.size()},
                             {"settings", Json::parse(model.settings)}});
  }
  out["profile"] = report.profile.empty() ? Json() : Json(report.profile);
  out["cost"] = nullptr;
  if (report.cost) {
    out["cost"] = {{"source", report.cost->source},
                   {"token_s", report.cost->compute.token_s},
                   {"experts_s", report.cost->compute.experts_s},
                   {"shared_s", report.cost->compute.shared_s},
                   {"disk_bytes_per_s", report.cost->disk.bytes_per_s},
                   {"disk_latency_s", report.cost->disk.latency_s}};
  }
  out["caveats"] = sim_caveats(report);
  out["results"] = results_json(report, report.results);
  for (const auto& results : report.by_trace) {
    out["by_trace"].push_back(results_json(report, results));
  }
  return out;
}

}  // namespace penstock::measure
