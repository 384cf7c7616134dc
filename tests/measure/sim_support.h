// For tests that compare a replay with the run it was recorded from.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "experts/counters.h"
#include "experts/shape.h"
#include "measure/sim_setting.h"

namespace penstock::measure {

// What `run` writes into a trace's header, as far as a replay needs it.
inline std::string trace_header(const experts::ArenaShape& shape, size_t n_layers, int depth) {
  nlohmann::ordered_json out;
  out["slots"] = shape.slots();
  out["transit"] = shape.transit;
  for (const experts::SlotClass& c : shape.classes) {
    out["classes"].push_back({{"slot_bytes", c.slot_bytes}, {"slots", c.slots}});
  }
  out["class_of_layer"] = shape.class_of;
  for (size_t l = 0; l < n_layers; ++l) {
    out["read_bytes"].push_back(1000.0 * static_cast<double>(l + 1));
  }
  out["depth"] = depth;
  return out.dump();
}

inline void expect_same(const experts::Counters& engine, const SimCounts& sim,
                        const std::string& what) {
  SCOPED_TRACE(what);
  const auto same = [](const experts::UseCounts& a, const experts::UseCounts& b) {
    EXPECT_EQ(a.arena, b.arena);
    EXPECT_EQ(a.ra_timely, b.ra_timely);
    EXPECT_EQ(a.ra_late, b.ra_late);
    EXPECT_EQ(a.miss_issued, b.miss_issued);
    EXPECT_EQ(a.miss_joined, b.miss_joined);
  };
  same(engine.first, sim.first);
  same(engine.steady, sim.steady);
  EXPECT_EQ(engine.uses_expected, sim.uses_expected);
  EXPECT_EQ(engine.steps, sim.steps);
  EXPECT_EQ(engine.tokens, sim.tokens);
  EXPECT_EQ(engine.prompt_experts_touched, sim.prompt_experts_touched);
  EXPECT_EQ(engine.prompt_arena_used, sim.prompt_arena_used);
  EXPECT_EQ(engine.evict_total, sim.evict_total);
  EXPECT_EQ(engine.evict_hot, sim.evict_hot);
  EXPECT_EQ(engine.hot, sim.hot);
  EXPECT_EQ(engine.experts_read, sim.demand_reads + sim.prompt_reads + sim.fill_reads);
}

inline SimPolicy policy_of(experts::Evict evict) {
  switch (evict) {
    case experts::Evict::Lru:
      return SimPolicy::Lru;
    case experts::Evict::Profile:
      return SimPolicy::Profile;
    case experts::Evict::Cycle:
      return SimPolicy::Cycle;
    case experts::Evict::Lfu:
      return SimPolicy::Lfu;
  }
  return SimPolicy::Lfu;
}

}  // namespace penstock::measure
