// Claims: which number of a document comes from which records, by which arithmetic
// (docs/audit.md has the format; spec/streaming.md §J.4).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "measure/quality_verdict.h"
#include "measure/quantities.h"

namespace penstock::measure {

enum class Verdict {
  Ok,
  Mismatch,           // the records give another value
  NoSource,           // no sound record gives any
  Mislabelled,        // the words say something else than what was measured
  Uncomparable,       // what is compared differs in more than it says
  UnderSampled,       // fewer than three runs
  QualityMissing,     // a speed without the quality of what was timed
  UnidentifiedBuild,  // the program or the way it was started cannot be known
  NotMeasured,        // a constant, a text or a plan stands for a measurement
};
const char* verdict_name(Verdict verdict) noexcept;  // "NO SOURCE"
std::optional<Verdict> parse_verdict(const std::string& name);
// Whether a claim may give a reason to live with it; MISMATCH and NO SOURCE never.
bool can_accept(Verdict verdict) noexcept;

enum class Statistic { Unnamed, Single, Median, Least, Most, Range, All };
const char* statistic_name(Statistic statistic) noexcept;

// Where a number comes from: of each record a figure by its name, or a formula; with `each`, a
// pointer to an array, of each of its elements.
struct ClaimSource {
  std::vector<std::string> records;
  std::string figure, formula, each;
};

struct ClaimAgainst {
  ClaimSource source;                // figure and formula default to the claim's own
  std::string kind;                  // ratio, percent, less, share, difference, after
  std::vector<std::string> differs;  // what is meant to differ between the two
};

// A line of a test's output that must be there.
struct ClaimLog {
  std::string record;             // whose archived output, or a text file beside the claims
  std::string pattern;            // '*' any text, '#' a number
  std::optional<uint64_t> count;  // how many lines; default: at least one
};

struct Claim {
  std::string id, text;
  std::vector<Written> value;  // one, or two: a range
  Unit unit;
  Statistic statistic = Statistic::Unnamed;
  ClaimSource source;
  std::string phase;  // as the words say it; "": what they say themselves
  std::optional<ClaimAgainst> against;
  std::optional<uint64_t> prompt_tokens;
  std::optional<bool> in_sample;
  bool exact = false;  // a count or size that every run gives alike: one archived value will do
  std::vector<std::string> needs;  // quality, coverage, footprint, paired arm
  std::optional<ClaimLog> log;
  std::vector<Verdict> accept;
  std::string reason;
  size_t line = 0;  // of the claims file
};

// Numbers that are no measurements.
struct Setting {
  std::vector<std::string> quotes;
  std::string reason;
  size_t line = 0;
};

// A file of figures that is no record: known by its bytes alone.
struct ArchivedFile {
  std::string sha256;
  std::vector<Verdict> accept;
  std::string reason;
};

struct Claims {
  std::string path, folder;
  std::vector<std::string> records, documents, exclude;  // relative to `folder`
  std::map<std::string, ArchivedFile> archived;          // by the name that claims use
  std::vector<Claim> claims;
  std::vector<Setting> settings;
  QualityLimits limits;  // [quality_limits]; the specification's where they are not given
};

// Throws Error(Io) or Error(Format) with file, line and field.
Claims read_claims(const std::string& path);

}  // namespace penstock::measure
