#include "measure/record_verify.h"

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "base/digest.h"
#include "base/error.h"
#include "base/file.h"
#include "measure/archive.h"
#include "measure/formula.h"
#include "measure/json_schema.h"
#include "measure/peer_output.h"
#include "measure/record.h"
#include "record_schemas.h"

namespace penstock::measure {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

class Problems {
 public:
  template <typename... Args>
  void expect(bool holds, fmt::format_string<Args...> text, Args&&... args) {
    if (!holds && list_.size() < 40) {
      list_.push_back(fmt::format(text, std::forward<Args>(args)...));
    }
  }
  std::vector<std::string> take() { return std::move(list_); }

 private:
  std::vector<std::string> list_;
};

uint64_t at(const Json& object, const char* name) {
  return object.at(name).get<uint64_t>();
}

void check_uses(const Json& uses, const std::string& where, Problems& problems) {
  uint64_t sum = 0;
  for (const char* name : {"arena", "ra_timely", "ra_late", "miss_issued", "miss_joined"}) {
    sum += at(uses, name);
  }
  problems.expect(sum == at(uses, "total"), "{}: classes sum to {}, the total is {}", where, sum,
                  at(uses, "total"));
}

void check_counters(const Json& c, const std::string& where, Problems& problems) {
  check_uses(c.at("uses_first"), where + ": first", problems);
  check_uses(c.at("uses_steady"), where + ": steady", problems);
  const uint64_t uses =
      at(c.at("uses_first"), "total") + at(c.at("uses_steady"), "total") + at(c, "uses_mapped");
  problems.expect(uses == at(c, "uses_expected"), "{}: {} uses, {} expected", where, uses,
                  at(c, "uses_expected"));
  problems.expect(at(c, "prompt_arena_used") <= at(c, "prompt_experts_touched"),
                  "{}: a prompt used more experts in memory than it touched", where);
  const Json& ahead = c.at("read_ahead");
  if (ahead.is_null()) return;
  const uint64_t known = at(ahead, "used_same_token") + at(ahead, "used_later") +
                         at(ahead, "wasted") + at(ahead, "pending");
  problems.expect(known == at(ahead, "issued"), "{}: {} experts read ahead, {} accounted for",
                  where, at(ahead, "issued"), known);
}

// The rows of decode steps add up to what the counters say at the end.
void check_tokens(const Json& record, Problems& problems) {
  std::map<std::string, uint64_t> sums;
  const auto& columns = token_columns();
  const auto column = [&](const std::string& name) {
    return static_cast<size_t>(std::find(columns.begin(), columns.end(), name) - columns.begin());
  };
  size_t row = 0;
  uint64_t last_ns = 0;
  for (const Json& token : record.at("tokens")) {
    for (size_t i = 0; i + 1 < columns.size(); ++i) {
      if (columns[i] != "compute_ns") sums[columns[i]] += token[i].get<uint64_t>();
    }
    // Unsigned, so that no record makes the difference overflow.
    const auto wall = token[column("wall_ns")].get<uint64_t>();
    const auto stall = token[column("stall_ns")].get<uint64_t>();
    const auto compute = static_cast<uint64_t>(token[column("compute_ns")].get<int64_t>());
    problems.expect(compute == wall - stall, "token {}: compute is not wall less stall", row);
    const uint64_t ns = token[column("at_ns")].get<uint64_t>();
    problems.expect(ns >= last_ns, "token {}: time runs backwards", row);
    problems.expect(token[column("turn")].get<uint64_t>() < record.at("turns").size(),
                    "token {}: of a turn that is not there", row);
    last_ns = ns;
    ++row;
  }
  const Json& boundaries = record.at("counters");
  if (boundaries.empty() || boundaries.back().at("at") != "end") return;
  const Json& c = boundaries.back().at("counters");
  for (const char* name : {"arena", "ra_timely", "ra_late", "miss_issued", "miss_joined"}) {
    const uint64_t end = at(c.at("uses_first"), name) + at(c.at("uses_steady"), name);
    problems.expect(sums[name] == end, "tokens: {} {}, the counters have {}", sums[name], name,
                    end);
  }
  problems.expect(sums["mapped"] == at(c, "uses_mapped"), "tokens: mapped uses differ");
  problems.expect(sums["rows"] == at(c, "tokens"), "tokens: {} rows, the counters have {}",
                  sums["rows"], at(c, "tokens"));
  problems.expect(sums["bytes_demand"] == at(c.at("reads_demand"), "bytes"),
                  "tokens: {} bytes on demand, the counters have {}", sums["bytes_demand"],
                  at(c.at("reads_demand"), "bytes"));
  problems.expect(sums["bytes_spec"] <= at(c.at("reads_spec"), "bytes"),
                  "tokens: more bytes read ahead than the counters have");
  problems.expect(sums["stall_ns"] == at(c, "stall_ns"), "tokens: {} ns of stall, the counters {}",
                  sums["stall_ns"], at(c, "stall_ns"));
}

void check_boundaries(const Json& record, Problems& problems) {
  uint64_t steps = 0;
  for (const Json& boundary : record.at("counters")) {
    const std::string where = boundary.at("at");
    check_counters(boundary.at("counters"), "counters at " + where, problems);
    const uint64_t now = at(boundary.at("counters"), "steps");
    problems.expect(now >= steps, "counters at {}: steps were undone", where);
    steps = now;
  }
}

void check_file(const fs::path& folder, const std::string& hash, const std::string& what,
                Problems& problems) {
  const fs::path path = folder / "files" / hash;
  if (!fs::exists(path)) {
    problems.expect(false, "{}: files/{} is not there", what, hash);
    return;
  }
  const std::string found = hex(sha256_file(path.string()));
  problems.expect(found == hash, "{}: files/{} was changed, its hash is {}", what, hash, found);
}

// The schema without what was cut out of the record.
Json without_trimmed(const Json& schema, const Json& record) {
  Json out = schema;
  if (!record.contains("trimmed") || !record["trimmed"].is_object()) return out;
  Json required = Json::array();
  for (const Json& name : schema.at("required")) {
    if (!record["trimmed"].contains(name.get<std::string>())) required.push_back(name);
  }
  out["required"] = std::move(required);
  return out;
}

}  // namespace

