// Where a claim's numbers come from: its records, the formula, and whether that is a measurement.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "measure/audit_rules.h"
#include "measure/figures.h"
#include "measure/peer_output.h"
#include "measure/record.h"

namespace penstock::measure {
namespace {

using Json = nlohmann::json;

// What was asked for or expected is no measurement, wherever it stands in a record.
bool is_planned(const std::string& schema, const std::string& pointer) {
  const auto under = [&](const char* prefix) { return pointer.starts_with(prefix); };
  if (schema == kRecordSchema || schema == kPeerSchema) {
    return under("/settings") || under("/limit") || under("/argv") || under("/environment") ||
           under("/summary") || (under("/plan") && !under("/plan/measured"));
  }
  return pointer.find("planned") != std::string::npos ||
         pointer.find("predicted") != std::string::npos;
}

bool has_planning_word(std::string_view text, bool at_start) {
  for (const std::string_view word : {"plan", "Plan", "budget", "Budget", "limit", "Limit",
                                      "predict", "Predict", "setting", "Setting"}) {
    if (at_start ? text.starts_with(word) : text.find(word) != std::string_view::npos) return true;
  }
  return false;
}

// Whether the words call the claim's own number planned or asked for: what stands between the
// number before and it, or the very next word ("4 GB planned"). That another number of the sentence
// is a limit says nothing about this one.
bool says_planned(const Claim& claim) {
  if (claim.phase == "plan" || claim.phase == "setting") return true;
  const std::string_view text = claim.text;
  size_t last = 0;
  bool found = false;
  for (const NumberInText& number : numbers_in(text)) {
    const bool own = std::any_of(claim.value.begin(), claim.value.end(), [&](const Written& value) {
      return value.text == number.number.text;
    });
    if (own) {
      std::string_view after = text.substr(number.unit_end);
      after.remove_prefix(std::min(after.find_first_not_of(' '), after.size()));
      if (has_planning_word(text.substr(last, number.begin - last), false)) return true;
      if (has_planning_word(after, true)) return true;
    }
    found = found || own;
    last = number.unit_end;
  }
  return !found && has_planning_word(text, false);
}

// Of these a run has one value however often it is repeated.
bool is_fixed(const std::string& pointer) {
  const auto under = [&](const char* prefix) { return pointer.starts_with(prefix); };
  return under("/settings") || under("/inputs") || under("/limit") || under("/watchdog/policy") ||
         (under("/plan") && !under("/plan/measured")) || pointer.ends_with("/tokens") ||
         pointer.ends_with("_tokens") || under("/values/slots");
}

// What is a function of model, text and settings: another evaluation gives the same bits. Its speed
// is none, and neither is what the arena gave it, which may depend on what was read in time.
bool is_evaluated(const std::string& pointer) {
  if (!pointer.starts_with("/evaluation/") && !pointer.starts_with("/recipe/")) return false;
  for (const char* timed : {"/speed", "/seconds", "/streaming"}) {
    if (pointer.find(timed) != std::string::npos) return false;
  }
  return true;
}

// A hit rate means nothing where it is unknown whether routing preferred what was in memory.
bool is_hit_rate(const std::string& pointer) {
  for (const char* part : {"arena_share", "read_ahead_share", "misses_per_token", "hit_rate",
                           "/uses_steady", "/uses_first"}) {
    if (pointer.find(part) != std::string::npos) return true;
  }
  return false;
}

// What the parsers give; other values of a peer record are counted by whoever started the program.
bool is_parsed(const std::string& pointer) {
  for (const char* name : {"prefill_ms", "prefill_tokens", "decode_ms", "decode_tokens"}) {
    if (pointer == std::string("/values/") + name) return true;
  }
  return false;
}

std::string parsed_from_output(const Archived& entry, const std::string& pointer) {
  const Json* parser = resolve_pointer(entry.value, "/parser");
  if (parser == nullptr || !parser->is_string() || !is_parsed(pointer)) return {};
  bool any = false;
  const auto output = [&](const char* where) -> std::string {
    const Json* hash = resolve_pointer(entry.value, where);
    if (hash == nullptr || !hash->is_string()) return {};
    any = true;
    return read_archived(std::filesystem::path(entry.path).parent_path().string(),
                         hash->get<std::string>());
  };
  try {
    const std::string out = output("/output/stdout/sha256"), err = output("/output/stderr/sha256");
    if (!any) return {};
    const Json again = parse_peer_output(parser->get<std::string>(), out, err);
    if (again.contains(pointer.substr(8))) return {};
    return fmt::format("{}: its archived output does not give {}", short_name(entry), pointer);
  } catch (const Error& error) {
    return fmt::format("{}: {}", short_name(entry), error.what());
  }
}

const Json* member(const Json& object, const char* name) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(name);
  return found == object.end() ? nullptr : &*found;
}

}  // namespace

