#include "measure/report_groups.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "measure/formula.h"
#include "measure/record.h"
#include "measure/report_text.h"

namespace penstock::measure {
namespace {

using Json = nlohmann::json;
using Facts = std::map<std::string, std::string>;

// Facts that follow from others, or that no comparison is about.
bool is_derived(const std::string& fact) {
  return fact == "identity/quality key" || fact == "identity/model" ||
         fact == "identity/model file";
}

Facts config_of(const Json& record) {
  Facts facts = facts_of(record);
  std::erase_if(facts, [](const auto& fact) { return is_derived(fact.first); });
  return facts;
}

// A run that failed before it knew its settings is known by what it was asked for.
std::string asked_for(const Json& record) {
  const auto argv = record.find("argv");
  std::string out;
  if (argv == record.end()) return out;
  for (const auto& [name, values] : options_of(*argv)) {
    if (name.size() < 2 || name == "file" || name == "ids" || name == "model") continue;
    std::string option = "--" + name;
    std::replace(option.begin(), option.end(), '_', '-');
    for (const std::string& value : values) option += " " + shown_name(value);
    out += (out.empty() ? "" : " ") + option;
  }
  return out;
}

// Whether a run without a full workload may stand in a comparison: nothing that both know differs.
bool agrees(const Workload& run, const Workload& comparison) {
  if (!run.model.empty() && run.model != comparison.model) return false;
  if (!run.prompt.empty() && !comparison.prompt.empty() && run.prompt != comparison.prompt) {
    return false;
  }
  return !run.prompt_tokens || !comparison.prompt_tokens ||
         *run.prompt_tokens == *comparison.prompt_tokens;
}

struct Placed {
  ReportRun run;
  Workload workload;
  size_t comparison = 0;
};

std::string group_of(const ReportRun& run) {
  return run.arm + '\n' + run.prompt;
}

bool is_full(const Placed& placed) {
  return placed.run.record != nullptr && placed.run.reason.empty() &&
         placed.run.no_decode.empty() && placed.workload.decode_tokens;
}

// Peers archive prompts in their own form; a prompt's name in the campaign stands for the file.
bool same_work(const Placed& placed, const Placed& other, bool campaign) {
  Workload a = placed.workload, b = other.workload;
  if (campaign) {
    if (placed.run.prompt != other.run.prompt) return false;
    if (placed.run.record->schema != other.run.record->schema) a.prompt = b.prompt = "";
  }
  return why_uncomparable(a, b).empty();
}

// Numbers the comparisons: full runs first, the others where they fit.
size_t place(std::vector<Placed>* all, bool campaign) {
  std::vector<const Placed*> founders;
  for (Placed& placed : *all) {
    if (!is_full(placed)) continue;
    size_t at = 0;
    while (at < founders.size() && !same_work(placed, *founders[at], campaign)) ++at;
    placed.comparison = at;
    if (at == founders.size()) founders.push_back(&placed);
  }
  std::vector<std::pair<size_t, Placed*>> made;  // by runs that fit nowhere
  size_t n = founders.size();
  for (Placed& placed : *all) {
    if (is_full(placed)) continue;
    const auto fits = [&](const Placed& other) {
      return agrees(placed.workload, other.workload) &&
             (!campaign || placed.run.prompt == other.run.prompt);
    };
    const Placed* home = nullptr;
    for (const Placed& other : *all) {
      const bool kin = campaign && group_of(other.run) == group_of(placed.run);
      if (home == nullptr && is_full(other) && kin && fits(other)) home = &other;
    }
    for (const Placed* founder : founders) {
      if (home == nullptr && fits(*founder)) home = founder;
    }
    for (const auto& [number, other] : made) {
      const bool both = agrees(other->workload, placed.workload) && fits(*other);
      if (home == nullptr && both) home = other;
    }
    placed.comparison = home != nullptr ? home->comparison : n++;
    if (home == nullptr) made.emplace_back(placed.comparison, &placed);
  }
  return n;
}

// By numbers where both texts have some: "slots = 64" before "slots = 128".
bool natural_less(const std::string& a, const std::string& b) {
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  size_t i = 0, j = 0;
  while (i < a.size() && j < b.size()) {
    if (!digit(a[i]) || !digit(b[j])) {
      if (a[i] != b[j]) return a[i] < b[j];
      ++i;
      ++j;
      continue;
    }
    const auto run = [&](const std::string& text, size_t* at) {
      while (*at < text.size() && text[*at] == '0') ++*at;
      const size_t begin = *at;
      while (*at < text.size() && digit(text[*at])) ++*at;
      return text.substr(begin, *at - begin);
    };
    const std::string x = run(a, &i), y = run(b, &j);
    if (x.size() != y.size()) return x.size() < y.size();
    if (x != y) return x < y;
  }
  return a.size() - i < b.size() - j;
}

// Names that tell the configurations apart, no more than are needed; settings come first.
std::vector<std::string> telling(const std::vector<Facts>& configs) {
  std::set<std::string> names;
  for (const Facts& config : configs) {
    for (const auto& [name, value] : config) names.insert(name);
  }
  std::vector<std::string> order(names.begin(), names.end());
  const auto rank = [](const std::string& name) {
    if (name == "identity/program") return 0;
    if (name == "settings/slots") return 1;
    if (name.starts_with("settings/")) return 2;
    return name.starts_with("identity/") ? 3 : 4;
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](const std::string& a, const std::string& b) { return rank(a) < rank(b); });
  std::vector<std::string> out;
  std::vector<std::string> keys(configs.size());
  const auto classes = [](const std::vector<std::string>& of) {
    return std::set<std::string>(of.begin(), of.end()).size();
  };
  for (const std::string& name : order) {
    std::vector<std::string> finer = keys;
    for (size_t i = 0; i < configs.size(); ++i) {
      const auto found = configs[i].find(name);
      finer[i] += (found == configs[i].end() ? std::string("-") : found->second) + '\n';
    }
    if (classes(finer) == classes(keys)) continue;
    keys = std::move(finer);
    out.push_back(name);
  }
  return out;
}

std::string label_of(const Facts& config, const std::vector<std::string>& names) {
  std::string label;
  for (const std::string& name : names) {
    const auto found = config.find(name);
    if (found == config.end()) continue;
    if (!label.empty()) label += ", ";
    label += name == "identity/program"
                 ? found->second
                 : fmt::format("{} = {}", name.substr(name.rfind('/') + 1), found->second);
  }
  return label;
}

void group_by_config(std::vector<Placed> runs, ReportComparison* out) {
  std::vector<Facts> configs;
  for (const Placed& placed : runs) configs.push_back(config_of(placed.run.record->value));
  const std::vector<std::string> names = telling(configs);
  std::map<Facts, size_t> at;
  for (size_t i = 0; i < runs.size(); ++i) {
    const auto [found, fresh] = at.try_emplace(configs[i], out->groups.size());
    if (fresh) {
      ReportGroup group;
      group.label = label_of(configs[i], names);
      const Json& record = runs[i].run.record->value;
      const Json* settings = resolve_pointer(record, "/settings");
      if (!runs[i].run.reason.empty() && (settings == nullptr || !settings->is_object())) {
        group.label = asked_for(record);
      }
      if (group.label.empty()) {
        const auto program = configs[i].find("identity/program");
        group.label = program == configs[i].end() ? "all runs" : program->second;
      }
      out->groups.push_back(std::move(group));
    }
    out->groups[found->second].runs.push_back(std::move(runs[i].run));
  }
  std::stable_sort(
      out->groups.begin(), out->groups.end(),
      [](const ReportGroup& a, const ReportGroup& b) { return natural_less(a.label, b.label); });
}

void group_by_arm(const std::vector<Placed>& runs, const std::vector<std::string>& arms,
                  ReportComparison* out) {
  std::vector<std::string> order = arms;
  for (const Placed& placed : runs) {
    if (std::find(order.begin(), order.end(), placed.run.arm) == order.end()) {
      order.push_back(placed.run.arm);
    }
  }
  // The first arm's runs after everything stand for themselves: they say whether the machine stayed
  // the same.
  for (const bool control : {false, true}) {
    for (const std::string& arm : order) {
      ReportGroup group;
      group.arm = arm;
      group.label = control ? arm + ", again at the end (control)" : arm;
      for (const Placed& placed : runs) {
        if (placed.run.arm != arm || placed.run.control != control) continue;
        group.prompt = placed.run.prompt;
        group.runs.push_back(placed.run);
      }
      if (!group.runs.empty()) out->groups.push_back(std::move(group));
    }
  }
}

void describe(const Placed& first, ReportComparison* out) {
  out->workload = first.workload;
  const Json* record = first.run.record == nullptr ? nullptr : &first.run.record->value;
  const std::string path = record == nullptr ? "" : text_member(*record, "/inputs/model/path");
  const std::string& id = first.workload.model;
  out->model = path.empty() ? "a model that is not named" : shown_name(path);
  if (id.size() == 64) out->model += fmt::format(" ({})", id.substr(0, 8));
  out->prompt =
      first.workload.prompt_text.empty() ? "of unknown length" : first.workload.prompt_text;
  if (!first.run.prompt.empty()) out->prompt = first.run.prompt + ", " + out->prompt;
}

void add_series(ReportGroup* group) {
  std::set<std::string> done;
  for (const ReportRun& run : group->runs) {
    if (run.record == nullptr) continue;
    for (const Figure& figure : figures_of(run.record->schema)) {
      if (!run.gives(figure.name) || !done.insert(figure.name).second) continue;
      ReportSeries series;
      series.figure = &figure;
      std::vector<double> values;
      for (size_t i = 0; i < group->runs.size(); ++i) {
        const auto found = group->runs[i].values.find(figure.name);
        if (found == group->runs[i].values.end()) continue;
        series.values.emplace_back(i, found->second);
        values.push_back(found->second);
      }
      series.spread = spread_of(values);
      // The middle of two values may be past what a number holds.
      if (std::isfinite(series.spread.median)) group->series.push_back(std::move(series));
    }
  }
}

const Archived* first_record(const ReportGroup& group) {
  for (const ReportRun& run : group.runs) {
    if (run.record != nullptr && run.reason.empty()) return run.record;
  }
  for (const ReportRun& run : group.runs) {
    if (run.record != nullptr) return run.record;
  }
  return nullptr;
}

void note_within(ReportGroup* group, const Archived& first) {
  std::set<std::string> names;
  for (const ReportRun& run : group->runs) {
    if (run.record == nullptr || !run.reason.empty()) continue;
    for (const Difference& d : differences_of(first.value, run.record->value)) {
      names.insert(d.kind + " " + d.name);
    }
  }
  if (names.empty()) return;
  std::string list;
  size_t n = 0;
  for (const std::string& name : names) {
    if (n++ == 8) {
      list += fmt::format(" and {} more", names.size() - 8);
      break;
    }
    list += (list.empty() ? "" : ", ") + name;
  }
  group->notes.push_back("its runs do not agree in: " + list);
}

void mark(ReportGroup* group, bool is_void) {
  const ReportSeries* speed = group->find("decode_tok_s");
  size_t n = speed == nullptr ? 0 : speed->spread.n;
  if (speed == nullptr) {
    for (const ReportSeries& series : group->series) n = std::max(n, series.spread.n);
  }
  if (is_void) group->marks.emplace_back("VOID");
  if (speed == nullptr) group->marks.emplace_back("no decode result");
  if (n < kLeastRuns) group->marks.push_back(fmt::format("n < {}", kLeastRuns));
}

// Where only one program is compared, its settings; between programs what both were given.
std::vector<Difference> shown_differences(const Json& first, const Json& other) {
  std::vector<Difference> out = differences_of(first, other);
  const bool programs = std::any_of(out.begin(), out.end(), [](const Difference& d) {
    return d.kind == "identity" && d.name == "program";
  });
  std::erase_if(out, [&](const Difference& d) {
    if (is_derived(d.kind + "/" + d.name)) return true;
    return programs && d.kind == "identity" && d.name != "program" && d.name != "memory limit";
  });
  for (Difference& d : out) {
    if (programs && d.name == "program") d.named = true;
  }
  return out;
}

bool differs_in_slots_alone(const ReportComparison& comparison) {
  std::set<double> sizes;
  for (const ReportGroup& group : comparison.groups) {
    if (!of_an_arena_plot(comparison, group)) continue;
    sizes.insert(group.find("slots")->spread.median);
    for (const Difference& d : group.differences) {
      const bool size = d.kind == "settings" &&
                        (d.name == "slots" || d.name == "arena_slots" || d.name == "memory");
      if (!size) return false;
    }
  }
  return sizes.size() >= 3;
}

}  // namespace

