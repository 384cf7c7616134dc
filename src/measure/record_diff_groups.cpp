// Two groups of records against each other, and how that is said.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "measure/formula.h"
#include "measure/record.h"
#include "measure/record_diff.h"
#include "measure/report_text.h"

namespace penstock::measure {
namespace {

using Json = nlohmann::json;

constexpr double kSignificant = 0.05;

std::optional<std::vector<int64_t>> output_of(const Json& record) {
  const Json* turns = resolve_pointer(record, "/turns");
  if (turns == nullptr || !turns->is_array()) return std::nullopt;
  std::vector<int64_t> out;
  for (const Json& turn : *turns) {
    const Json* tokens = resolve_pointer(turn, "/tokens");
    if (tokens == nullptr || !tokens->is_array()) return std::nullopt;
    for (const Json& token : *tokens) {
      if (!token.is_number_integer()) return std::nullopt;
      out.push_back(token.get<int64_t>());
    }
  }
  return out;
}

std::string output_sentence(const std::vector<const Archived*>& a,
                            const std::vector<const Archived*>& b) {
  const auto first = output_of(a[0]->value);
  const auto other = output_of(b[0]->value);
  if (!first || !other) return "not both say which tokens they generated";
  for (const auto* group : {&a, &b}) {
    for (const Archived* record : *group) {
      if (output_of(record->value) != output_of((*group)[0]->value)) {
        return fmt::format("runs of group {} did not even agree with each other",
                           group == &a ? "A" : "B");
      }
    }
  }
  const size_t both = std::min(first->size(), other->size());
  for (size_t i = 0; i < both; ++i) {
    if ((*first)[i] != (*other)[i]) {
      return fmt::format("differ from token {} on ({} against {})", i + 1, (*first)[i],
                         (*other)[i]);
    }
  }
  if (first->size() == other->size()) return fmt::format("equal, {} tokens", both);
  return fmt::format("equal as far as both go: {} and {} tokens", first->size(), other->size());
}

// Numbers among the last counters, by pointer.
void numbers_in(const Json& value, const std::string& pointer, std::map<std::string, double>* out) {
  if (value.is_object()) {
    for (const auto& [name, member] : value.items()) numbers_in(member, pointer + "/" + name, out);
  } else if (value.is_number() && std::isfinite(value.get<double>())) {
    (*out)[pointer] = value.get<double>();
  }
}

std::map<std::string, std::vector<double>> counters_of(const std::vector<const Archived*>& group) {
  std::map<std::string, std::vector<double>> out;
  for (const Archived* record : group) {
    constexpr const char* kLast = "/counters/-1/counters";
    const Json* last = resolve_pointer(record->value, kLast);
    if (last == nullptr) continue;
    std::map<std::string, double> numbers;
    numbers_in(*last, kLast, &numbers);
    for (const auto& [pointer, value] : numbers) out[pointer].push_back(value);
  }
  return out;
}

bool of_decode(const Figure& figure) {
  return figure.phase == "decode" && figure.name != "decode_tokens";
}

// Values of a figure; decode that is no result gives none.
std::vector<double> values_of(const std::vector<const Archived*>& group, const std::string& name) {
  std::vector<double> out;
  for (const Archived* record : group) {
    const Figure* figure = find_figure(record->schema, name);
    if (figure == nullptr) continue;
    if (of_decode(*figure) && !why_no_decode(record->value).empty()) continue;
    if (text_member(record->value, "/outcome/state") != "finished") continue;
    if (const auto value = figure_value(*figure, record->value)) out.push_back(*value);
  }
  return out;
}

void add_figures(RecordDiff* diff) {
  std::set<std::string> done;
  for (const auto* group : {&diff->a, &diff->b}) {
    for (const Archived* record : *group) {
      for (const Figure& figure : figures_of(record->schema)) {
        if (!done.insert(figure.name).second) continue;
        FigureChange change{.name = figure.name,
                            .title = figure.title,
                            .unit = figure.unit,
                            .phase = figure.phase,
                            .digits = figure.digits,
                            .a = values_of(diff->a, figure.name),
                            .b = values_of(diff->b, figure.name)};
        if (change.a.empty() && change.b.empty()) continue;
        change.spread_a = spread_of(change.a);
        change.spread_b = spread_of(change.b);
        // The middle of two values may be past what a number holds.
        if (!std::isfinite(change.spread_a.median + change.spread_b.median)) continue;
        change.p = mann_whitney(change.a, change.b);
        diff->figures.push_back(std::move(change));
      }
    }
  }
}

void add_within(const std::vector<const Archived*>& group, const char* name, RecordDiff* diff) {
  std::set<std::string> names;
  for (const Archived* record : group) {
    for (const Difference& d : differences_of(group[0]->value, record->value)) {
      names.insert(d.kind + " " + d.name);
    }
    for (const std::string& why :
         why_uncomparable(workload_of(group[0]->value), workload_of(record->value))) {
      names.insert(why);
    }
  }
  for (const std::string& one : names) diff->within.push_back(fmt::format("{}: {}", name, one));
}

// The least p that runs could give that never overlap.
double least_p(size_t n, size_t m) {
  std::vector<double> low(n), high(m);
  for (size_t i = 0; i < n; ++i) low[i] = static_cast<double>(i);
  for (size_t i = 0; i < m; ++i) high[i] = static_cast<double>(n + i);
  return mann_whitney(low, high);
}

std::string runs_text(size_t n, size_t m) {
  if (n != m) return fmt::format("{} and {} runs", n, m);
  return fmt::format("{} {} each", n, n == 1 ? "run" : "runs");
}

Json spread_json(const Spread& spread, const std::vector<double>& values) {
  return {{"n", spread.n},
          {"median", spread.median},
          {"min", spread.least},
          {"max", spread.most},
          {"values", values}};
}

std::vector<std::string> ids_of(const std::vector<const Archived*>& group) {
  std::vector<std::string> out;
  for (const Archived* record : group) out.push_back(record->id);
  return out;
}

std::string printable(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = ' ';
  }
  return text;
}

std::string figures_table(const RecordDiff& diff) {
  std::string out =
      fmt::format("  {:<32} {:>26} {:>26} {:>9} {:>8}\n", "", "A", "B", "B to A", "p");
  for (const FigureChange& f : diff.figures) {
    const auto side = [&](const Spread& s) {
      if (s.n == 0) return std::string("-");
      if (s.n == 1) return number_text(s.median, f.digits);
      return fmt::format("{} ({} to {})", number_text(s.median, f.digits),
                         number_text(s.least, f.digits), number_text(s.most, f.digits));
    };
    std::string ratio = "-", p = "-";
    if (diff.uncomparable.empty() && f.spread_a.n > 0 && f.spread_b.n > 0) {
      const double change = 100 * (f.spread_b.median / f.spread_a.median - 1);
      if (std::fabs(change) < 1e9) ratio = fmt::format("{:+.1f} %", change);
      if (f.a.size() > 1 && f.b.size() > 1) p = fmt::format("{:.3f}", f.p);
    }
    const std::string title =
        f.unit.empty() || f.unit == f.title ? f.title : f.title + ", " + f.unit;
    out += fmt::format("  {:<32} {:>26} {:>26} {:>9} {:>8}\n", title, side(f.spread_a),
                       side(f.spread_b), ratio, p);
  }
  return out;
}

}  // namespace

