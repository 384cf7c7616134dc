#pragma once

#include <string>

#include "measure/record_facts.h"

namespace penstock::cli {

// Version, git revision with dirty flag, compiler, and the instruction sets found and in use.
std::string version_text();
std::string tool_name();       // "penstock 0.1.0"
std::string version_number();  // version and revision alone

measure::Producer producer();  // for run records

}  // namespace penstock::cli