bool of_an_arena_plot(const ReportComparison& comparison, const ReportGroup& group) {
  const auto reference =
      std::find_if(comparison.groups.begin(), comparison.groups.end(),
                   [](const ReportGroup& g) { return g.find("decode_tok_s") != nullptr; });
  return reference != comparison.groups.end() && group.find("decode_tok_s") != nullptr &&
         group.find("slots") != nullptr && group.lossy == reference->lossy;
}

std::vector<ReportComparison> compare_runs(std::vector<ReportRun> runs,
                                           const std::vector<std::string>& arms, bool campaign) {
  std::vector<Placed> all;
  for (ReportRun& run : runs) {
    Placed placed;
    if (run.record != nullptr) placed.workload = workload_of(run.record->value);
    placed.run = std::move(run);
    all.push_back(std::move(placed));
  }
  std::vector<ReportComparison> out(place(&all, campaign));
  for (size_t i = 0; i < out.size(); ++i) {
    std::vector<Placed> own;
    for (Placed& placed : all) {
      if (placed.comparison == i) own.push_back(placed);
    }
    const auto full = std::find_if(own.begin(), own.end(), is_full);
    const auto any = std::find_if(own.begin(), own.end(),
                                  [](const Placed& p) { return p.run.record != nullptr; });
    describe(full != own.end() ? *full : any != own.end() ? *any : own.front(), &out[i]);
    if (campaign) {
      group_by_arm(own, arms, &out[i]);
    } else {
      group_by_config(std::move(own), &out[i]);
    }
  }
  return out;
}