std::string change_sentence(const FigureChange& change) {
  const size_t n = change.a.size(), m = change.b.size();
  if (n == 0 || m == 0) {
    return fmt::format("{} has no decode result", n == 0 && m == 0 ? "neither"
                                                  : n == 0         ? "A"
                                                                   : "B");
  }
  const double ratio = change.spread_b.median / change.spread_a.median - 1;
  const bool sensible = std::fabs(ratio) < 1e9;  // not of what is zero or next to it
  const std::string moved =
      sensible
          ? fmt::format("{} by {:.1f} %", ratio < 0 ? "slower" : "faster", 100 * std::fabs(ratio))
          : std::string("beyond any ratio");
  if (change.p < kSignificant && sensible && ratio != 0) {
    return fmt::format("B is {}, p = {:.3f}, {}", moved, change.p, runs_text(n, m));
  }
  std::string out = fmt::format(
      "no difference that {} could show (by the medians B is {}; p = "
      "{:.3f})",
      runs_text(n, m), ratio == 0 ? "as fast" : moved, change.p);
  const double least = least_p(n, m);
  if (least >= kSignificant) {
    out += fmt::format("; so few could show none: their p is {:.3f} at the least; 4 of each could",
                       least);
  }
  return out;
}

RecordDiff diff_records(std::vector<const Archived*> a, std::vector<const Archived*> b) {
  if (a.empty() || b.empty()) {
    fail(ErrorKind::Usage, "{} has no record to compare", a.empty() ? "A" : "B");
  }
  RecordDiff diff;
  for (auto* group : {&a, &b}) {
    std::sort(group->begin(), group->end(),
              [](const Archived* x, const Archived* y) { return x->id < y->id; });
  }
  diff.a = std::move(a);
  diff.b = std::move(b);
  const Json &first = diff.a[0]->value, &other = diff.b[0]->value;
  std::set<std::string> reasons;
  for (const Archived* x : diff.a) {
    for (const Archived* y : diff.b) {
      for (std::string& why : why_uncomparable(workload_of(x->value), workload_of(y->value))) {
        if (reasons.insert(why).second) diff.uncomparable.push_back(std::move(why));
      }
    }
  }
  for (const auto* group : {&diff.a, &diff.b}) {
    for (const Archived* record : *group) {
      const std::string why = why_no_decode(record->value);
      if (why.empty()) continue;
      diff.not_results.push_back(
          fmt::format("{} ({}): {}", record->id.substr(0, 8), group == &diff.a ? "A" : "B", why));
    }
  }
  diff.differences = differences_of(first, other);
  add_within(diff.a, "A", &diff);
  add_within(diff.b, "B", &diff);
  add_figures(&diff);
  const auto left = counters_of(diff.a), right = counters_of(diff.b);
  for (const auto& [pointer, values] : left) {
    const auto found = right.find(pointer);
    if (found == right.end()) continue;
    const double x = spread_of(values).median, y = spread_of(found->second).median;
    if (x != y) diff.counters.push_back({pointer, x, y});
  }
  diff.output = output_sentence(diff.a, diff.b);
  const auto speed = std::find_if(diff.figures.begin(), diff.figures.end(),
                                  [](const FigureChange& f) { return f.name == "decode_tok_s"; });
  if (!diff.uncomparable.empty()) {
    diff.sentence = "UNCOMPARABLE";
    for (const std::string& why : diff.uncomparable) diff.sentence += "; " + why;
  } else if (speed == diff.figures.end()) {
    diff.sentence = change_sentence({});
  } else {
    diff.sentence = change_sentence(*speed);
  }
  return diff;
}