std::string short_name(const Archived& entry) {
  const std::string file = std::filesystem::path(entry.path).filename().string();
  if (file == entry.id + ".json") return "record " + entry.id.substr(0, 12);
  return file;
}

ClaimArm ClaimWork::arm(const ClaimSource& source, bool against) {
  ClaimArm out;
  out.against = against;
  if (source.records.empty() && !claim_.log) {
    add(Verdict::NoSource, against ? "R9" : "R2", "it names no record");
  }
  for (const std::string& name : source.records) {
    for (const Archived* entry : entries_of(name, against)) {
      if (std::find(out.entries.begin(), out.entries.end(), entry) != out.entries.end()) continue;
      out.entries.push_back(entry);
      for (const Finding& finding : record_findings(*entry)) {
        add(finding.verdict, finding.rule, short_name(*entry) + ": " + finding.reason);
      }
      sample(*entry, source, &out);
    }
  }
  return out;
}

std::vector<const Archived*> ClaimWork::entries_of(const std::string& name, bool against) {
  const auto missing = [&](const std::string& what) {
    add(Verdict::NoSource, against ? "R9" : "R2", what);
    return std::vector<const Archived*>();
  };
  const size_t hash = name.find('#');
  if (hash == std::string::npos) {
    const auto alias = claims_.archived.find(name);
    const std::string& wanted = alias == claims_.archived.end() ? name : alias->second.sha256;
    const Archived* entry = archive_.find(wanted);
    if (entry == nullptr) {
      return missing(fmt::format("there is no record '{}' (or its name is that of several)", name));
    }
    if (alias != claims_.archived.end()) {
      accepted_by_file_.insert(alias->second.accept.begin(), alias->second.accept.end());
      std::string& reason = result_.claim.reason;
      if (const std::string& more = alias->second.reason; reason.find(more) == std::string::npos) {
        reason += (reason.empty() ? "" : "; ") + more;
      }
    }
    if (!entry->is_record()) archived_without_schema(*entry, wanted);
    return {entry};
  }
  // CAMPAIGN#ARM or CAMPAIGN#ARM/PROMPT: all its finished runs but the repeated control.
  const std::string campaign = name.substr(0, hash);
  const std::string arm = name.substr(hash + 1, name.find('/', hash) - hash - 1);
  const size_t slash = name.find('/', hash);
  const std::string prompt = slash == std::string::npos ? "" : name.substr(slash + 1);
  std::vector<const Archived*> out;
  for (const Archived& entry : archive_.entries()) {
    if (entry.schema != kCampaignSchema) continue;
    const Json* called = member(entry.value, "name");
    const bool named = called != nullptr && *called == campaign;
    if (!named && !(campaign.size() >= 8 && entry.id.starts_with(campaign))) continue;
    const Json* runs = member(entry.value, "runs");
    if (runs == nullptr || !runs->is_array()) continue;
    for (const Json& run : *runs) {
      const Json* record = member(run, "record");
      const Json *of_arm = member(run, "arm"), *of_prompt = member(run, "prompt");
      const Json* control = member(run, "control");
      if (of_arm == nullptr || *of_arm != arm || record == nullptr || !record->is_string())
        continue;
      if (!prompt.empty() && (of_prompt == nullptr || *of_prompt != prompt)) continue;
      if (control != nullptr && *control == true) continue;
      if (const Archived* found = archive_.find(record->get<std::string>())) {
        out.push_back(found);
      } else {
        missing(fmt::format("{}: its record {} is not there", name,
                            record->get<std::string>().substr(0, 12)));
      }
    }
  }
  if (out.empty()) return missing(fmt::format("no campaign has finished runs of '{}'", name));
  return out;
}

