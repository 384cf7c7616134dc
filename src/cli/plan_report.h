// A memory plan and the speed it promises, as text for people and as JSON (docs/plan.md).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "engine/machine_file.h"
#include "engine/opened_model.h"
#include "engine/speed.h"

namespace penstock::cli {

struct PlanReport {
  const engine::OpenedModel* opened = nullptr;
  engine::MemoryPlan plan;
  std::string reader;        // how experts would be read, in words
  std::string machine_file;  // its path; empty: there is no place for one
  std::string machine_problem;
  engine::SpeedFigures figures;
  engine::SpeedPrediction speed;
  std::vector<std::string> advice;
  std::vector<std::string> notes;  // of a calibration
};

std::string plan_text(const PlanReport& report);
nlohmann::ordered_json plan_report_json(const PlanReport& report);

}  // namespace penstock::cli
