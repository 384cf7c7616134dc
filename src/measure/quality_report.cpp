#include "measure/quality_report.h"

#include <fmt/format.h>

#include "base/error.h"
#include "measure/quality_stats.h"

namespace penstock::measure {
namespace {

using Json = nlohmann::ordered_json;

void put(Json* out, const std::string& name, const Estimate& e) {
  (*out)[name] = e.value;
  (*out)[name + "_error"] = e.error;
  (*out)[name + "_interval"] = {e.low, e.high};
}

Json quantiles(const Quantiles& q) {
  return {{"max", q.max}, {"99.9", q.q999},     {"99", q.q99}, {"95", q.q95}, {"90", q.q90},
          {"75", q.q75},  {"median", q.median}, {"25", q.q25}, {"10", q.q10}, {"5", q.q05},
          {"1", q.q01},   {"0.1", q.q001},      {"min", q.min}};
}

Json numbers(const Quality& q) {
  Json out = {{"positions", q.positions}, {"windows", q.windows}};
  put(&out, "ppl", q.ppl);
  put(&out, "mean_nll", q.mean_nll);
  if (!q.comparison) return out;
  const Comparison& c = *q.comparison;
  put(&out, "ppl_base", c.ppl_base);
  put(&out, "ln_ppl_ratio", c.ln_ratio);
  put(&out, "ppl_ratio", c.ppl_ratio);
  out["ln_ppl_correlation"] = c.correlation;
  put(&out, "ppl_difference", c.ppl_difference);
  put(&out, "mean_kld", c.mean_kld);
  out["kld_quantiles"] = quantiles(c.kld);
  put(&out, "same_top", c.same_top);
  put(&out, "mean_dp", c.mean_dp);
  put(&out, "rms_dp", c.rms_dp);
  out["dp_quantiles"] = quantiles(c.dp);
  return out;
}

std::string text_names(const ScoreSet& set) {
  std::string names;
  for (const ScoreSet::Part& part : set.parts) names += (names.empty() ? "" : ", ") + part.name;
  return names;
}

Quality whole(const ScoreSet& set) {
  const auto quality = quality_of(set);
  if (!quality) {
    fail(ErrorKind::Usage, "{} positions were scored; a summary needs {}: give more text",
         set.scores.size(), kLeastPositions);
  }
  return *quality;
}

void row(std::string* out, const char* name, const Estimate& e, double scale = 1,
         const char* unit = "") {
  *out += fmt::format("  {:<22} {:>11.6f} +- {:<10.6f} [{:.6f}, {:.6f}]{}\n", name, scale * e.value,
                      scale * e.error, scale * e.low, scale * e.high, unit);
}

}  // namespace

Json quality_json(const ScoreSet& set) {
  Json out = {{"kind", set.has_base ? "kld" : "perplexity"},
              {"model", set.model_name},
              {"model_id", hex(set.model_id)},
              {"quality_key", set.quality_key},
              {"quality_settings", nlohmann::json::parse(set.quality_settings, nullptr, false)},
              {"mode", set.mode},
              {"text", text_names(set)},
              {"text_sha256", hex(set.corpus_id)},
              {"window_tokens", set.window_tokens},
              {"windows_in_text", set.n_windows}};
  if (set.has_base) {
    out["base"] = set.base_name;
    out["base_model_id"] = hex(set.base_id);
    out["base_key"] = set.base_key;
  }
  out.update(numbers(whole(set)));
  Json parts = Json::array();
  for (size_t i = 0; i < set.parts.size(); ++i) {
    Json part = {{"name", set.parts[i].name}, {"tokens_sha256", hex(set.parts[i].tokens_id)}};
    const auto quality = quality_of(set, static_cast<int>(i));
    // Too few positions: no figures.
    if (quality) part.update(numbers(*quality));
    parts.push_back(std::move(part));
  }
  out["parts"] = std::move(parts);
  return out;
}

std::string quality_table(const ScoreSet& set) {
  const Quality q = whole(set);
  std::string out =
      fmt::format("{}, {} of {} windows of {} tokens, {} positions, {} mode\n", text_names(set),
                  set.windows.size(), set.n_windows, set.window_tokens, q.positions, set.mode);
  out += fmt::format("  {:<22} {:>11}    {:<10} {}\n", "", "value", "error", "95 % over windows");
  row(&out, "perplexity", q.ppl);
  if (q.comparison) {
    const Comparison& c = *q.comparison;
    out += fmt::format("against {}\n", set.base_name.empty() ? "the base" : set.base_name);
    row(&out, "perplexity, base", c.ppl_base);
    row(&out, "ln(PPL/PPL base)", c.ln_ratio);
    row(&out, "PPL/PPL base", c.ppl_ratio);
    row(&out, "mean KLD", c.mean_kld);
    out += fmt::format(
        "  KLD quantiles          max {:.4f}, 99.9 % {:.4f}, 99 % {:.4f}, 90 % {:.4f}, median "
        "{:.5f}, 0.1 % {:.2g}, min {:.2g}\n",
        c.kld.max, c.kld.q999, c.kld.q99, c.kld.q90, c.kld.median, c.kld.q001, c.kld.min);
    row(&out, "same top token", c.same_top, 100, " %");
    row(&out, "mean dp", c.mean_dp, 100, " %");
    row(&out, "RMS dp", c.rms_dp, 100, " %");
    out += fmt::format(
        "  dp quantiles, %        max {:.3f}, 99.9 % {:.3f}, 75 % {:.3f}, median {:.3f}, 25 % "
        "{:.3f}, "
        "0.1 % {:.3f}, min {:.3f}\n",
        100 * c.dp.max, 100 * c.dp.q999, 100 * c.dp.q75, 100 * c.dp.median, 100 * c.dp.q25,
        100 * c.dp.q001, 100 * c.dp.min);
  }
  if (set.parts.size() > 1) {
    for (size_t i = 0; i < set.parts.size(); ++i) {
      const auto part = quality_of(set, static_cast<int>(i));
      if (!part) {
        out += fmt::format("  {:<22} too few positions\n", set.parts[i].name);
        continue;
      }
      out += fmt::format("  {:<22} perplexity {:.4f} [{:.4f}, {:.4f}]", set.parts[i].name,
                         part->ppl.value, part->ppl.low, part->ppl.high);
      if (part->comparison) {
        const Estimate& kld = part->comparison->mean_kld;
        out += fmt::format(", KLD {:.5f} [{:.5f}, {:.5f}], same top {:.2f} %", kld.value, kld.low,
                           kld.high, 100 * part->comparison->same_top.value);
      }
      out += '\n';
    }
  }
  return out;
}

Json tasks_json(const std::vector<TaskResult>& results, bool answers) {
  const TaskSummary s = summarise(results);
  Json out = {{"n", s.n}};
  put(&out, "accuracy", s.accuracy);
  put(&out, "ended_by_model", s.ended);
  out["structured"] = {{"answers", s.n_checked}, {"valid", s.n_valid}};
  for (const auto& [kind, counts] : s.by_kind) {
    out["by_kind"][kind] = {{"solved", counts.first}, {"n", counts.second}};
  }
  if (answers) {
    Json list = Json::array();
    for (const TaskResult& r : results) {
      Json one = {{"index", r.index},        {"id", r.id},
                  {"kind", r.kind},          {"solved", r.solved},
                  {"ended", r.answer.ended}, {"tokens", r.answer.tokens},
                  {"answer", r.answer.text}};
      if (r.valid) one["valid"] = *r.valid;
      list.push_back(std::move(one));
    }
    out["answers"] = std::move(list);
  }
  return out;
}

std::vector<TaskResult> read_answers(const nlohmann::json& tasks, const std::string& path) {
  std::vector<TaskResult> results;
  try {
    for (const nlohmann::json& one : tasks.at("answers")) {
      TaskResult r;
      r.index = one.at("index");
      r.id = one.at("id");
      r.kind = one.at("kind");
      r.solved = one.at("solved");
      r.answer.ended = one.at("ended");
      r.answer.tokens = one.at("tokens");
      r.answer.text = one.at("answer");
      if (one.contains("valid")) r.valid = one["valid"].get<bool>();
      results.push_back(std::move(r));
    }
  } catch (const nlohmann::json::exception& error) {
    fail(ErrorKind::Format, "{}: no answers of `eval tasks --answers --json`: {}", path,
         error.what());
  }
  return results;
}

Json paired_json(const std::vector<TaskResult>& results, const std::vector<TaskResult>& others,
                 const std::string& path) {
  std::map<uint64_t, const TaskResult*> by_index;
  for (const TaskResult& other : others) by_index.emplace(other.index, &other);
  std::vector<bool> first, second;
  for (const TaskResult& result : results) {
    const auto found = by_index.find(result.index);
    if (found == by_index.end() || found->second->id != result.id) {
      fail(ErrorKind::Usage, "{} does not answer task {}: only the same tasks can be compared",
           path, result.id);
    }
    first.push_back(result.solved);
    second.push_back(found->second->solved);
  }
  if (first.size() < 2) fail(ErrorKind::Usage, "{}: one task compares nothing", path);
  const Paired p = paired(first, second);
  Json out = {{"n", p.n}, {"only_this", p.only_first}, {"only_other", p.only_second}};
  put(&out, "difference", p.difference);
  out["p_value"] = p.p_value;
  return out;
}

std::string paired_table(const Json& p) {
  return fmt::format(
      "  {:<22} {:6.2f} points +- {:.2f}  [{:.2f}, {:.2f}]; {} solved here only, {} there only, "
      "p = {:.3g} (McNemar)\n",
      "against the other", 100 * p["difference"].get<double>(),
      100 * p["difference_error"].get<double>(), 100 * p["difference_interval"][0].get<double>(),
      100 * p["difference_interval"][1].get<double>(), p["only_this"].get<uint64_t>(),
      p["only_other"].get<uint64_t>(), p["p_value"].get<double>());
}

std::string tasks_table(const TaskSummary& s) {
  const auto percent = [](const char* name, const Estimate& e) {
    return fmt::format("  {:<22} {:6.2f} % +- {:.2f}  [{:.2f}, {:.2f}]\n", name, 100 * e.value,
                       100 * e.error, 100 * e.low, 100 * e.high);
  };
  std::string out = fmt::format("{} tasks\n", s.n);
  out += percent("solved", s.accuracy);
  out += percent("ended by the model", s.ended);
  out += fmt::format("  {:<22} {} of {}\n", "valid JSON and calls", s.n_valid, s.n_checked);
  for (const auto& [kind, counts] : s.by_kind) {
    out += fmt::format("    {:<20} {} of {}\n", kind, counts.first, counts.second);
  }
  return out;
}

}  // namespace penstock::measure
