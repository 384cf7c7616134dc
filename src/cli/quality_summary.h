// What is known about the quality of a run's configuration, beside its speed.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "engine/runtime.h"

namespace penstock::cli {

// A row of the summary: what was measured for this configuration, "quality: unmeasured" where
// something lossy is in force and nothing was; else nothing.
std::string quality_row(const engine::Runtime& runtime);
nlohmann::ordered_json quality_json(const engine::Runtime& runtime);

}  // namespace penstock::cli
