#include "experts/plan_advice.h"

#include <fmt/format.h>

#include <cmath>
#include <optional>

namespace penstock::experts {
namespace {

// "14.3G": a size that --memory takes, not below `bytes`.
std::string size_flag(uint64_t bytes) {
  constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
  constexpr double kMiB = 1024.0 * 1024.0;
  const auto value = static_cast<double>(bytes);
  if (value >= kGiB) return fmt::format("--memory {:.1f}G", std::ceil(value / kGiB * 10) / 10);
  return fmt::format("--memory {:.0f}M", std::ceil(value / kMiB));
}

// With the chunk spelled out where more memory alone would be spent on a larger one.
std::string memory_flag(const PlanRequest& request, uint64_t bytes) {
  std::string flag = size_flag(bytes);
  if (request.chunk_shrunk) flag += fmt::format(" --prompt-chunk {}", request.prompt_chunk);
  return flag;
}

// "240 slots instead of 200 (62 % of the experts)" for a request, if that is a gain worth a word.
std::optional<std::string> gain(const PlanRequest& request, const Plan& now) {
  const PlanOutcome other = try_plan(request);
  const uint64_t slots = other.plan.slots();
  if (!other.fits() || slots * 50 < now.slots() * 51) return std::nullopt;
  return fmt::format(
      "{} slots instead of {} ({:.0f} % of the experts)", slots, now.slots(),
      100.0 * static_cast<double>(slots) / static_cast<double>(now.shape.n_experts()));
}

void advise_memory(const PlanRequest& request, const Plan& plan, std::vector<std::string>* out) {
  const uint64_t kept = plan.fuse + plan.margin;
  const uint64_t free = plan.available > kept ? plan.available - kept : 0;
  const uint64_t all = memory_for_slots(request, plan.shape.n_experts());
  const auto here = [&](uint64_t bytes) {
    return bytes <= free
               ? std::string()
               : fmt::format("; {:.1f} GiB are free here", static_cast<double>(free) / (1 << 30));
  };
  if (plan.slots() < plan.cycle) {
    const uint64_t cycle = memory_for_slots(request, plan.cycle);
    out->push_back(fmt::format("{} would hold the {} experts of one token{}",
                               memory_flag(request, cycle), plan.cycle, here(cycle)));
  }
  out->push_back(fmt::format("{} would hold all {} experts{}", memory_flag(request, all),
                             plan.shape.n_experts(), here(all)));
  if (!request.memory && !request.arena_slots) return;
  PlanRequest automatic = request;
  automatic.memory.reset();
  automatic.arena_slots.reset();
  if (const auto better = gain(automatic, plan)) {
    out->push_back(fmt::format("--memory auto, what is free here: {}", *better));
  }
}

}  // namespace

std::vector<std::string> plan_advice(const PlanRequest& request, const Plan& plan) {
  std::vector<std::string> out;
  if (plan.shape.holds_all()) return out;
  advise_memory(request, plan, &out);
  if (request.arena_slots) return out;  // less of anything else gives no slot more

  constexpr int kLeastCtx = 512;
  constexpr int kLeastChunk = 64;
  if (request.ctx >= 2 * kLeastCtx) {
    PlanRequest half = request;
    half.ctx /= 2;
    half.terms.kv -= request.kv_per_position * static_cast<uint64_t>(request.ctx - half.ctx);
    if (const auto better = gain(half, plan)) {
      out.push_back(fmt::format("--ctx {}: {}", half.ctx, *better));
    }
  }
  if (request.prompt_chunk >= 2 * kLeastChunk) {
    PlanRequest half = request;
    half.prompt_chunk /= 2;
    half.terms.scratch_prompt -=
        request.scratch_per_token * static_cast<uint64_t>(request.prompt_chunk - half.prompt_chunk);
    if (const auto better = gain(half, plan)) {
      out.push_back(fmt::format("--prompt-chunk {}: {}, but more reading per prompt token",
                                half.prompt_chunk, *better));
    }
  }
  return out;
}

}  // namespace penstock::experts
