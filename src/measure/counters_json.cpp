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

}  // namespace penstock::measure