void finish_comparison(ReportComparison* comparison, bool is_void) {
  for (ReportGroup& group : comparison->groups) {
    add_series(&group);
    mark(&group, is_void);
    const Archived* first = first_record(group);
    if (first == nullptr) continue;
    const Facts facts = facts_of(first->value);
    const auto lossy = facts.find("identity/lossy");
    if (lossy != facts.end() && lossy->second != "none") group.lossy = lossy->second;
    group.quality_key = text_member(first->value, "/quality_key");
    note_within(&group, *first);
  }
  // What has no decode result is no reference, and is compared with none.
  const Archived* reference = nullptr;
  for (ReportGroup& group : comparison->groups) {
    if (group.find("decode_tok_s") == nullptr) continue;
    const Archived* first = first_record(group);
    if (reference == nullptr) {
      reference = first;
    } else {
      group.differences = shown_differences(reference->value, first->value);
    }
  }
  comparison->by_slots = differs_in_slots_alone(*comparison);
}

void add_rooflines(const Json& campaign, ReportComparison* comparison) {
  const double compute = number_member(campaign, "/measured/compute_ms");
  const double disk = number_member(campaign, "/measured/disk_bytes_per_s");
  if (!(compute > 0) || !(disk > 0)) return;
  for (ReportGroup& group : comparison->groups) {
    std::vector<double> measured, serial, overlap, share;
    for (const ReportRun& run : group.runs) {
      // The compute time is this program's own; it bounds no other.
      if (run.record == nullptr || run.record->schema != kRecordSchema) continue;
      if (!run.gives("decode_ms") || !run.gives("mb_per_token")) continue;
      // What the kernel maps is not among this program's reads.
      if (!run.gives("hit_pct")) continue;
      const double read = run.values.at("mb_per_token") * 1e9 / disk;  // ms
      const double t = run.values.at("decode_ms");
      const double bound = std::max(compute, read);
      if (!(t > 0) || !std::isfinite(compute + read) || !std::isfinite(100 * bound / t)) continue;
      measured.push_back(t);
      serial.push_back(compute + read);
      overlap.push_back(bound);
      share.push_back(100 * bound / t);
    }
    if (measured.empty()) continue;
    group.roofline = ReportRoofline{spread_of(measured), spread_of(serial), spread_of(overlap),
                                    spread_of(share)};
  }
}

}  // namespace penstock::measure
