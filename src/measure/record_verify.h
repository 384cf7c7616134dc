// Whether a run record can be believed: its schema, its hash, the files beside it, and the
// identities that hold in every run (spec/streaming.md §A, §J).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace penstock::measure {

struct RecordCheck {
  std::string path;
  std::string sha256;  // of the file
  std::vector<std::string> problems;
  bool sound() const noexcept { return problems.empty(); }
};

// The published schema, docs/schema/run-record-1.json.
const nlohmann::json& record_schema();

// Never throws for what the file holds; one that cannot be read is a problem too.
RecordCheck verify_record(const std::string& path);
// Identities within a record of the schema.
std::vector<std::string> identity_problems(const nlohmann::json& record);

}  // namespace penstock::measure
