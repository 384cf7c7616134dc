// What would make a plan that fits serve better: short, with the flag to type.
#pragma once

#include <string>
#include <vector>

#include "experts/plan.h"

namespace penstock::experts {

// Empty when every expert has a slot. Each piece of advice was tried on the request: the slots that
// it names are those of the plan it leads to.
std::vector<std::string> plan_advice(const PlanRequest& request, const Plan& plan);

}  // namespace penstock::experts
