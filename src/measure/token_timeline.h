// One token of a run, layer by layer: what computed, what waited, what was read meanwhile. In run
// records of runs with --timeline, and drawn by reports.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "experts/timeline.h"
#include "measure/report.h"

namespace penstock::measure {

// {"token", "ms", "columns", "spans": [[what, from_us, us, layer, bytes], ...]}; reads are called
// "read demand", "read ahead" and so on.
nlohmann::ordered_json token_timeline_json(const experts::TokenTimeline& token);

// The token of the first group whose typical run has one, in four strips; nothing without, or when
// it is not what token_timeline_json() writes.
ReportPlot token_plot(const ReportSection& section, const ReportComparison& comparison);

}  // namespace penstock::measure
