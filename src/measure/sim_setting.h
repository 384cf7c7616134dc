// What a replay is made with, and what comes out of it (docs/simulator.md).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "experts/counters.h"
#include "experts/moce.h"
#include "experts/options.h"
#include "experts/predict.h"

namespace penstock::measure {

// The engine's own policies, and two that know the future: both evict what is used again last;
// ClairvoyantAdmits has to keep everything it reads for a token, as the engine does, Clairvoyant
// need not and is the bound of all policies that select the same experts and read nothing ahead.
enum class SimPolicy { Lru, Lfu, Profile, Cycle, ClairvoyantAdmits, Clairvoyant };
SimPolicy parse_policy(std::string_view text);  // throws Error(Usage)
const char* policy_name(SimPolicy policy) noexcept;
bool is_clairvoyant(SimPolicy policy) noexcept;
experts::Evict evict_of(SimPolicy policy) noexcept;  // precondition: not clairvoyant

// Reads ahead by the predictions of the trace.
struct SimAhead {
  bool on = false;
  int distance = 1;  // layers, the most
  int width = 0;     // candidates of a layer; 0: what the engine looks at (experts::ahead_width)
  int reads = 0;     // of these, read at most; 0: what the engine reads (experts::ahead_reads)
};

struct SimSetting {
  SimPolicy policy = SimPolicy::Lfu;
  uint64_t slots = 0;    // in all; 0: as the run had them, class by class
  double hot_share = 0;  // of the slots, protected as hot
  bool warm = false;     // the arena starts with what the profile counts most
  SimAhead ahead = {};
  experts::MoceOptions moce = {};
  int half_life = experts::default_half_life(experts::Evict::Lfu);

  // Whether it selects the trace's experts and reads nothing ahead.
  bool bounded() const noexcept { return !ahead.on && !moce.on(); }
};
std::string setting_text(const SimSetting& setting);

// Seconds, measured or given; what `source` says.
struct SimCost {
  experts::DecodeCost compute;
  experts::DiskCost disk;
  std::string source;
};

// The tokens of a turn's beginning that are counted apart.
inline constexpr uint64_t kTurnStart = 64;

struct SimCounts {
  experts::UseCounts first, steady;
  uint64_t uses_expected = 0;
  uint64_t steps = 0, tokens = 0, turns = 0;
  uint64_t turn_start_tokens = 0, turn_start_misses = 0;
  uint64_t demand_reads = 0, spec_reads = 0, prompt_reads = 0, fill_reads = 0;  // experts
  double decode_bytes = 0;  // demand and ahead; 0 where the bytes of a read are not known
  uint64_t prompt_experts_touched = 0, prompt_arena_used = 0;
  uint64_t evict_total = 0, evict_hot = 0, hot = 0;
  experts::SpecCounts ahead;
  experts::MoceMeasures moce;
  double stall_s = 0;  // estimated; 0 without SimCost

  experts::UseCounts uses() const noexcept;
  uint64_t misses() const noexcept;
  // Shares of all uses, 0 to 1; 0 where there are none.
  double arena_rate() const noexcept;
  double ahead_rate() const noexcept;
  double miss_rate() const noexcept;
  double hit_rate() const noexcept { return arena_rate() + ahead_rate(); }
  double misses_per_token() const noexcept;
  double bytes_per_token() const noexcept;
  double turn_start_misses_per_token() const noexcept;
  SimCounts& operator+=(const SimCounts& other) noexcept;
};

}  // namespace penstock::measure
