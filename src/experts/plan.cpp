#include "experts/plan.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace penstock::experts {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kGiB = uint64_t{1} << 30;
constexpr uint64_t kLeastSlack = 64 * kMiB;       // automatic memory
constexpr uint64_t kLeastChosenSlack = 4 * kMiB;  // a size or slot count was given

std::vector<std::pair<const char*, uint64_t>> term_rows(const PlanTerms& t) {
  return {{"dense", t.dense},
          {"kv", t.kv},
          {"state", t.state},
          {"scratch_decode", t.scratch_decode},
          {"scratch_prompt", t.scratch_prompt},
          {"logits", t.logits},
          {"io", t.io},
          {"tables", t.tables},
          {"threads", t.threads},
          {"ple", t.ple}};
}

uint64_t sum_of(const PlanTerms& terms) {
  uint64_t sum = 0;
  for (const auto& [name, bytes] : term_rows(terms)) sum += bytes;
  return sum;
}

double mib(uint64_t bytes) {
  return static_cast<double>(bytes) / static_cast<double>(kMiB);
}

std::string bytes_and_mib(uint64_t bytes) {
  return fmt::format("{} B ({:.1f} MiB)", bytes, mib(bytes));
}

// 2 % of everything else, with a floor that is lower when the user has chosen a size.
uint64_t slack_for(uint64_t sum, uint64_t least) {
  return std::max(least, sum / 50);
}

// The most arena bytes that leave their slack: others + arena + slack(others + arena) <= budget.
uint64_t arena_room(uint64_t budget, uint64_t others, uint64_t least_slack) {
  const uint64_t by_share = budget / 51 * 50;
  const uint64_t by_floor = budget > least_slack ? budget - least_slack : 0;
  const uint64_t most = std::min(by_share, by_floor);
  return most > others ? most - others : 0;
}

void set_budget(const PlanRequest& request, Plan& plan) {
  const MemoryFacts& machine = request.machine;
  plan.available = machine.headroom() + request.taken;
  plan.available_source = machine.source();
  if (machine.cgroup_binds()) {
    plan.fuse = std::max(128 * kMiB, machine.cgroup_limit / 20);
    plan.margin = machine.cgroup_limit / 50;
  } else {
    plan.fuse = std::max(kGiB, machine.total / 10);
    plan.margin = 256 * kMiB;
  }
  const uint64_t kept = plan.fuse + plan.margin;
  plan.memory_chosen = request.memory.has_value();
  plan.budget = request.memory.value_or(plan.available > kept ? plan.available - kept : 0);
}

// What a smaller setting of `flag` saves: `unit` bytes per step from `now` down to `least`.
std::string smaller(const char* flag, int now, uint64_t unit, int least, uint64_t shortfall) {
  if (unit == 0 || now <= least) {
    return fmt::format("{} is already as small as it gets ({})", flag, now);
  }
  const uint64_t units = (shortfall + unit - 1) / unit;
  const auto most = static_cast<uint64_t>(now - least);
  if (units <= most) {
    return fmt::format("{} {} instead of {} (saves {})", flag, now - static_cast<int>(units), now,
                       bytes_and_mib(units * unit));
  }
  return fmt::format("{} {} instead of {} saves {}, not enough alone", flag, least, now,
                     bytes_and_mib(most * unit));
}

// Fewer than one token touches, where nearly every use may miss, must be asked for by number
// (spec/streaming.md §C.2 would refuse --evict lru alone and warn otherwise).
uint64_t least_slots(const PlanRequest& request, const Plan& plan) {
  if (request.arena_slots) return plan.hard_floor;
  return std::min(std::max(plan.hard_floor, plan.cycle), plan.shape.n_experts());
}