std::string diff_table(const RecordDiff& diff) {
  std::string out;
  if (!diff.uncomparable.empty()) {
    out += "UNCOMPARABLE:\n";
    for (const std::string& why : diff.uncomparable) out += "  " + printable(why) + "\n";
  }
  for (const auto* group : {&diff.a, &diff.b}) {
    out += group == &diff.a ? "A:" : "B:";
    for (const Archived* record : *group) out += " " + record->id.substr(0, 8);
    out += "\n";
  }
  std::string kind;
  for (const Difference& d : diff.differences) {
    if (d.kind != kind) out += "\n" + d.kind + "\n";
    kind = d.kind;
    out += printable(fmt::format("  {:<26} {} -> {}{}", d.name, shortened(d.a, 60),
                                 shortened(d.b, 60), d.named ? "  (an option)" : "")) +
           "\n";
  }
  if (diff.differences.empty()) {
    out += "\nidentity, settings, environment and machine: the same\n";
  }
  if (!diff.within.empty()) {
    out += "\nruns of one group differ in\n";
    for (const std::string& one : diff.within) out += "  " + printable(one) + "\n";
  }
  out += "\nfigures" + std::string(diff.uncomparable.empty() ? "\n" : " (UNCOMPARABLE)\n");
  out += figures_table(diff);
  if (!diff.counters.empty()) out += "\ncounters at the end\n";
  for (const CounterChange& c : diff.counters) {
    constexpr size_t kPrefix = sizeof("/counters/-1/counters/") - 1;
    out += printable(fmt::format("  {:<44} {} -> {}", c.pointer.substr(kPrefix), c.a, c.b)) + "\n";
  }
  if (!diff.not_results.empty()) {
    out += "\nno decode result\n";
    for (const std::string& one : diff.not_results) out += "  " + printable(one) + "\n";
  }
  out += "\noutput: " + diff.output + "\n";
  return out + "decode speed: " + printable(diff.sentence) + "\n";
}

nlohmann::ordered_json diff_json(const RecordDiff& diff) {
  nlohmann::ordered_json out = {{"schema", "penstock-diff"},
                                {"version", 1},
                                {"a", ids_of(diff.a)},
                                {"b", ids_of(diff.b)},
                                {"comparable", diff.uncomparable.empty()},
                                {"why_uncomparable", diff.uncomparable},
                                {"no_decode_result", diff.not_results},
                                {"within", diff.within}};
  out["differences"] = Json::array();
  for (const Difference& d : diff.differences) {
    out["differences"].push_back(
        {{"kind", d.kind}, {"name", d.name}, {"a", d.a}, {"b", d.b}, {"named", d.named}});
  }
  out["figures"] = Json::object();
  for (const FigureChange& f : diff.figures) {
    const bool both = !f.a.empty() && !f.b.empty() && diff.uncomparable.empty();
    out["figures"][f.name] = {{"unit", f.unit},
                              {"phase", f.phase},
                              {"a", spread_json(f.spread_a, f.a)},
                              {"b", spread_json(f.spread_b, f.b)},
                              {"p", both ? Json(f.p) : Json()}};
  }
  out["counters"] = Json::array();
  for (const CounterChange& c : diff.counters) {
    out["counters"].push_back({{"pointer", c.pointer}, {"a", c.a}, {"b", c.b}});
  }
  out["output"] = diff.output;
  out["decode_speed"] = diff.sentence;
  return out;
}

}  // namespace penstock::measure
