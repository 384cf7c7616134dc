// Files of figures: run records, records of other programs, campaigns, and whatever JSON was
// archived; how they are named, cut down and found (docs/records.md).
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::measure {

inline constexpr const char* kPeerSchema = "penstock-peer-record";
inline constexpr const char* kCampaignSchema = "penstock-campaign";

// A record's name: SHA-256 over one line "member hash\n" per member in order of their names, where
// hash is the SHA-256 of the member's canonical text; a member that was cut out counts with the
// hash that `trimmed` keeps of it. Throws Error(Format) if the record is no object or says that a
// member was cut out that is there.
std::string record_id(const nlohmann::json& record);

// Without `members`, whose hashes go into `trimmed`: the name stays. Throws Error(Usage) for a
// member that is not there or without which a record is none (schema, version, run_id, argv,
// producer, inputs, outcome).
nlohmann::json trim_record(const nlohmann::json& record, const std::vector<std::string>& members);

// The file itself; of a folder every *.json of what is finished, without its folders, in order of
// their names.
std::vector<std::string> record_files(const std::string& path);

// Writes FOLDER/<id>.json, canonical; returns its path. Throws Error(Io).
std::string write_record(const std::string& folder, const nlohmann::json& record);

// Keeps bytes that belong to records as FOLDER/files/<SHA-256>, which must be there; returns the
// digits. Throws Error(Io).
std::string archive_bytes(const std::string& folder, std::string_view bytes);

// What lies under FOLDER/files/<SHA-256>. A record may name anything there: throws Error(Format)
// for digits that are none and for what is no plain file, so that nothing else is ever opened;
// Error(Io).
std::string read_archived(const std::string& folder, const std::string& digits);

// One file of figures.
struct Archived {
  std::string path;
  std::string id;      // record_id of a record; SHA-256 of the bytes of anything else
  std::string schema;  // its "schema" member, "" if there is none
  nlohmann::json value;
  std::vector<std::string> problems;  // of verify_record where it is one of our records
  bool is_record() const noexcept;    // a run record or a peer record
};

class Archive {
 public:
  // A file, or every *.json of a folder (without its folders), in order of their names. What
  // cannot be read or is no JSON becomes an entry with that problem. Throws Error(Io) if nothing is
  // there.
  void add(const std::string& path);

  const std::vector<Archived>& entries() const noexcept { return entries_; }
  // By identity, by its first 8 or more digits where they are unambiguous, by run_id, by path or
  // by the path's last part; null if none or several.
  const Archived* find(const std::string& name) const;

 private:
  std::vector<Archived> entries_;
};

}  // namespace penstock::measure
