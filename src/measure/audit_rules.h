// The parts of an audited claim: where its numbers come from (audit_sources.cpp) and what its words
// say (audit_words.cpp, audit_arms.cpp). For audit_claim.cpp alone.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "measure/audit.h"
#include "measure/formula.h"
#include "measure/quality_verdict.h"

namespace penstock::measure {

// One of the two arms of a claim, or its only one.
struct ClaimArm {
  bool against = false;
  std::vector<const Archived*> entries;  // of the records that were found, each once
  std::vector<double> values;            // in the claim's unit
  std::vector<std::string> pointers;     // of all formulas
  std::set<std::string> phases;
  bool alike = false;       // lines of a log: each of them is to give the value
  bool needs_runs = false;  // it varies from run to run, so that one of them is not enough
};

class ClaimWork {
 public:
  ClaimWork(const Claim& claim, const Claims& claims, const Archive& archive);
  ClaimResult take();  // everything

 private:
  // audit_claim.cpp
  void value();
  void single_value();
  void compared_value();
  void mismatch(const std::string& rule, const std::string& computed);
  void accept();

  // audit_sources.cpp
  ClaimArm arm(const ClaimSource& source, bool against);
  std::vector<const Archived*> entries_of(const std::string& name, bool against);
  void archived_without_schema(const Archived& entry, const std::string& name);
  void sample(const Archived& entry, const ClaimSource& source, ClaimArm* arm);
  bool measured(const Archived& entry, const Formula& formula, const nlohmann::json& at);
  std::string nearest() const;  // which records of the archive give what is claimed

  // audit_words.cpp
  void phase();
  void prompt_size();
  void in_sample();
  bool compares() const;  // its words say more, less, or how many times
  void names_both_arms();

  // audit_arms.cpp
  void enough_runs(const ClaimArm& arm);
  void campaign(const ClaimArm& arm);
  void same_inputs();
  void footprint(const ClaimArm& arm);
  void coverage();

  // audit_quality.cpp
  void quality(const ClaimArm& arm);
  void quality_of(const Archived& entry, bool cache_aware);

  void add(Verdict verdict, const std::string& rule, const std::string& reason, bool final = false);

  const Claim& claim_;
  const Claims& claims_;
  const Archive& archive_;
  ClaimResult result_;
  ClaimArm arm_, other_;
  bool lacks_arm_ = false;  // it compares with what it does not name
  std::set<Verdict> accepted_by_file_;
};

struct Selected {
  std::string pointer;
  const nlohmann::json* value;
};
// What a claim's `each` means in a record; the whole record for "", nothing for what is not there.
std::vector<Selected> select_elements(const nlohmann::json& record, const std::string& each);

// "cold start" where loading or filling is part of it, "run" where the whole run is.
std::string phase_together(const std::set<std::string>& phases);
// The phases that a text speaks of.
std::set<std::string> phases_in(const std::string& text);
// A pattern of ClaimLog on a line: whether it is there; `numbers` gets what stood for '#'.
bool matches_pattern(std::string_view line, std::string_view pattern, std::vector<double>* numbers);
// What the archive's measurements under the key say (quality_verdict.h), those of quality stores,
// results and records of `eval`, and recipes. `measured`, if any, gets them.
QualityJudgement judged_quality(const Archive& archive, const std::string& key, bool cache_aware,
                                const QualityLimits& limits = {},
                                nlohmann::json* measured = nullptr);
std::string short_name(const Archived& entry);  // for sentences

}  // namespace penstock::measure