// Any other JSON counts only by its bytes, and says nothing that is checked about who made it.
void ClaimWork::archived_without_schema(const Archived& entry, const std::string& name) {
  if (name.size() < 16 || !entry.id.starts_with(name)) {
    add(Verdict::NoSource, "R3",
        fmt::format("{} is no record, so that its name says nothing about its bytes: quote it by "
                    "its SHA-256, {}, in [archived]",
                    short_name(entry), entry.id));
  }
  add(Verdict::UnidentifiedBuild, "R4",
      fmt::format("{} is no record: which program made it, and how it was started, is not archived",
                  short_name(entry)));
}

void ClaimWork::sample(const Archived& entry, const ClaimSource& source, ClaimArm* arm) {
  std::optional<Formula> formula;
  Unit from = claim_.unit;
  if (!source.figure.empty()) {
    const Figure* figure = find_figure(entry.schema, source.figure);
    if (figure == nullptr) {
      add(Verdict::NoSource, "R3",
          fmt::format("{}: {} has no figure '{}'", short_name(entry),
                      entry.schema.empty() ? "what is no record" : entry.schema, source.figure));
      return;
    }
    formula = figure->formula;
    from = parse_unit(figure->unit);
    arm->phases.insert(figure->phase);
  } else {
    try {
      formula.emplace(source.formula.empty() ? std::string("{}") : source.formula);
    } catch (const Error& error) {
      add(Verdict::NoSource, "R2", error.what());
      return;
    }
    for (const std::string& pointer : formula->pointers()) {
      const std::string phase = phase_of(entry.schema, source.each + pointer);
      if (!phase.empty()) arm->phases.insert(phase);
    }
  }
  Origin origin{entry.id, entry.path, formula->text(), {}, {}, arm->against};
  const bool speed = claim_.unit.is_speed();
  const bool plain =
      claim_.unit.dimension == Dimension::Bytes || claim_.unit.dimension == Dimension::Count;
  bool fixed = !formula->pointers().empty();
  for (const std::string& pointer : formula->pointers()) {
    arm->pointers.push_back(source.each + pointer);
    fixed = fixed && (is_fixed(pointer) || is_evaluated(source.each + pointer));
    const Json* argv = entry.is_record() ? resolve_pointer(entry.value, "/argv") : nullptr;
    if (argv != nullptr && argv->is_null() && is_hit_rate(pointer)) {
      add(Verdict::UnidentifiedBuild, "R5",
          fmt::format("{}: hits are claimed of a run of which it is not known whether routing "
                      "preferred experts in memory",
                      short_name(entry)),
          true);
    }
  }
  arm->needs_runs =
      arm->needs_runs || (entry.is_record() ? !fixed : speed || !(claim_.exact || plain));
  if (arm->phases.contains("decode") && entry.is_record()) {
    if (const std::string why = why_no_decode(entry.value); !why.empty()) {
      add(Verdict::Mislabelled, "R12",
          fmt::format("{} is no decode result: {}", short_name(entry), why));
      result_.origins.push_back(std::move(origin));
      return;  // whatever it gives does not count
    }
  }
  const std::vector<Selected> elements = select_elements(entry.value, source.each);
  if (elements.empty()) {
    add(Verdict::NoSource, "R2",
        fmt::format("{}: there is nothing at {}", short_name(entry), source.each));
    return;
  }
  double factor = 1;
  if (claim_.unit.dimension != Dimension::Percent && claim_.unit.dimension != Dimension::Ratio) {
    const bool counts =
        from.dimension == Dimension::Count && claim_.unit.dimension == Dimension::Count;
    const auto converted = conversion(from, claim_.unit);
    if (!converted && !counts) {
      add(Verdict::Mislabelled, "R6",
          fmt::format("{} is in {}, the claim in {}", source.figure, from.name, claim_.unit.name));
      if (from.dimension != claim_.unit.dimension) return;
      factor = from.factor / claim_.unit.factor;
    } else {
      factor = converted.value_or(1);
    }
  } else if (!claim_.against && !compares() && from.dimension != claim_.unit.dimension) {
    add(Verdict::Mislabelled, "R6",
        fmt::format("{} is in {}, the claim in {}", source.figure, from.name, claim_.unit.name));
    return;
  }
  for (const Selected& element : elements) {
    for (const std::string& pointer : formula->pointers()) {
      origin.pointers.push_back(element.pointer + pointer);
    }
    if (!measured(entry, *formula, *element.value)) return;
    try {
      origin.values.push_back(formula->evaluate(*element.value) * factor);
    } catch (const Error& error) {
      add(Verdict::NoSource, "R2", fmt::format("{}: {}", short_name(entry), error.what()));
      return;
    }
  }
  arm->values.insert(arm->values.end(), origin.values.begin(), origin.values.end());
  result_.origins.push_back(std::move(origin));
}

