// Whether what was measured lets a speed be quoted (spec/streaming.md §F.8, docs/quality.md).
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace penstock::measure {

// What cache-aware routing may cost against the same file routed exactly.
struct QualityLimits {
  double mean_kld = 0.02;        // nats more
  double top_loss = 0.01;        // share of positions with another most likely token, more
  double ln_ppl_ratio = 0.02;    // upper end of its 95 % interval
  double replaced_share = 0.02;  // between the timed run and the measured one, either way
};

nlohmann::ordered_json limits_json(const QualityLimits& limits);  // by the members' names

enum class QualityVerdict {
  Unmeasured,  // nothing has the key
  Incomplete,  // not both KL divergence and tasks, or nothing says what routing alone costs
  Failed,      // beyond a limit
  Passed,
};
const char* quality_verdict_name(QualityVerdict verdict) noexcept;  // in lower case

struct QualityJudgement {
  QualityVerdict verdict = QualityVerdict::Unmeasured;
  std::string reason;  // what is missing or which limit is passed; "" for Passed
  bool publishable() const noexcept { return verdict == QualityVerdict::Passed; }
  std::string text() const;  // "failed: mean KLD 0.0264, at most 0.02"
};

// `measurements`: those under the key of what was timed (JSON of `penstock eval`). A headline needs
// tier 1, a KL divergence with the same-top share, and tier 2, tasks. With cache-aware routing
// every divergence must also keep within the limits: as it is where its base is the same model
// routed exactly; else against that of the same model, base and text with routing off, looked for
// in `others`. Members that are no numbers count as missing.
QualityJudgement judge_quality(const nlohmann::json& measurements, bool cache_aware,
                               const nlohmann::json& others = nlohmann::json::array(),
                               const QualityLimits& limits = {});

// The share of slots that a run record's cache-aware routing replaced; nothing where it has none.
std::optional<double> replaced_share(const nlohmann::json& record);

// With cache-aware routing a measurement speaks for a run only if both replaced about as much
// (§I.4): the sentence that says why it does not, or nothing. `share`: of the run's slots,
// replaced.
std::optional<std::string> other_routing(double share, const nlohmann::json& measurements,
                                         const QualityLimits& limits = {});

}  // namespace penstock::measure
