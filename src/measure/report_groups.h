// How a report's runs become comparisons and groups (report.h).
#pragma once

#include <string>
#include <vector>

#include "measure/report.h"

namespace penstock::measure {

// Runs into comparisons: those of one model, prompt and number of tokens stand together, runs
// without a decode result with the others of their group. In a campaign a group is an arm with a
// prompt, in the order of `arms`; elsewhere it is a configuration, labelled by what tells it from
// the comparison's others.
std::vector<ReportComparison> compare_runs(std::vector<ReportRun> runs,
                                           const std::vector<std::string>& arms, bool campaign);

// Series, marks, lossy options, notes and differences of every group, and whether the comparison is
// one by arena size.
void finish_comparison(ReportComparison* comparison, bool is_void);

// Whether the group's arena is one size of the comparison's: it decodes, and loses what the first
// that decodes loses, or as that nothing. What computes something else (`--alias-experts`) does not
// belong on a curve over sizes.
bool of_an_arena_plot(const ReportComparison& comparison, const ReportGroup& group);

// Where the campaign holds figures that bounds can be computed from.
void add_rooflines(const nlohmann::json& campaign, ReportComparison* comparison);

}  // namespace penstock::measure