// Fewer slots, another --memory, or a smaller model, whichever the request leaves room for.
std::string other_remedy(const PlanRequest& request, const Plan& plan, uint64_t shortfall) {
  const uint64_t floor = least_slots(request, plan);
  const uint64_t kept = plan.fuse + plan.margin;
  const uint64_t free = plan.available > kept ? plan.available - kept : 0;
  ArenaShape smallest = plan.shape;
  share_slots(smallest, floor, request.depth, request.transit);
  const uint64_t others = plan.peak_prefill - plan.slack - plan.arena;
  const uint64_t least = others + smallest.arena_bytes() +
                         slack_for(others + smallest.arena_bytes(), kLeastChosenSlack);
  if (request.arena_slots && *request.arena_slots > floor) {
    const uint64_t slot = plan.shape.largest_slot();
    const uint64_t fewer = slot == 0 ? 0 : (shortfall + slot - 1) / slot;
    const uint64_t most = *request.arena_slots - floor;
    return fmt::format("--arena-slots {} instead of {} (saves {}{})",
                       *request.arena_slots - std::min(fewer, most), *request.arena_slots,
                       bytes_and_mib(std::min(fewer, most) * slot),
                       fewer > most ? ", not enough alone" : "");
  }
  if (request.memory && free >= least) {
    return *request.memory > free
               ? fmt::format("--memory {}M, the most that is free here", free / kMiB)
               : fmt::format("--memory {}M or more", (least + kMiB - 1) / kMiB);
  }
  return fmt::format(
      "a model pruned to smaller or fewer experts, or free {} on this machine: "
      "with the smallest arena, {} slots, {} are needed",
      bytes_and_mib(least > free ? least - free : shortfall), floor, bytes_and_mib(least));
}

PlanRefusal too_large(const PlanRequest& request, const Plan& plan, std::string why,
                      uint64_t shortfall) {
  constexpr int kLeastCtx = 256;
  constexpr int kLeastChunk = 16;
  PlanRefusal refusal{std::move(why),
                      shortfall,
                      {smaller("--ctx", request.ctx, request.kv_per_position, kLeastCtx, shortfall),
                       smaller("--prompt-chunk", request.prompt_chunk, request.scratch_per_token,
                               kLeastChunk, shortfall),
                       other_remedy(request, plan, shortfall)}};
  if (plan.fewer_slots != 0) {
    refusal.remedies.push_back(
        fmt::format("--arena-slots {}: they fit, but one token touches {} experts: expect few hits",
                    plan.fewer_slots, plan.cycle));
  }
  return refusal;
}

PlanRefusal too_few_slots(const PlanRequest& request, const Plan& plan) {
  return {fmt::format("--arena-slots {}: one layer of a token and the reads of a prompt need at "
                      "least {}",
                      *request.arena_slots, plan.hard_floor),
          0,
          {fmt::format("--arena-slots {}", plan.hard_floor),
           fmt::format("a smaller read depth: --io-depth less than {}", request.depth)}};
}

// Arena, slack and peaks for the slots that the shape has been given.
void add_up(Plan& plan, uint64_t least_slack) {
  const uint64_t others = sum_of(plan.terms);
  plan.arena = plan.shape.arena_bytes();
  plan.slack = slack_for(others + plan.arena, least_slack);
  plan.peak_prefill = others + plan.arena + plan.slack;
  plan.peak_decode = plan.peak_prefill - plan.terms.scratch_prompt;
}

// Slots below one token cycle, asked for by number.
void warn_below_cycle(const PlanRequest& request, Plan& plan) {
  if (plan.slots() >= plan.cycle || plan.shape.holds_all()) return;
  plan.warnings.push_back(fmt::format(
      "{} slots are fewer than the {} experts one token touches: {}", plan.slots(), plan.cycle,
      request.evict == Evict::Lru ? "with --evict lru every use will miss; --evict lfu"
                                  : "expect few hits"));
}

std::string row(const char* name, uint64_t bytes) {
  return fmt::format("  {:<16}{:>16} B {:>12.1f} MiB", name, bytes, mib(bytes));
}

}  // namespace

std::vector<std::pair<const char*, uint64_t>> Plan::rows() const {
  auto rows = term_rows(terms);
  rows.emplace_back("slack", slack);
  rows.emplace_back("arena", arena);
  return rows;
}

