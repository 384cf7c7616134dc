// Whether there are runs enough, whether two arms can be compared, and what a claim needs beside
// its number: footprint, coverage (quality: audit_quality.cpp).
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>

#include "base/digest.h"
#include "base/error.h"
#include "measure/audit_rules.h"
#include "measure/figures.h"
#include "measure/record.h"

namespace penstock::measure {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

const Json* at(const Json& record, const std::string& pointer) {
  const Json* found = resolve_pointer(record, pointer);
  return found == nullptr || found->is_null() ? nullptr : found;
}

// What two runs are to share, as texts; nothing where a record does not say.
std::set<std::string> input_of(const Archived& entry, const std::string& what) {
  const bool ours = entry.schema == kRecordSchema;
  std::set<std::string> out;
  const auto take = [&](const char* pointer) {
    if (const Json* found = at(entry.value, pointer)) out.insert(canonical_text(*found));
  };
  const auto number = [&](const char* name) {
    const Figure* figure = find_figure(entry.schema, name);
    const auto value = figure == nullptr ? std::nullopt : figure_value(*figure, entry.value);
    if (value) out.insert(fmt::format("{:.0f}", *value));
  };
  if (what == "prompt") {
    take(ours ? "/turns/-1/prompt/file" : "/inputs/prompt/file");
  } else if (what == "prompt tokens") {
    number("prompt_tokens");
    if (out.empty()) take("/inputs/prompt/tokens");
  } else if (what == "tokens") {
    number("decode_tokens");
  } else if (what == "context") {
    take(ours ? "/settings/n_ctx" : "/settings/context");
  } else if (what == "budget") {  // one of the limits that a run was under
    take(ours ? "/settings/memory" : "/limit/bytes");
    if (ours) take("/machine/cgroup/limit");
  } else if (what == "model") {
    take("/inputs/model/model_id");
  } else if (what == "machine") {
    take("/machine/cpu/model");
  }
  return out;
}

bool differ(const std::set<std::string>& a, const std::set<std::string>& b) {
  if (a.empty() || b.empty()) return false;
  return std::none_of(a.begin(), a.end(), [&](const auto& x) { return b.contains(x); });
}

std::string first_of(const std::set<std::string>& values) {
  const std::string& text = *values.begin();
  return text.size() > 24 ? text.substr(0, 13) + "..." : text;
}

bool is_word(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

// One stretch of a pattern between two '*', at `at` of the line: where it ends, or npos.
size_t stretch_at(std::string_view line, size_t at, std::string_view stretch,
                  std::vector<double>* numbers) {
  if (!stretch.empty() && is_word(stretch[0]) && at > 0 && is_word(line[at - 1])) {
    return std::string_view::npos;
  }
  for (size_t i = 0; i < stretch.size(); ++i) {
    if (stretch[i] != '#') {
      if (at >= line.size() || line[at] != stretch[i]) return std::string_view::npos;
      ++at;
      continue;
    }
    while (at < line.size() && line[at] == ' ') ++at;
    double number = 0;
    const auto [end, error] = std::from_chars(line.data() + at, line.data() + line.size(), number);
    if (error != std::errc() || !std::isfinite(number)) return std::string_view::npos;
    numbers->push_back(number);
    at = static_cast<size_t>(end - line.data());
  }
  // "E=256" is not in "E=2560".
  const bool cut = !stretch.empty() && (is_word(stretch.back()) || stretch.back() == '#') &&
                   at < line.size() && is_word(line[at]);
  return cut ? std::string_view::npos : at;
}

}  // namespace

bool matches_pattern(std::string_view line, std::string_view pattern,
                     std::vector<double>* numbers) {
  std::vector<double> found;
  size_t at = 0;
  for (size_t begin = 0; begin <= pattern.size();) {
    const size_t end = std::min(pattern.find('*', begin), pattern.size());
    const std::string_view stretch = pattern.substr(begin, end - begin);
    size_t after = std::string_view::npos;
    for (size_t from = at; from <= line.size() && after == std::string_view::npos; ++from) {
      std::vector<double> here;
      after = stretch_at(line, from, stretch, &here);
      if (after != std::string_view::npos) found.insert(found.end(), here.begin(), here.end());
    }
    if (after == std::string_view::npos) return false;
    at = after;
    begin = end + 1;
  }
  numbers->insert(numbers->end(), found.begin(), found.end());
  return true;
}

void ClaimWork::enough_runs(const ClaimArm& arm) {
  if (!arm.needs_runs || arm.values.empty() || arm.values.size() >= 3) return;
  add(Verdict::UnderSampled, "R8",
      fmt::format("{} {}, fewer than three", arm.values.size(),
                  arm.values.size() == 1 ? "run" : "runs"));
}

// What a campaign ran is quoted whole, and not at all where its control moved.
void ClaimWork::campaign(const ClaimArm& arm) {
  const auto uses = [&](const Json& run) {
    const Json* record = at(run, "/record");
    return record != nullptr &&
           std::any_of(arm.entries.begin(), arm.entries.end(),
                       [&](const Archived* entry) { return *record == entry->id; });
  };
  const auto group = [](const Json& run) {
    std::string out;
    for (const char* member : {"/arm", "/prompt", "/cold"}) {
      const Json* value = at(run, member);
      out += (value == nullptr ? std::string("?") : canonical_text(*value)) + " ";
    }
    return out;
  };
  const auto counts = [](const Json& run) {
    const Json *state = at(run, "/state"), *control = at(run, "/control");
    return state != nullptr && *state == "finished" && !(control != nullptr && *control == true);
  };
  for (const Archived& entry : archive_.entries()) {
    if (entry.schema != kCampaignSchema) continue;
    const Json* runs = at(entry.value, "/runs");
    if (runs == nullptr || !runs->is_array()) continue;
    std::set<std::string> groups;
    for (const Json& run : *runs) {
      if (uses(run)) groups.insert(group(run));
    }
    if (groups.empty()) continue;
    for (const Json& run : *runs) {
      if (!counts(run) || uses(run) || !groups.contains(group(run))) continue;
      const Json* record = at(run, "/record");
      add(Verdict::UnderSampled, "R8",
          fmt::format("it leaves out a run of the same arm and prompt, record {}",
                      record == nullptr ? "?" : canonical_text(*record).substr(1, 12)));
    }
    const Json* moved = at(entry.value, "/control/void");
    if (moved != nullptr && *moved == true) {
      add(Verdict::Uncomparable, "R7",
          "the campaign's first arm, run again at the end, had moved too far: its figures compare "
          "nothing and are none");
    }
  }
}

void ClaimWork::same_inputs() {
  if (!claim_.against || arm_.entries.empty() || other_.entries.empty()) return;
  const auto allowed = [&](const std::string& what) {
    const std::vector<std::string>& list = claim_.against->differs;
    return std::find(list.begin(), list.end(), what == "prompt tokens" ? "prompt" : what) !=
           list.end();
  };
  const std::string phase = phase_together(arm_.phases);
  for (const Archived* a : arm_.entries) {
    for (const Archived* b : other_.entries) {
      if (a == b) continue;
      if (!a->is_record() || !b->is_record()) {
        add(Verdict::Uncomparable, "R7",
            fmt::format("{} and {}: nothing says that they share prompt and settings",
                        short_name(*a), short_name(*b)));
        continue;
      }
      for (const char* what :
           {"prompt", "prompt tokens", "tokens", "context", "budget", "model", "machine"}) {
        const std::set<std::string> x = input_of(*a, what), y = input_of(*b, what);
        if (allowed(what) || !differ(x, y)) continue;
        add(Verdict::Uncomparable, "R7",
            fmt::format("{} has the {} {}, {} has {}", short_name(*a), what, first_of(x),
                        short_name(*b), first_of(y)));
      }
      const bool known =
          !(input_of(*a, "prompt tokens").empty() || input_of(*b, "prompt tokens").empty());
      if (!known && phase != "memory" && phase != "load" && !allowed("prompt")) {
        add(Verdict::Uncomparable, "R7",
            fmt::format("{} or {} does not say how long its prompt was", short_name(*a),
                        short_name(*b)));
      }
    }
  }
}

// What is said to have been given back was in a sample taken afterwards.
void ClaimWork::footprint(const ClaimArm& arm) {
  if (std::find(claim_.needs.begin(), claim_.needs.end(), "footprint") == claim_.needs.end()) {
    return;
  }
  for (const Archived* entry : arm.entries) {
    const Json* memory = at(entry->value, "/memory");
    bool sampled = false;
    if (memory != nullptr && memory->is_array()) {
      for (const Json& sample : *memory) {
        const Json *when = at(sample, "/at"), *footprint = at(sample, "/footprint");
        sampled = sampled || (when != nullptr && *when == "after prefill" && footprint != nullptr);
      }
    }
    if (!sampled) {
      add(Verdict::NotMeasured, "R13",
          fmt::format("{}: the footprint after the prompt was never measured", short_name(*entry)));
    }
  }
}

// R14: the log that stands for a coverage prints that coverage.
void ClaimWork::coverage() {
  const bool asked =
      std::find(claim_.needs.begin(), claim_.needs.end(), "coverage") != claim_.needs.end();
  if (!claim_.log) {
    if (asked) add(Verdict::NoSource, "R14", "it claims a coverage and names no log");
    return;
  }
  const ClaimLog& log = *claim_.log;
  std::set<std::pair<std::string, std::string>> files;  // folder of the records, SHA-256
  Sha256 parsed;
  if (const Archived* entry = archive_.find(log.record); entry != nullptr && entry->is_record()) {
    for (const char* pointer : {"/output/stdout/sha256", "/output/stderr/sha256"}) {
      const Json* hash = at(entry->value, pointer);
      if (hash == nullptr || !hash->is_string()) continue;
      files.emplace(fs::path(entry->path).parent_path().string(), hash->get<std::string>());
    }
  } else if (parse_sha256(log.record, &parsed)) {
    for (const Archived& other : archive_.entries()) {
      const fs::path beside = fs::path(other.path).parent_path();
      if (fs::exists(beside / "files" / log.record)) files.emplace(beside.string(), log.record);
    }
    for (const std::string& folder : claims_.records) {
      const fs::path named = fs::path(claims_.folder) / folder;
      if (fs::exists(named / "files" / log.record) && files.empty()) {
        files.emplace(named.string(), log.record);
      }
    }
  }
  std::string text;
  for (const auto& [folder, digits] : files) {
    try {
      const std::string content = read_archived(folder, digits);
      const std::string hash = hex(sha256(content));
      if (hash == digits) {
        text += content + "\n";
      } else {
        add(Verdict::NoSource, "R2",
            fmt::format("{}/files/{} was changed: its hash is {}", folder, digits, hash));
      }
    } catch (const Error& error) {
      add(Verdict::NoSource, "R2", error.what());
    }
  }
  if (text.empty()) {
    add(Verdict::NoSource, "R14", fmt::format("there is no log '{}'", log.record));
    return;
  }
  uint64_t lines = 0;
  std::vector<double> numbers;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    lines +=
        matches_pattern(std::string_view(text).substr(begin, end - begin), log.pattern, &numbers);
    begin = end + 1;
  }
  if (log.count ? lines != *log.count : lines == 0) {
    add(Verdict::NoSource, "R14",
        fmt::format("its log has {} lines like '{}'{}", lines, log.pattern,
                    log.count ? fmt::format(", not {}", *log.count) : ""));
  }
  if (claim_.source.records.empty() && !numbers.empty()) {
    arm_.values = numbers;
    arm_.alike = claim_.statistic == Statistic::Unnamed;
    result_.origins.push_back({log.record, "", log.pattern, {}, numbers, false});
  }
}

}  // namespace penstock::measure
