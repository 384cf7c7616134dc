#include "measure/sim_setting.h"

#include <fmt/format.h>

#include "base/error.h"

namespace penstock::measure {
namespace {

double ratio(uint64_t part, uint64_t whole) noexcept {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace

const char* policy_name(SimPolicy policy) noexcept {
  switch (policy) {
    case SimPolicy::Lru:
      return "lru";
    case SimPolicy::Lfu:
      return "lfu";
    case SimPolicy::Profile:
      return "profile";
    case SimPolicy::Cycle:
      return "cycle";
    case SimPolicy::ClairvoyantAdmits:
      return "clairvoyant-admits";
    case SimPolicy::Clairvoyant:
      return "clairvoyant";
  }
  return "unknown";
}

SimPolicy parse_policy(std::string_view text) {
  for (const SimPolicy p : {SimPolicy::Lru, SimPolicy::Lfu, SimPolicy::Profile, SimPolicy::Cycle,
                            SimPolicy::ClairvoyantAdmits, SimPolicy::Clairvoyant}) {
    if (text == policy_name(p)) return p;
  }
  fail(ErrorKind::Usage,
       "unknown policy '{}': use lru, lfu, profile, cycle, clairvoyant or clairvoyant-admits",
       text);
}

bool is_clairvoyant(SimPolicy policy) noexcept {
  return policy == SimPolicy::Clairvoyant || policy == SimPolicy::ClairvoyantAdmits;
}

experts::Evict evict_of(SimPolicy policy) noexcept {
  switch (policy) {
    case SimPolicy::Lru:
      return experts::Evict::Lru;
    case SimPolicy::Profile:
      return experts::Evict::Profile;
    case SimPolicy::Cycle:
      return experts::Evict::Cycle;
    default:
      return experts::Evict::Lfu;
  }
}

std::string setting_text(const SimSetting& s) {
  std::string out = policy_name(s.policy);
  if (!is_clairvoyant(s.policy) && s.half_life != experts::default_half_life(evict_of(s.policy)))
    out += fmt::format(" half-life {}", s.half_life);
  if (s.hot_share > 0) out += fmt::format(" hot {:g} %", 100 * s.hot_share);
  if (s.warm) out += " warm";
  if (s.ahead.on) {
    out += fmt::format(" ahead {}", s.ahead.distance);
    if (s.ahead.width != 0) out += fmt::format(" width {}", s.ahead.width);
    if (s.ahead.reads != 0) out += fmt::format(" reads {}", s.ahead.reads);
  }
  const experts::MoceOptions& m = s.moce;
  if (m.on()) out += fmt::format(" moce {}", experts::moce_name(m.mode));
  switch (m.mode) {
    case experts::Moce::Off:
      return out;
    case experts::Moce::Bonus:
      out += fmt::format(" {:g}", m.bonus);
      break;
    case experts::Moce::Prior:
      out += fmt::format(" {:g}", m.lambda);
      break;
    case experts::Moce::MaxRank:
      out += fmt::format(" {}", m.window);
      break;
    case experts::Moce::CumProb:
      out += fmt::format(" {:g}", m.mass);
      break;
  }
  return out;
}

experts::UseCounts SimCounts::uses() const noexcept {
  experts::UseCounts sum = first;
  sum += steady;
  return sum;
}

uint64_t SimCounts::misses() const noexcept {
  return uses().miss_issued + uses().miss_joined;
}

double SimCounts::arena_rate() const noexcept {
  return ratio(uses().arena, uses().total());
}

double SimCounts::ahead_rate() const noexcept {
  return ratio(uses().ra_timely + uses().ra_late, uses().total());
}

double SimCounts::miss_rate() const noexcept {
  return ratio(misses(), uses().total());
}

double SimCounts::misses_per_token() const noexcept {
  return ratio(misses(), tokens);
}

double SimCounts::bytes_per_token() const noexcept {
  return tokens == 0 ? 0 : decode_bytes / static_cast<double>(tokens);
}

double SimCounts::turn_start_misses_per_token() const noexcept {
  return ratio(turn_start_misses, turn_start_tokens);
}

SimCounts& SimCounts::operator+=(const SimCounts& o) noexcept {
  first += o.first;
  steady += o.steady;
  uses_expected += o.uses_expected;
  steps += o.steps;
  tokens += o.tokens;
  turns += o.turns;
  turn_start_tokens += o.turn_start_tokens;
  turn_start_misses += o.turn_start_misses;
  demand_reads += o.demand_reads;
  spec_reads += o.spec_reads;
  prompt_reads += o.prompt_reads;
  fill_reads += o.fill_reads;
  decode_bytes += o.decode_bytes;
  prompt_experts_touched += o.prompt_experts_touched;
  prompt_arena_used += o.prompt_arena_used;
  evict_total += o.evict_total;
  evict_hot += o.evict_hot;
  hot += o.hot;
  ahead.issued += o.ahead.issued;
  ahead.used_same_token += o.ahead.used_same_token;
  ahead.used_later += o.ahead.used_later;
  ahead.wasted += o.ahead.wasted;
  ahead.pending += o.ahead.pending;
  ahead.cancelled += o.ahead.cancelled;
  moce += o.moce;
  stall_s += o.stall_s;
  return *this;
}

}  // namespace penstock::measure
