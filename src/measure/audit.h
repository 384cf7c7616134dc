// Recomputes every claim from the records that it names and looks for numbers in documents that no
// claim covers (spec/streaming.md §J.4, rules R1 to R17; docs/audit.md).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "measure/archive.h"
#include "measure/claims.h"
#include "measure/markdown_figures.h"

namespace penstock::measure {

struct Finding {
  Verdict verdict;
  std::string rule;  // "R1" to "R17", "J.3" for how a prompt's size is named
  std::string reason;
  bool accepted = false;
  bool final = false;  // no reason makes it acceptable
};

// What one record gave to a claim.
struct Origin {
  std::string record, path;  // identity and file
  std::string formula;
  std::vector<std::string> pointers;
  std::vector<double> values;  // in the claim's unit; none if the record gives none
  bool against = false;        // of the arm that the claim compares with
};

struct ClaimResult {
  Claim claim;
  std::vector<double> recomputed;  // as many as the claim has values; none if nothing gave any
  std::vector<Finding> findings;
  std::vector<Origin> origins;
  bool ok() const noexcept;          // everything that was found is accepted
  Verdict verdict() const noexcept;  // the gravest that is not accepted
};

struct Unclaimed {
  std::string document;
  DocumentFigure figure;
};

// What was found about something else than a claim: a campaign, a document, a quote that is
// nowhere.
struct OtherFinding {
  std::string about;  // "bench/claims.toml:12", "campaign peers"
  Finding finding;
};

struct Audit {
  std::string claims_path;
  std::vector<ClaimResult> claims;
  std::vector<Unclaimed> unclaimed;
  std::vector<OtherFinding> others;
  size_t records = 0, documents = 0, figures = 0, covered_by_settings = 0;
  bool ok() const noexcept;
};

struct AuditRequest {
  std::string claims;                  // the file
  std::vector<std::string> documents;  // instead of those that the claims file names
  std::vector<std::string> records;    // files and folders, in addition to the claims file's
};

// Throws Error(Io) or Error(Format) for what cannot be read at all; whatever a record or a document
// holds becomes a finding.
Audit audit(const AuditRequest& request);

// One claim against an archive that is loaded.
ClaimResult audit_claim(const Claim& claim, const Claims& claims, const Archive& archive);

// What is wrong with a record whoever quotes it: rules R2 to R5 and R15 to R17.
std::vector<Finding> record_findings(const Archived& entry);
// Every run that a campaign lists is there and sound.
std::vector<OtherFinding> campaign_findings(const Archive& archive);

std::string audit_table(const Audit& audit);  // for a terminal
nlohmann::ordered_json audit_json(const Audit& audit);
std::string audit_markdown(const Audit& audit);  // GitHub's flavour

}  // namespace penstock::measure
