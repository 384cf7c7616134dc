// Measures what the prediction of speed needs: expert reads, kernels, and computing with this model
// (docs/plan.md, "What is measured"). Takes about half a minute.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/machine_file.h"
#include "engine/opened_model.h"
#include "engine/watched_stream.h"

namespace penstock::engine {

// `unit`: "B" for bytes, else what is counted.
using CalibrationProgress =
    std::function<void(std::string_view phase, uint64_t done, uint64_t total, const char* unit)>;

// Puts the figures into `file`, which is not written. Computing is measured where the plan fits,
// with a few experts in memory that stand for all (StreamOptions::alias), so that no disk is waited
// for. Returns what could not be measured or is doubtful, for people. Throws Error(Io) when an
// expert cannot be read, Error(Cancelled) when `keep_going` says so.
std::vector<std::string> calibrate_machine(const OpenedModel& opened, const MemoryPlan& plan,
                                           MachineFile* file, const CalibrationProgress& progress,
                                           const KeepGoing& keep_going);

}  // namespace penstock::engine
