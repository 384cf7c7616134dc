// Whether a record can be believed: its schema, its hash, the files beside it, and for run records
// the identities that hold in every run (spec/streaming.md §A, §J). Peer records and campaigns are
// checked by the same function.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

namespace penstock::measure {

struct RecordCheck {
  std::string path;
  std::string id;  // record_id(); empty if it is no record
  std::vector<std::string> problems;
  bool sound() const noexcept { return problems.empty(); }
};

// The published schema of run records, peer records or campaigns (docs/schema/), by the name in
// the record's "schema"; null for any other.
const nlohmann::json* published_schema(const std::string& name);

// Hashes of the files in files/ that belong to a record, each with what it is.
std::vector<std::pair<std::string, std::string>> files_of(const nlohmann::json& record);

// Never throws for what the file holds; one that cannot be read is a problem too.
RecordCheck verify_record(const std::string& path);
// Identities within a run record of the schema; of what was cut out, none are looked at.
std::vector<std::string> identity_problems(const nlohmann::json& record);

}  // namespace penstock::measure
