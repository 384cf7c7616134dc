// Counters as JSON, the same wherever they are written.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "experts/counters.h"

namespace penstock::measure {

nlohmann::ordered_json uses_json(const experts::UseCounts& uses);

}  // namespace penstock::measure
