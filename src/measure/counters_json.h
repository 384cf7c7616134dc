// Counters as JSON, the same wherever they are written.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "experts/counters.h"

namespace penstock::measure {

nlohmann::ordered_json uses_json(const experts::UseCounts& uses);
// Reads by duration and reason: element i of a list counts those of 2^i to 2^(i+1) ns.
nlohmann::ordered_json latencies_json(const experts::Counters& counters);

}  // namespace penstock::measure
