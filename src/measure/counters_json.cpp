#include "measure/counters_json.h"

#include <nlohmann/json.hpp>

namespace penstock::measure {

nlohmann::ordered_json uses_json(const experts::UseCounts& uses) {
  return {{"arena", uses.arena},
          {"ra_timely", uses.ra_timely},
          {"ra_late", uses.ra_late},
          {"miss_issued", uses.miss_issued},
          {"miss_joined", uses.miss_joined},
          {"total", uses.total()}};
}

nlohmann::ordered_json latencies_json(const experts::Counters& counters) {
  const auto list = [](const experts::LatencyCounts& counts) {
    auto end = counts.bucket.size();
    while (end > 0 && counts.bucket[end - 1] == 0) --end;
    nlohmann::ordered_json out = nlohmann::ordered_json::array();
    for (size_t i = 0; i < end; ++i) out.push_back(counts.bucket[i]);
    return out;
  };
  return {{"demand", list(counters.demand_latency)},
          {"prompt", list(counters.prompt_latency)},
          {"fill", list(counters.fill_latency)},
          {"spec", list(counters.spec_latency)}};
}

}  // namespace penstock::measure
