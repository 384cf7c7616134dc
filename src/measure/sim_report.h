// What a simulation found, as text for people and as JSON (docs/simulator.md).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "measure/sim.h"

namespace penstock::measure {

struct SimReport {
  std::vector<TraceModel> traces;
  std::vector<SimResult> results;                // sums over the traces
  std::vector<std::vector<SimResult>> by_trace;  // empty for a single one
  std::optional<SimCost> cost;
  std::string profile;  // where the shares came from; empty: none
  std::string warning;  // of whatever limits these results beyond the caveats
};

// What has to be kept in mind with every result.
std::vector<std::string> sim_caveats(const SimReport& report);
std::string sim_table(const SimReport& report);
nlohmann::ordered_json sim_json(const SimReport& report);

}  // namespace penstock::measure
