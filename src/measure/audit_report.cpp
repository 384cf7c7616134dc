// An audit as text for a terminal, as JSON with everything, and as a summary in Markdown.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "measure/audit.h"

namespace penstock::measure {
namespace {

using Json = nlohmann::ordered_json;

// For one line: control characters and line ends of hostile texts are spaces.
std::string one_line(const std::string& text, size_t most = 160) {
  std::string out;
  for (const char c : text) {
    const bool control = static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
    if (control && (out.empty() || out.back() == ' ')) continue;
    out += control ? ' ' : c;
  }
  if (out.size() <= most) return out;
  size_t end = most;
  while (end > 0 && (static_cast<unsigned char>(out[end]) & 0xc0) == 0x80) --end;
  return out.substr(0, end) + "...";
}

// What a table's cell or a paragraph of Markdown shows as it is.
std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : one_line(text, 400)) {
    if (c == '<') {
      out += "&lt;";
      continue;
    }
    if (std::string_view("|\\`*_[]#~").find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

std::string number(double value, int digits) {
  return fmt::format("{:.{}f}", value, std::clamp(digits, 0, 12));
}

std::string claimed_text(const Claim& claim) {
  std::string out = claim.value[0].text;
  if (claim.value.size() == 2) out += " to " + claim.value[1].text;
  return out + (claim.unit.name.empty() ? "" : " " + claim.unit.name);
}

std::string recomputed_text(const ClaimResult& result) {
  std::string out;
  for (const double value : result.recomputed) {
    out += (out.empty() ? "" : " to ") + number(value, result.claim.value[0].digits + 2);
  }
  return out.empty() ? "-" : out;
}

// All verdicts of a claim, each once: "MISMATCH, NO SOURCE", "OK (UNDER-SAMPLED accepted)".
std::string verdicts_text(const ClaimResult& result) {
  std::vector<std::string> open, accepted;
  for (const Finding& finding : result.findings) {
    std::vector<std::string>& list = finding.accepted ? accepted : open;
    const std::string name = verdict_name(finding.verdict);
    if (std::find(list.begin(), list.end(), name) == list.end()) list.push_back(name);
  }
  const std::string what = open.empty() ? "OK" : fmt::format("{}", fmt::join(open, ", "));
  if (accepted.empty()) return what;
  return fmt::format("{} ({} accepted)", what, fmt::join(accepted, ", "));
}

struct Sums {
  size_t ok = 0, accepted = 0, failed = 0;
};
Sums sums_of(const Audit& audit) {
  Sums out;
  for (const ClaimResult& result : audit.claims) {
    out.failed += !result.ok();
    out.ok += result.findings.empty();
    out.accepted += result.ok() && !result.findings.empty();
  }
  return out;
}

std::string summary_line(const Audit& audit) {
  const Sums sums = sums_of(audit);
  std::string out = fmt::format("{} claims: {} ok, {} accepted with a reason, {} not ok",
                                audit.claims.size(), sums.ok, sums.accepted, sums.failed);
  out += fmt::format("; {} records", audit.records);
  if (audit.documents > 0) {
    out += fmt::format("; {} figures in {} documents: {} claimed, {} settings, {} unclaimed",
                       audit.figures, audit.documents,
                       audit.figures - audit.covered_by_settings - audit.unclaimed.size(),
                       audit.covered_by_settings, audit.unclaimed.size());
  }
  if (!audit.others.empty()) out += fmt::format("; {} other findings", audit.others.size());
  return out;
}

std::string advice(const Audit& audit) {
  if (audit.claims.empty() && audit.figures == 0) {
    return "There is nothing to check: the claims file has no [[claim]], and no document has a "
           "number with a unit.\nName documents in its 'documents', or on the command line.\n";
  }
  if (audit.records == 0 && !audit.claims.empty()) {
    return "There are no records: name their folders in the claims file's 'records', or with "
           "--records.\n";
  }
  return {};
}

Json finding_json(const Finding& finding) {
  return {{"verdict", verdict_name(finding.verdict)},
          {"rule", finding.rule},
          {"reason", finding.reason},
          {"accepted", finding.accepted}};
}

Json claim_json(const ClaimResult& result) {
  const Claim& claim = result.claim;
  Json value = Json::array();
  for (const Written& written : claim.value) value.push_back(written.text);
  Json out = {{"id", claim.id},
              {"line", claim.line},
              {"text", claim.text},
              {"value", value},
              {"unit", claim.unit.name},
              {"digits", claim.value[0].digits},
              {"statistic", statistic_name(claim.statistic)},
              {"ok", result.ok()},
              {"verdict", verdict_name(result.verdict())},
              {"recomputed", result.recomputed}};
  out["findings"] = Json::array();
  for (const Finding& finding : result.findings) out["findings"].push_back(finding_json(finding));
  if (!claim.reason.empty()) out["reason"] = claim.reason;
  out["origins"] = Json::array();
  for (const Origin& origin : result.origins) {
    out["origins"].push_back({{"record", origin.record},
                              {"path", origin.path},
                              {"against", origin.against},
                              {"formula", origin.formula},
                              {"pointers", origin.pointers},
                              {"values", origin.values}});
  }
  return out;
}

}  // namespace

Json audit_json(const Audit& audit) {
  const Sums sums = sums_of(audit);
  Json out = {{"schema", "penstock-audit-1"},
              {"claims_file", audit.claims_path},
              {"ok", audit.ok()},
              {"records", audit.records},
              {"documents", audit.documents},
              {"figures", audit.figures},
              {"counts",
               {{"ok", sums.ok},
                {"accepted", sums.accepted},
                {"not_ok", sums.failed},
                {"unclaimed", audit.unclaimed.size()},
                {"settings", audit.covered_by_settings}}}};
  out["claims"] = Json::array();
  for (const ClaimResult& result : audit.claims) out["claims"].push_back(claim_json(result));
  out["unclaimed"] = Json::array();
  for (const Unclaimed& one : audit.unclaimed) {
    out["unclaimed"].push_back({{"document", one.document},
                                {"line", one.figure.line},
                                {"column", one.figure.column},
                                {"value", one.figure.number.text},
                                {"digits", one.figure.number.digits},
                                {"unit", one.figure.unit.name},
                                {"text", one.figure.text}});
  }
  out["others"] = Json::array();
  for (const OtherFinding& other : audit.others) {
    Json finding = finding_json(other.finding);
    finding["about"] = other.about;
    out["others"].push_back(std::move(finding));
  }
  return out;
}

std::string audit_table(const Audit& audit) {
  std::string out;
  std::map<std::string, std::string> said;
  size_t id = 5, value = 7, computed = 10;
  for (const ClaimResult& result : audit.claims) {
    id = std::max(id, std::min<size_t>(result.claim.id.size(), 32));
    value = std::max(value, std::min<size_t>(claimed_text(result.claim).size(), 28));
    computed = std::max(computed, recomputed_text(result).size());
  }
  if (!audit.claims.empty()) {
    out += fmt::format("{:{}}  {:{}}  {:{}}  verdict\n", "claim", id, "claimed", value,
                       "recomputed", computed);
  }
  for (const ClaimResult& result : audit.claims) {
    out += fmt::format("{:{}}  {:{}}  {:{}}  {}\n", one_line(result.claim.id), id,
                       one_line(claimed_text(result.claim)), value, recomputed_text(result),
                       computed, verdicts_text(result));
    std::set<std::string> lines;
    for (const Finding& finding : result.findings) {
      // What is wrong with a record is said once, not for each of its figures.
      const auto [first, is_new] = said.emplace(finding.rule + finding.reason, result.claim.id);
      const std::string what = is_new ? finding.reason : "as for " + first->second;
      const std::string line =
          fmt::format("    {}{} {}: {}\n", finding.accepted ? "accepted: " : "",
                      verdict_name(finding.verdict), finding.rule, one_line(what, 400));
      if (lines.insert(line).second) out += line;
    }
    if (result.ok()) {
      if (!result.findings.empty())
        out += "    reason: " + one_line(result.claim.reason, 400) + "\n";
      continue;
    }
    for (const Origin& origin : result.origins) {
      out += fmt::format("    from {}{}: {}\n", one_line(origin.record.substr(0, 12)),
                         origin.against ? " (compared with)" : "", one_line(origin.formula, 400));
    }
  }
  if (!audit.others.empty()) out += "\n";
  for (const OtherFinding& other : audit.others) {
    out +=
        fmt::format("{}: {} {}: {}\n", one_line(other.about), verdict_name(other.finding.verdict),
                    other.finding.rule, one_line(other.finding.reason, 400));
  }
  if (!audit.unclaimed.empty()) out += "\nNumbers that no claim and no setting quotes:\n";
  for (const Unclaimed& one : audit.unclaimed) {
    out += fmt::format("{}:{}:{}: {}\n", one.document, one.figure.line, one.figure.column,
                       one_line(one.figure.text));
  }
  if (!out.empty()) out += "\n";
  return out + summary_line(audit) + "\n" + advice(audit);
}

std::string audit_markdown(const Audit& audit) {
  std::string out =
      fmt::format("## Audit: {}\n\n{}\n",
                  audit.ok() ? "every number has its source" : "not every number has its source",
                  summary_line(audit));
  out += advice(audit);
  const bool any_bad = std::any_of(audit.claims.begin(), audit.claims.end(),
                                   [](const auto& claim) { return !claim.ok(); });
  if (any_bad) {
    out += "\n| claim | claimed | recomputed | verdict | why |\n|---|---|---|---|---|\n";
    for (const ClaimResult& result : audit.claims) {
      if (result.ok()) continue;
      std::string why;
      for (const Finding& finding : result.findings) {
        if (finding.accepted) continue;
        why += (why.empty() ? "" : "<br>") + finding.rule + ": " + escaped(finding.reason);
      }
      out += fmt::format("| {} | {} | {} | {} | {} |\n", escaped(result.claim.id),
                         escaped(claimed_text(result.claim)), recomputed_text(result),
                         verdicts_text(result), why);
    }
  }
  if (!audit.others.empty()) out += "\n";
  for (const OtherFinding& other : audit.others) {
    out += fmt::format("- {}: {} ({}): {}\n", escaped(other.about),
                       verdict_name(other.finding.verdict), other.finding.rule,
                       escaped(other.finding.reason));
  }
  if (!audit.unclaimed.empty()) {
    out += "\n| number without a claim | where |\n|---|---|\n";
    for (const Unclaimed& one : audit.unclaimed) {
      out += fmt::format("| {} | {}:{}:{} |\n", escaped(one.figure.text), escaped(one.document),
                         one.figure.line, one.figure.column);
    }
  }
  const size_t accepted = sums_of(audit).accepted;
  if (accepted == 0) return out;
  out += "\n<details><summary>" + fmt::format("{} accepted with a reason", accepted) +
         "</summary>\n\n| claim | claimed | accepted | reason |\n|---|---|---|---|\n";
  for (const ClaimResult& result : audit.claims) {
    if (!result.ok() || result.findings.empty()) continue;
    out += fmt::format("| {} | {} | {} | {} |\n", escaped(result.claim.id),
                       escaped(claimed_text(result.claim)), verdicts_text(result),
                       escaped(result.claim.reason));
  }
  return out + "\n</details>\n";
}

}  // namespace penstock::measure
