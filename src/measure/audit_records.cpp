// Rules about records as such: who wrote them, with what, and whether they agree with themselves.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "measure/audit.h"
#include "measure/figures.h"
#include "measure/formula.h"
#include "measure/record.h"

namespace penstock::measure {
namespace {

using Json = nlohmann::json;

const Json* at(const Json& record, const char* pointer) {
  const Json* found = resolve_pointer(record, pointer);
  return found == nullptr || found->is_null() ? nullptr : found;
}

// What verify_record found, by the rule that it breaks.
Finding of_problem(const std::string& problem) {
  const auto says = [&](const char* words) { return problem.find(words) != std::string::npos; };
  if (says("executable is newer")) return {Verdict::UnidentifiedBuild, "R16", problem};
  if (says("difference is not archived") || problem.starts_with("source difference")) {
    return {Verdict::UnidentifiedBuild, "R4", problem};
  }
  if (problem.starts_with("schema: ") || says("not canonical JSON") || says("schema, '")) {
    return {Verdict::NoSource, "R3", "no record as its program writes it: " + problem};
  }
  if (problem.starts_with("values: ")) {
    return {Verdict::NoSource, "R17",
            "its archived output, parsed again, gives other values: " + problem.substr(8)};
  }
  return {Verdict::NoSource, "R2", problem};
}

void peer_build(const Json& record, std::vector<Finding>* out) {
  std::string missing;
  const auto want = [&](const char* pointer, const char* what) {
    if (at(record, pointer) == nullptr)
      missing += (missing.empty() ? "" : ", ") + std::string(what);
  };
  want("/producer/executable_sha256", "the executable's hash");
  if (at(record, "/producer/revision") == nullptr) want("/producer/version", "version or revision");
  if (!missing.empty()) {
    out->push_back({Verdict::UnidentifiedBuild, "R4", "the record does not have " + missing});
  }
  const Json* started = at(record, "/started");
  if (started == nullptr) started = at(record, "/ended");
  if (started == nullptr || !started->is_number()) return;
  const auto newer = [&](const char* pointer, const char* what) {
    const Json* time = at(record, pointer);
    if (time == nullptr || !time->is_number()) return;
    const double later = time->get<double>() - started->get<double>();
    if (later > 0) {
      out->push_back({Verdict::UnidentifiedBuild, "R16",
                      fmt::format("{} is {:.0f} s newer than the run", what, later)});
    }
  };
  newer("/producer/executable_modified", "the executable");
  newer("/producer/sources_modified", "the source");
}

// R15: a summary that is stored beside values says what the values say, in the digits that it has.
void stored_summary(const Archived& entry, std::vector<Finding>* out) {
  const Json* summary = at(entry.value, "/summary");
  if (summary == nullptr || !summary->is_object()) return;
  for (const auto& [name, stored] : summary->items()) {
    if (!stored.is_number()) continue;
    std::optional<double> computed;
    if (const Figure* figure = find_figure(entry.schema, name)) {
      computed = figure_value(*figure, entry.value);
    } else if (const Json* value = resolve_pointer(entry.value, "/values/" + name);
               value != nullptr && value->is_number()) {
      computed = value->get<double>();
    }
    const auto written = parse_written(stored.dump());
    if (!computed) {
      out->push_back({Verdict::NoSource, "R15",
                      fmt::format("its summary has {} = {}, for which it has no values", name,
                                  stored.dump())});
    } else if (written ? !written->matches(*computed) : stored.get<double>() != *computed) {
      out->push_back({Verdict::Mismatch, "R15",
                      fmt::format("its summary has {} = {}, its values give {:.6g}", name,
                                  stored.dump(), *computed)});
    }
  }
}

}  // namespace

std::vector<Finding> record_findings(const Archived& entry) {
  std::vector<Finding> out;
  for (const std::string& problem : entry.problems) out.push_back(of_problem(problem));
  if (!entry.is_record() || !entry.value.is_object()) return out;
  if (entry.schema == kPeerSchema) {
    peer_build(entry.value, &out);
    stored_summary(entry, &out);
  } else if (const Json* revision = at(entry.value, "/producer/revision");
             revision == nullptr || *revision == "" || *revision == "unknown") {
    out.push_back({Verdict::UnidentifiedBuild, "R4",
                   "it was built where no revision could be read: its sources cannot be found"});
  }
  std::string missing;
  for (const char* member : {"argv", "environment"}) {
    if (at(entry.value, fmt::format("/{}", member).c_str()) == nullptr) {
      missing += (missing.empty() ? "" : " and ") + std::string(member);
    }
  }
  if (!missing.empty()) {
    out.push_back(
        {Verdict::UnidentifiedBuild, "R5",
         fmt::format("{} of the run were not recorded: its options are unknown", missing)});
  }
  return out;
}

std::vector<OtherFinding> campaign_findings(const Archive& archive) {
  std::vector<OtherFinding> out;
  for (const Archived& entry : archive.entries()) {
    if (entry.schema != kCampaignSchema) continue;
    const Json* name = at(entry.value, "/name");
    const std::string about =
        "campaign " +
        (name != nullptr && name->is_string() ? name->get<std::string>() : entry.path);
    for (const std::string& problem : entry.problems) {
      out.push_back({about, of_problem(problem)});
    }
    const Json* runs = at(entry.value, "/runs");
    if (runs == nullptr || !runs->is_array()) continue;
    for (const Json& run : *runs) {
      const auto text = [&](const char* member) {
        const Json* found = resolve_pointer(run, std::string("/") + member);
        return found != nullptr && found->is_string() ? found->get<std::string>() : std::string();
      };
      if (text("state") != "finished" && text("record").empty()) continue;
      const Json* order = resolve_pointer(run, "/order");
      const std::string which =
          fmt::format("run {} (arm {}, prompt {})", order != nullptr ? order->dump() : "?",
                      text("arm"), text("prompt"));
      const std::string record = text("record");
      if (record.empty()) {
        out.push_back({about, {Verdict::NoSource, "R2", which + " finished without a record"}});
      } else if (archive.find(record) == nullptr) {
        out.push_back({about,
                       {Verdict::NoSource, "R2",
                        fmt::format("{}: its record {} is not among the records: a run that was "
                                    "made must not be left out",
                                    which, record.substr(0, 12))}});
      }
    }
  }
  return out;
}

}  // namespace penstock::measure