PlanOutcome try_plan(const PlanRequest& request) {
  PlanOutcome outcome;
  Plan& plan = outcome.plan;
  plan.terms = request.terms;
  plan.shape = request.shape;
  plan.hard_floor = hard_floor(plan.shape, request.depth);
  plan.cycle = plan.shape.cycle();
  set_budget(request, plan);

  const bool chosen = request.memory.has_value() || request.arena_slots.has_value();
  const uint64_t least_slack = chosen ? kLeastChosenSlack : kLeastSlack;
  const bool too_few =
      !request.mapped && request.arena_slots && *request.arena_slots < plan.hard_floor;
  if (request.mapped) {
    plan.hard_floor = 0;
  } else if (request.arena_slots) {
    share_slots(plan.shape, too_few ? plan.hard_floor : *request.arena_slots, request.depth,
                request.transit);
  } else {
    share_bytes(plan.shape, arena_room(plan.budget, sum_of(plan.terms), least_slack), request.depth,
                request.transit);
  }
  add_up(plan, least_slack);
  const uint64_t kept = plan.fuse + plan.margin;
  if (const uint64_t least = least_slots(request, plan); !request.mapped && plan.slots() < least) {
    const bool fits =
        plan.peak_prefill <= plan.budget && plan.peak_prefill + kept <= plan.available;
    plan.fewer_slots = fits ? plan.slots() : 0;
    share_slots(plan.shape, least, request.depth, request.transit);
    add_up(plan, least_slack);
  }

  if (too_few) {
    outcome.refusal = too_few_slots(request, plan);
  } else if (plan.peak_prefill > plan.budget) {
    outcome.refusal =
        too_large(request, plan,
                  request.arena_slots
                      ? fmt::format("{} slots and the rest exceed the budget", plan.slots())
                      : fmt::format("the smallest arena, {} slots, and the rest exceed the budget",
                                    plan.slots()),
                  plan.peak_prefill - plan.budget);
  } else if (plan.peak_prefill + kept > plan.available) {
    outcome.refusal =
        too_large(request, plan, "too little memory would be left to the rest of the machine",
                  plan.peak_prefill + kept - plan.available);
  } else if (!request.mapped) {
    warn_below_cycle(request, plan);
  }
  return outcome;
}

Plan make_plan(const PlanRequest& request) {
  PlanOutcome outcome = try_plan(request);
  if (!outcome.fits()) refuse(outcome);
  return std::move(outcome.plan);
}

void refuse(const PlanOutcome& outcome) {
  const Plan& plan = outcome.plan;
  fail(ErrorKind::Plan, "the model does not fit: {}\n{}{}", outcome.refusal->why, format_plan(plan),
       format_refusal(*outcome.refusal));
}

uint64_t memory_for_slots(const PlanRequest& request, uint64_t slots) {
  ArenaShape shape = request.shape;
  share_slots(shape, std::max(slots, hard_floor(shape, request.depth)), request.depth,
              request.transit);
  const uint64_t sum = sum_of(request.terms) + shape.arena_bytes();
  // The inverse of arena_room(), whose share is rounded down.
  return std::max(sum + kLeastChosenSlack, (sum + 49) / 50 * 51);
}

std::string format_plan(const Plan& plan) {
  std::string text;
  for (const auto& [name, bytes] : plan.rows()) text += row(name, bytes) + '\n';
  text += row("peak, decode", plan.peak_decode) + '\n';
  text += row("peak, prompt", plan.peak_prefill) + '\n';
  text += fmt::format("{} ({})\n", row("budget", plan.budget),
                      plan.memory_chosen ? "--memory" : "available - fuse - margin");
  text += fmt::format("{}, {}\n", row("available", plan.available), plan.available_source);
  text += row("fuse", plan.fuse) + " left to the rest of the machine\n";
  for (const SlotClass& c : plan.shape.classes) {
    text += fmt::format("  slots: {} of {} B for {} experts\n", c.slots, c.slot_bytes, c.n_experts);
  }
  text += fmt::format(
      "  {} slots, {:.2f} token cycles of {}; {} transit slots\n", plan.slots(),
      plan.cycle == 0 ? 0.0 : static_cast<double>(plan.slots()) / static_cast<double>(plan.cycle),
      plan.cycle, plan.shape.transit);
  for (const std::string& warning : plan.warnings) text += fmt::format("  warning: {}\n", warning);
  return text;
}

std::string format_refusal(const PlanRefusal& refusal) {
  std::string text;
  if (refusal.shortfall != 0) text += row("short by", refusal.shortfall) + '\n';
  text += "Any of these helps:";
  for (size_t i = 0; i < refusal.remedies.size(); ++i) {
    text += fmt::format("\n  {}. {}", i + 1, refusal.remedies[i]);
  }
  return text;
}

}  // namespace penstock::experts
