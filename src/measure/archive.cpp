#include "measure/archive.h"

#include <algorithm>
#include <filesystem>
#include <tuple>

#include "base/digest.h"
#include "base/error.h"
#include "base/file.h"
#include "measure/json_schema.h"
#include "measure/record.h"
#include "measure/record_verify.h"

namespace penstock::measure {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

constexpr const char* kTrimmed = "trimmed";

std::string member_hash(const Json& member) {
  return hex(sha256(canonical_text(member)));
}

}  // namespace

std::string record_id(const Json& record) {
  if (!record.is_object()) fail(ErrorKind::Format, "a record is a JSON object");
  std::map<std::string, std::string> hashes;
  if (const auto cut = record.find(kTrimmed); cut != record.end()) {
    if (!cut->is_object()) fail(ErrorKind::Format, "'trimmed' is no object");
    for (const auto& [name, hash] : cut->items()) {
      Sha256 parsed;
      if (!hash.is_string() || !parse_sha256(hash.get<std::string>(), &parsed)) {
        fail(ErrorKind::Format, "'trimmed' has no SHA-256 for '{}'", name);
      }
      if (record.contains(name)) {
        fail(ErrorKind::Format, "'{}' is said to be trimmed and is there", name);
      }
      hashes[name] = hash.get<std::string>();
    }
  }
  for (const auto& [name, member] : record.items()) {
    if (name != kTrimmed) hashes[name] = member_hash(member);
  }
  std::string lines;
  for (const auto& [name, hash] : hashes) lines += name + " " + hash + "\n";
  return hex(sha256(lines));
}

Json trim_record(const Json& record, const std::vector<std::string>& members) {
  record_id(record);  // throws for what is no record
  static const std::vector<std::string> kept = {"schema",   "version", "run_id",  "argv",
                                                "producer", "inputs",  "outcome", kTrimmed};
  Json out = record;
  for (const std::string& name : members) {
    if (std::find(kept.begin(), kept.end(), name) != kept.end()) {
      fail(ErrorKind::Usage, "a record without '{}' is none", name);
    }
    if (!out.contains(name)) {
      const bool cut = out.contains(kTrimmed) && out[kTrimmed].contains(name);
      if (cut) continue;
      fail(ErrorKind::Usage, "the record has no '{}'", name);
    }
    out[kTrimmed][name] = member_hash(out[name]);
    out.erase(name);
  }
  return out;
}

std::string write_record(const std::string& folder, const Json& record) {
  // Parsed once more, so that what is written is what any reader writes again.
  const Json parsed = Json::parse(canonical_text(record));
  const std::string path = (fs::path(folder) / (record_id(parsed) + ".json")).string();
  AtomicFile file(path);
  const std::string text = canonical_text(parsed);
  file.write(text.data(), text.size());
  file.commit();
  return path;
}

std::string archive_bytes(const std::string& folder, std::string_view bytes) {
  const std::string hash = hex(sha256(bytes));
  const fs::path path = fs::path(folder) / "files" / hash;
  if (!fs::exists(path)) {
    AtomicFile file(path.string());
    file.write(bytes.data(), bytes.size());
    file.commit();
  }
  return hash;
}

std::string read_archived(const std::string& folder, const std::string& digits) {
  Sha256 parsed;
  if (!parse_sha256(digits, &parsed)) {
    fail(ErrorKind::Format, "{}: what belongs to a record is named by its SHA-256, not '{}'",
         folder, digits.substr(0, 80));
  }
  const fs::path path = fs::path(folder) / "files" / digits;
  std::error_code error;
  if (fs::exists(path, error) && !fs::is_regular_file(path, error)) {
    fail(ErrorKind::Format, "{} is no plain file", path.string());
  }
  return read_text_file(path.string());
}

bool Archived::is_record() const noexcept {
  return schema == kRecordSchema || schema == kPeerSchema;
}

std::vector<std::string> record_files(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return {path};
  std::vector<std::string> found;
  for (const auto& entry : fs::directory_iterator(path)) {
    const std::string name = entry.path().filename().string();
    if (entry.is_regular_file() && name.ends_with(".json") && !name.ends_with(".unfinished.json")) {
      found.push_back(entry.path().string());
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

void Archive::add(const std::string& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) {
    for (const std::string& file : record_files(path)) add(file);
    return;
  }
  if (!fs::exists(path, error)) fail(ErrorKind::Io, "{}: no such file or folder", path);
  Archived entry;
  entry.path = path;
  try {
    const std::string text = read_text_file(path);
    entry.id = hex(sha256(text));
    entry.value = parse_json(text, path);
    if (entry.value.is_object() && entry.value.contains("schema") &&
        entry.value["schema"].is_string()) {
      entry.schema = entry.value["schema"].get<std::string>();
    }
    if (entry.is_record() || entry.schema == kCampaignSchema) {
      RecordCheck check = verify_record(path);
      if (!check.id.empty()) entry.id = check.id;
      entry.problems = std::move(check.problems);
    }
  } catch (const Error& problem) {
    entry.problems.emplace_back(problem.what());
  }
  // The same record in two folders is one: the copy with the fewest problems, then the one whose
  // name comes first, so that the order in which they are added decides nothing.
  const auto same = std::find_if(entries_.begin(), entries_.end(), [&](const Archived& other) {
    return other.id == entry.id && !entry.id.empty() && other.value == entry.value;
  });
  if (same == entries_.end()) {
    entries_.push_back(std::move(entry));
    return;
  }
  const auto rank = [](const Archived& copy) {
    return std::tuple(copy.problems.size(), fs::path(copy.path).filename().string(), copy.path);
  };
  if (rank(entry) < rank(*same)) *same = std::move(entry);
}

const Archived* Archive::find(const std::string& name) const {
  const Archived* found = nullptr;
  if (name.empty()) return nullptr;
  for (const Archived& entry : entries_) {
    const bool by_id = name.size() >= 8 && entry.id.starts_with(name);
    const auto run = entry.value.is_object() ? entry.value.find("run_id") : entry.value.end();
    const bool by_run = entry.value.is_object() && run != entry.value.end() && *run == name;
    const bool by_path = entry.path == name || fs::path(entry.path).filename().string() == name;
    if (!by_id && !by_run && !by_path) continue;
    if (found != nullptr) return nullptr;
    found = &entry;
  }
  return found;
}

}  // namespace penstock::measure
