// What the dense weights take and what was done with them, for the summary and for JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "models/dense_report.h"

namespace penstock::cli {

// What --dense-convert does, one row for each that matched; and all of them as an array.
std::string converted_rows(const models::DenseReport& report);
nlohmann::ordered_json converted_json(const models::DenseReport& report);

std::string dense_rows(const models::DenseReport& report);
nlohmann::ordered_json dense_json(const models::DenseReport& report);

}  // namespace penstock::cli