// R13 (and R15, R17): behind every number is a measurement.
bool ClaimWork::measured(const Archived& entry, const Formula& formula, const Json& at) {
  if (formula.pointers().empty()) {
    add(Verdict::NotMeasured, "R13",
        fmt::format("'{}' is a constant: nothing of a record is in it", formula.text()));
    return false;
  }
  bool ok = true;
  for (const std::string& pointer : formula.pointers()) {
    const Json* found = resolve_pointer(at, pointer);
    if (found != nullptr && found->is_string()) {
      add(Verdict::NotMeasured, "R13",
          fmt::format("{}: {} is a text that was printed, {}, and no count", short_name(entry),
                      pointer, canonical_text(*found).substr(0, 80)));
      ok = false;
    } else if ((found == nullptr || found->is_null()) &&
               phase_of(entry.schema, pointer) == "memory") {
      add(Verdict::NotMeasured, "R13",
          fmt::format("{}: there is no measurement at {}", short_name(entry), pointer));
      ok = false;
    }
    if (pointer.starts_with("/summary")) {
      add(Verdict::NoSource, "R15",
          fmt::format("{}: {} is a stored summary: take what it summarises", short_name(entry),
                      pointer));
      ok = false;
    } else if (claim_.unit.dimension == Dimension::Bytes && is_planned(entry.schema, pointer) &&
               !says_planned(claim_)) {
      add(Verdict::NotMeasured, "R13",
          fmt::format("{}: {} was planned or asked for; take what was measured or in force",
                      short_name(entry), pointer));
    }
    if (entry.schema == kPeerSchema) {
      if (const std::string why = parsed_from_output(entry, pointer); !why.empty()) {
        add(Verdict::NoSource, "R17", why);
      }
    }
  }
  return ok;
}

std::string ClaimWork::nearest() const {
  if (claim_.source.figure.empty() || claim_.against) return {};
  std::vector<std::string> found;
  size_t looked_at = 0;
  for (const Archived& entry : archive_.entries()) {
    const Figure* figure = find_figure(entry.schema, claim_.source.figure);
    if (figure == nullptr || !entry.value.is_object()) continue;
    const auto value = figure_value(*figure, entry.value);
    if (!value) continue;
    ++looked_at;
    const double factor = conversion(parse_unit(figure->unit), claim_.unit).value_or(1);
    for (const Written& claimed : claim_.value) {
      if (claimed.matches(*value * factor)) found.push_back(short_name(entry));
    }
  }
  if (looked_at == 0) return {};
  if (found.empty())
    return fmt::format("; none of the {} records that have it gives that", looked_at);
  return fmt::format("; {} gives that", found.front());
}

}  // namespace penstock::measure
