// Hit rate and estimated speed against arena size, as one SVG that needs nothing beside itself,
// follows light and dark, and is readable on a phone.
#pragma once

#include <string>

#include "measure/sim_report.h"

namespace penstock::measure {

// Curves are the settings without their slots. Throws Error(Usage) when no setting was replayed
// with at least two sizes.
std::string sim_plot(const SimReport& report);

}  // namespace penstock::measure
