// Measurements of quality among archived files, and beside the runs that have their key (report.h).
#pragma once

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "measure/report.h"

namespace penstock::measure {

// Whether a file holds measurements of quality: of the store, printed by `eval`, or its record.
bool is_quality(const Archived& entry);
// Pointers to where it holds them.
std::vector<std::string> measurement_places(const Archived& file);
// An array of them, as `eval` prints them.
nlohmann::json measurements_in(const Archived& file);
// What it holds, as far as it is finite.
std::vector<ReportQuality> qualities_in(const Archived& file);
// Matches by quality key; groups of lossy runs get a verdict. Files that were used go into `used`.
void add_quality(const std::vector<const Archived*>& files, ReportComparison* comparison,
                 std::set<const Archived*>* used);

}  // namespace penstock::measure
