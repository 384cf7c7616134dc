#include "measure/quality_verdict.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

namespace penstock::measure {
namespace {

using Json = nlohmann::json;

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

double number(const Json& m, const char* field) {
  const auto found = m.find(field);
  return found != m.end() && found->is_number() ? found->get<double>() : kNone;
}

// End 0 or 1 of an interval.
double bound(const Json& m, const char* field, size_t end) {
  const auto found = m.find(field);
  if (found == m.end() || !found->is_array() || found->size() != 2) return kNone;
  const Json& value = (*found)[end];
  return value.is_number() ? value.get<double>() : kNone;
}

double ln_ratio_bound(const Json& m, size_t end) {
  const double ln = bound(m, "ln_ppl_ratio_interval", end);
  return std::isnan(ln) ? std::log(bound(m, "ppl_ratio_interval", end)) : ln;
}

bool says(const Json& m, const char* field) {
  const auto found = m.find(field);
  return found != m.end() && found->is_string() && !found->get_ref<const std::string&>().empty();
}

bool same(const Json& a, const Json& b, const char* field) {
  return says(a, field) && says(b, field) && a[field] == b[field];
}

bool routed_exactly(const Json& m) {
  const auto settings = m.find("quality_settings");
  return settings != m.end() && settings->is_object() && settings->value("moce", Json()) == "off";
}

bool is_tier_1(const Json& m) {
  return m.is_object() && !std::isnan(number(m, "mean_kld")) && !std::isnan(number(m, "same_top"));
}

// A model that is compared with itself routed exactly.
bool against_itself(const Json& m) {
  const auto same_key = m.find("base_key");
  return says(m, "base_model_id") && says(m, "model_id") && m["base_model_id"] == m["model_id"] &&
         !(same_key != m.end() && m.contains("quality_key") && *same_key == m["quality_key"]);
}

// What routing adds to the three figures.
struct Cost {
  double mean_kld, top_loss, ln_ppl_ratio;
};

std::optional<Cost> cost_of(const Json& m, const Json& others) {
  if (against_itself(m)) {
    return Cost{number(m, "mean_kld"), 1 - number(m, "same_top"), ln_ratio_bound(m, 1)};
  }
  for (const Json& other : others) {
    if (!is_tier_1(other) || !routed_exactly(other) || !same(m, other, "model_id") ||
        !same(m, other, "base_model_id") || !same(m, other, "text_sha256")) {
      continue;
    }
    return Cost{number(m, "mean_kld") - number(other, "mean_kld"),
                number(other, "same_top") - number(m, "same_top"),
                ln_ratio_bound(m, 1) - ln_ratio_bound(other, 0)};
  }
  return std::nullopt;
}

// The first limit that is passed. What is not there is not within a limit.
std::string beyond(const Cost& cost, const QualityLimits& limits) {
  // 1 - 0.99 is a little more than 0.01.
  const auto over = [](double value, double most) { return !(value <= most + 1e-12); };
  if (over(cost.mean_kld, limits.mean_kld)) {
    return fmt::format("mean KLD {:.4g}, at most {:g}", cost.mean_kld, limits.mean_kld);
  }
  if (over(cost.top_loss, limits.top_loss)) {
    return fmt::format("another top token at {:.2f} %, at most {:g} %", 100 * cost.top_loss,
                       100 * limits.top_loss);
  }
  if (over(cost.ln_ppl_ratio, limits.ln_ppl_ratio)) {
    return fmt::format("ln(PPL/PPL base) up to {:.4g}, at most {:g}", cost.ln_ppl_ratio,
                       limits.ln_ppl_ratio);
  }
  return {};
}

}  // namespace

nlohmann::ordered_json limits_json(const QualityLimits& limits) {
  return {{"mean_kld", limits.mean_kld},
          {"top_loss", limits.top_loss},
          {"ln_ppl_ratio", limits.ln_ppl_ratio},
          {"replaced_share", limits.replaced_share}};
}

const char* quality_verdict_name(QualityVerdict verdict) noexcept {
  switch (verdict) {
    case QualityVerdict::Unmeasured:
      return "unmeasured";
    case QualityVerdict::Incomplete:
      return "incomplete";
    case QualityVerdict::Failed:
      return "failed";
    case QualityVerdict::Passed:
      return "passed";
  }
  return "?";
}

std::string QualityJudgement::text() const {
  return quality_verdict_name(verdict) + (reason.empty() ? "" : ": " + reason);
}

QualityJudgement judge_quality(const Json& measurements, bool cache_aware, const Json& others,
                               const QualityLimits& limits) {
  if (measurements.empty()) return {};
  bool tier_1 = false, tier_2 = false, compared = true;
  for (const Json& m : measurements) {
    tier_2 = tier_2 || (m.is_object() && !std::isnan(number(m, "accuracy")));
    if (!is_tier_1(m)) continue;
    tier_1 = true;
    if (!cache_aware) continue;
    const std::optional<Cost> cost = cost_of(m, others);
    compared = compared && cost;
    if (!cost) continue;
    const std::string why = beyond(*cost, limits);
    if (!why.empty()) return {QualityVerdict::Failed, why};
  }
  if (!tier_1) return {QualityVerdict::Incomplete, "no KL divergence with the same-top share"};
  if (!compared) {
    return {QualityVerdict::Incomplete,
            "nothing says what routing alone costs: the same model routed exactly is neither the "
            "base nor measured against it"};
  }
  if (!tier_2) return {QualityVerdict::Incomplete, "no tasks"};
  return {QualityVerdict::Passed, {}};
}

std::optional<double> replaced_share(const Json& record) {
  const auto boundaries = record.find("counters");
  if (boundaries == record.end() || !boundaries->is_array() || boundaries->empty()) return {};
  const nlohmann::json::json_pointer total("/counters/cache_aware_routing/total");
  const Json& last = boundaries->back();
  if (!last.is_object() || !last.contains(total) || !last[total].is_object()) return {};
  const double share = number(last[total], "replaced") / number(last[total], "slots");
  if (!std::isfinite(share)) return {};
  return share;
}

std::optional<std::string> other_routing(double share, const Json& measurements,
                                         const QualityLimits& limits) {
  bool known = false;
  for (const Json& m : measurements) {
    const auto routing = m.find("routing");
    if (routing == m.end() || !routing->is_object()) continue;
    const double measured = number(*routing, "replaced_share");
    if (std::isnan(measured)) continue;
    known = true;
    if (std::abs(measured - share) <= limits.replaced_share) continue;
    return fmt::format("it replaced {:.1f} % of the slots, the measured one {:.1f} %", 100 * share,
                       100 * measured);
  }
  if (known) return std::nullopt;
  return "what was measured does not say how many slots it replaced";
}

}  // namespace penstock::measure