const Json* published_schema(const std::string& name) {
  static const std::map<std::string, Json> schemas = {
      {kRecordSchema, Json::parse(kRunRecordSchema)},
      {kPeerSchema, Json::parse(kPeerRecordSchema)},
      {kCampaignSchema, Json::parse(kCampaignRecordSchema)},
  };
  const auto found = schemas.find(name);
  return found == schemas.end() ? nullptr : &found->second;
}

std::vector<std::pair<std::string, std::string>> files_of(const Json& record) {
  std::vector<std::pair<std::string, std::string>> out;
  const auto add = [&](const char* pointer, const char* what) {
    const Json* hash = resolve_pointer(record, pointer);
    if (hash != nullptr && hash->is_string()) out.emplace_back(hash->get<std::string>(), what);
  };
  if (const Json* turns = resolve_pointer(record, "/turns"); turns && turns->is_array()) {
    for (const Json& turn : *turns) {
      const Json* hash = resolve_pointer(turn, "/prompt/file");
      if (hash && hash->is_string()) out.emplace_back(hash->get<std::string>(), "prompt");
    }
  }
  if (const Json* prompts = resolve_pointer(record, "/prompts"); prompts && prompts->is_array()) {
    for (const Json& prompt : *prompts) {
      const Json* hash = resolve_pointer(prompt, "/file");
      if (hash && hash->is_string()) out.emplace_back(hash->get<std::string>(), "prompt");
    }
  }
  add("/inputs/prompt/file", "prompt");
  add("/recipe/file", "recipe");
  add("/output/stdout/sha256", "stdout");
  add("/output/stderr/sha256", "stderr");
  const Json* archived = resolve_pointer(record, "/producer/diff_archived");
  if (archived != nullptr && archived->is_boolean() && archived->get<bool>()) {
    add("/producer/diff_sha256", "source difference");
  }
  return out;
}

std::vector<std::string> identity_problems(const Json& record) {
  Problems problems;
  const auto cut = [&](const char* name) {
    return record.contains("trimmed") && record["trimmed"].contains(name);
  };
  if (!cut("counters")) check_boundaries(record, problems);
  if (!cut("counters") && !cut("tokens") && !cut("turns")) check_tokens(record, problems);
  const std::string state = record.at("outcome").at("state");
  problems.expect(state != "running", "the run never finished its record");
  problems.expect(state == "running" || record.at("ended").is_number(),
                  "the record has no end time");
  if (record.at("ended").is_number()) {
    problems.expect(record["ended"].get<double>() >= record["started"].get<double>(),
                    "it ended before it began");
  }
  const Json& modified = record.at("producer").at("executable_modified");
  if (modified.is_number()) {
    problems.expect(modified.get<double>() <= record["started"].get<double>(),
                    "the executable is newer than the run");
  }
  problems.expect(!record.at("producer").at("dirty").get<bool>() ||
                      record.at("producer").at("diff_archived").get<bool>(),
                  "built from changed sources whose difference is not archived");
  if (const Json* programs = resolve_pointer(record, "/recipe/programs")) {
    for (const Json& program : *programs) {
      problems.expect(program.at("executable_sha256") == record["producer"]["executable_sha256"],
                      "a step of the recipe was run by another build: {}",
                      program.at("program").dump());
    }
  }
  return problems.take();
}

RecordCheck verify_record(const std::string& path) {
  RecordCheck check;
  check.path = path;
  try {
    const std::string text = read_text_file(path);
    const Json record = parse_json(text, path);
    check.id = record_id(record);
    const std::string name = fs::path(path).filename().string();
    if (name != check.id + ".json") {
      check.problems.push_back(fmt::format(
          "its name is not its hash, {}: changed after it was written, or renamed", check.id));
    }
    if (canonical_text(record) != text) {
      check.problems.emplace_back("it is not canonical JSON: written by something else");
    }
    const std::string schema = record.value("schema", Json()).is_string()
                                   ? record["schema"].get<std::string>()
                                   : std::string();
    const Json* published = published_schema(schema);
    if (published == nullptr) {
      check.problems.push_back(fmt::format("its schema, '{}', is not known", schema));
      return check;
    }
    const std::vector<std::string> unfit =
        schema_problems(without_trimmed(*published, record), record);
    for (const std::string& problem : unfit) check.problems.push_back("schema: " + problem);
    if (!unfit.empty()) return check;
    if (schema == kRecordSchema) {
      for (std::string& problem : identity_problems(record)) {
        check.problems.push_back(std::move(problem));
      }
    }
    Problems files;
    const fs::path folder = fs::path(path).parent_path();
    for (const auto& [hash, what] : files_of(record)) check_file(folder, hash, what, files);
    for (std::string& problem : files.take()) check.problems.push_back(std::move(problem));
    if (schema == kPeerSchema) {
      for (std::string& problem : reparse_problems(record, folder.string())) {
        check.problems.push_back(std::move(problem));
      }
    }
  } catch (const Json::exception& error) {
    check.problems.push_back(fmt::format("it is no record: {}", error.what()));
  } catch (const Error& error) {
    check.problems.emplace_back(error.what());
  }
  return check;
}

}  // namespace penstock::measure
