// What a run did, as a table for people and as JSON: tokens per second by phase, hit classes, bytes
// read, memory planned and measured. Every number comes from a counter, a clock or the kernel.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "engine/generate.h"
#include "engine/sampler.h"
#include "engine/session.h"

namespace penstock::cli {

std::string summary_table(engine::Session& session, const std::string& end);

nlohmann::ordered_json timings_json(const engine::Session& session, const engine::Runtime& runtime);
nlohmann::ordered_json counters_json(const engine::Session& session);
// The policy in force, what was seen and what was done; null when it was switched off.
nlohmann::ordered_json watchdog_json(const engine::Runtime& runtime);
// Where the experts come from and how they are read.
nlohmann::ordered_json source_json(const engine::Runtime& runtime);
nlohmann::ordered_json sampling_json(const engine::SamplerOptions& sampling);
nlohmann::ordered_json plan_json(engine::Session& session);

}  // namespace penstock::cli
