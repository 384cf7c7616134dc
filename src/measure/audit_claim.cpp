// A claim's value against what its records give: rules R1, R8, R10.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "measure/audit_rules.h"
#include "measure/spread.h"

namespace penstock::measure {
namespace {

double pick(Statistic statistic, const std::vector<double>& values) {
  const Spread spread = spread_of(values);
  if (statistic == Statistic::Least) return spread.least;
  return statistic == Statistic::Most ? spread.most : spread.median;
}

std::optional<double> compare(const std::string& kind, double a, double b) {
  if (kind == "difference") return a - b;
  if (b == 0) return std::nullopt;
  if (kind == "ratio") return a / b;
  if (kind == "share") return a / b * 100;
  return kind == "less" ? (1 - a / b) * 100 : (a / b - 1) * 100;
}

}  // namespace

ClaimWork::ClaimWork(const Claim& claim, const Claims& claims, const Archive& archive)
    : claim_(claim), claims_(claims), archive_(archive) {
  result_.claim = claim;
}

void ClaimWork::add(Verdict verdict, const std::string& rule, const std::string& reason,
                    bool final) {
  for (const Finding& known : result_.findings) {
    if (known.verdict == verdict && known.rule == rule && known.reason == reason) return;
  }
  result_.findings.push_back({verdict, rule, reason, false, final || !can_accept(verdict)});
}

ClaimResult ClaimWork::take() {
  arm_ = arm(claim_.source, false);
  if (claim_.against) {
    ClaimSource source = claim_.against->source;
    if (source.figure.empty() && source.formula.empty()) {
      source.figure = claim_.source.figure;
      source.formula = claim_.source.formula;
    }
    if (source.each.empty()) source.each = claim_.source.each;
    other_ = arm(source, true);
  }
  names_both_arms();
  phase();
  prompt_size();
  in_sample();
  for (const ClaimArm* arm : {&arm_, &other_}) {
    enough_runs(*arm);
    campaign(*arm);
    quality(*arm);
    footprint(*arm);
  }
  same_inputs();
  coverage();
  value();
  accept();
  return std::move(result_);
}

void ClaimWork::value() {
  for (const Written& value : claim_.value) {
    bool said = false;
    const std::vector<NumberInText> numbers = numbers_in(claim_.text);
    for (const NumberInText& number : numbers) said = said || number.number.text == value.text;
    if (!said && !numbers.empty() && claim_.text.find(value.text) == std::string::npos) {
      add(Verdict::Mismatch, "R1", fmt::format("its text does not say {}", value.text));
    }
  }
  if (arm_.values.empty() || lacks_arm_ || (claim_.against && other_.values.empty())) return;
  // "1.4 -> 3.8": the value is that of its own arm, and the other is to be there and comparable.
  if (claim_.against && claim_.against->kind != "after") {
    compared_value();
  } else {
    single_value();
  }
}

void ClaimWork::single_value() {
  const std::vector<double>& values = arm_.values;
  const Spread spread = spread_of(values);
  const std::string all = spread_text(spread, std::max(0, claim_.value[0].digits + 2));
  if (claim_.statistic == Statistic::Range) {
    result_.recomputed = {spread.least, spread.most};
    if (!claim_.value[0].matches(spread.least) || !claim_.value[1].matches(spread.most)) {
      mismatch("R10", "from " + all);
    }
    return;
  }
  result_.recomputed = {pick(claim_.statistic, values)};
  const auto fits = [&](double value) { return claim_.value[0].matches(value); };
  const bool every = std::all_of(values.begin(), values.end(), fits);
  if (claim_.statistic == Statistic::Single && values.size() > 1) {
    add(Verdict::Mislabelled, "R8",
        fmt::format("a single value is claimed of {} that there are", values.size()));
  }
  if (claim_.statistic == Statistic::All || arm_.alike) {
    if (!every) mismatch("R1", all);
    return;
  }
  const bool some = fits(spread.least) || fits(spread.most) || fits(spread.median);
  if (claim_.statistic == Statistic::Unnamed && values.size() > 1 && !every && some) {
    add(Verdict::Mislabelled, "R8",
        fmt::format("of {} values it is not said which it is: {}", values.size(), all));
    return;
  }
  if (!fits(result_.recomputed[0])) mismatch("R1", all);
}

void ClaimWork::compared_value() {
  const std::string& kind = claim_.against->kind;
  std::vector<double> pairs;
  const std::vector<double>&a = arm_.values, &b = other_.values;
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t k = 0; k < b.size(); ++k) {
      if (a.size() == b.size() && i != k) continue;  // as many runs: one by one, in their order
      if (const auto value = compare(kind, a[i], b[k])) pairs.push_back(*value);
    }
  }
  const int digits = std::max(0, claim_.value[0].digits + 2);
  if (claim_.statistic == Statistic::Range) {
    if (pairs.empty()) return;
    const Spread spread = spread_of(pairs);
    result_.recomputed = {spread.least, spread.most};
    if (!claim_.value[0].matches(spread.least) || !claim_.value[1].matches(spread.most)) {
      mismatch("R10", "pairs from " + spread_text(spread, digits));
    }
    return;
  }
  const auto value = compare(kind, pick(claim_.statistic, a), pick(claim_.statistic, b));
  if (!value) {
    add(Verdict::Uncomparable, "R9", "what it is compared with is zero");
    return;
  }
  result_.recomputed = {*value};
  if (claim_.statistic == Statistic::Unnamed && (a.size() > 1 || b.size() > 1)) {
    add(Verdict::Mislabelled, "R8",
        "of which statistic of the runs it is a comparison is not said");
  }
  if (!claim_.value[0].matches(*value)) {
    mismatch("R1",
             fmt::format("{:.{}f} of {} and {}", *value, digits, spread_text(spread_of(a), digits),
                         spread_text(spread_of(b), digits)));
  }
}

void ClaimWork::mismatch(const std::string& rule, const std::string& computed) {
  std::string claimed = claim_.value[0].text;
  if (claim_.value.size() == 2) claimed += " to " + claim_.value[1].text;
  add(Verdict::Mismatch, rule,
      fmt::format("claimed {} {}, the records give {}{}", claimed, claim_.unit.name, computed,
                  nearest()));
}

void ClaimWork::accept() {
  for (Finding& finding : result_.findings) {
    if (finding.final) continue;
    const bool by_claim = std::find(claim_.accept.begin(), claim_.accept.end(), finding.verdict) !=
                          claim_.accept.end();
    finding.accepted = by_claim || accepted_by_file_.contains(finding.verdict);
  }
  std::stable_sort(result_.findings.begin(), result_.findings.end(),
                   [](const Finding& a, const Finding& b) { return a.verdict < b.verdict; });
}

bool ClaimResult::ok() const noexcept {
  return std::all_of(findings.begin(), findings.end(),
                     [](const Finding& finding) { return finding.accepted; });
}

Verdict ClaimResult::verdict() const noexcept {
  Verdict gravest = Verdict::Ok;
  // In the order of their names in the specification, the value before everything else.
  for (const Finding& finding : findings) {
    if (finding.accepted) continue;
    if (gravest == Verdict::Ok || finding.verdict < gravest) gravest = finding.verdict;
  }
  return gravest;
}

ClaimResult audit_claim(const Claim& claim, const Claims& claims, const Archive& archive) {
  return ClaimWork(claim, claims, archive).take();
}

}  // namespace penstock::measure
