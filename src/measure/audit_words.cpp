// What a claim's words say against what was measured: phase, prompt, whose text, both arms.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "measure/audit_rules.h"
#include "measure/figures.h"
#include "measure/spread.h"

namespace penstock::measure {
namespace {

using Json = nlohmann::json;

bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}
bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

std::string lower(const std::string& text) {
  std::string out = text;
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    if (c == '-' || c == '\n') c = ' ';  // cold-start, first-token
  }
  return out;
}

// A word of the text begins with this.
bool has_word(const std::string& text, const std::string& word) {
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
    if (at == 0 || !is_letter(text[at - 1])) return true;
  }
  return false;
}

struct NominalPrompt {
  std::string words;
  uint64_t least, most;  // tokens: 1K is 1,000 or 1,024
};

// "1K prefill", "2K prompt", "1,264-token prompt", "prompt of 4000 tokens".
std::vector<NominalPrompt> nominal_prompts(const std::string& text) {
  std::vector<NominalPrompt> out;
  const std::string words = lower(text);
  for (size_t at = 0; at < words.size(); ++at) {
    if (!is_digit(words[at]) || (at > 0 && (is_digit(words[at - 1]) || words[at - 1] == '.' ||
                                            words[at - 1] == ',' || is_letter(words[at - 1])))) {
      continue;
    }
    size_t end = at;
    std::string digits;
    while (end < words.size() &&
           (is_digit(words[end]) ||
            (words[end] == ',' && end + 1 < words.size() && is_digit(words[end + 1])))) {
      if (words[end] != ',') digits += words[end];
      ++end;
    }
    uint64_t n = 0;
    const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), n);
    if (parsed.ec != std::errc() || n > 100000000) continue;
    const std::string rest = words.substr(end, 24);
    const auto follows = [&](const std::string& word) { return rest.starts_with(word); };
    if (follows("k prefill") || follows("k prompt") || follows("k token prompt") ||
        follows("k tokens prompt")) {
      out.push_back({text.substr(at, end + 1 - at), n * 1000, n * 1024});
    } else if (follows(" token prompt") || follows(" token prefill") ||
               (follows(" tokens") && at >= 10 && words.substr(at - 10, 10) == "prompt of ")) {
      out.push_back({text.substr(at, end - at), n, n});
    }
  }
  return out;
}

// Of a record; -1 where it does not say.
double prompt_tokens(const Archived& entry) {
  if (!entry.value.is_object()) return -1;
  if (const Figure* figure = find_figure(entry.schema, "prompt_tokens")) {
    if (const auto value = figure_value(*figure, entry.value)) return *value;
  }
  const Json* input = resolve_pointer(entry.value, "/inputs/prompt/tokens");
  return input != nullptr && input->is_number() ? input->get<double>() : -1;
}

std::string join(const std::set<std::string>& words, const char* with) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : with) + word;
  return out;
}

}  // namespace

std::string phase_together(const std::set<std::string>& phases) {
  if (phases.empty()) return {};
  const bool start = phases.contains("load") || phases.contains("fill");
  const bool prompt = phases.contains("prefill") || phases.contains("first token");
  if (phases.contains("run")) return "run";
  if (phases.contains("cold start") || (start && prompt)) return "cold start";
  return join(phases, "+");
}

std::set<std::string> phases_in(const std::string& text) {
  const std::string words = lower(text);
  std::set<std::string> out;
  const auto look = [&](const char* phase, std::initializer_list<const char*> names) {
    for (const char* name : names) {
      if (has_word(words, name)) out.insert(phase);
    }
  };
  look("decode", {"decod", "generat"});
  look("prefill", {"prefill"});
  look("cold start", {"cold start", "start to first token", "load to first token", "from a cold"});
  look("first token", {"first token"});
  look("fill", {"fill", "warm fill"});
  look("load", {"load", "init", "opening"});
  look("run", {"whole run"});
  if (out.empty()) look("prefill", {"prompt"});
  return out;
}

void ClaimWork::phase() {
  for (const ClaimArm* arm : {&arm_, &other_}) {
    const std::string actual = phase_together(arm->phases);
    if (actual.empty() || actual == "memory" || actual == "scratch") continue;
    std::set<std::string> said = phases_in(claim_.text);
    // "MB per decode token", "ms per token": only decode has such figures.
    const bool per_token = claim_.unit.per_token;
    if (per_token && !said.contains("prefill")) said.insert("decode");
    const bool hides_cold_start = claim_.phase == "cold start" && said.contains("prefill") &&
                                  !has_word(lower(claim_.text), "cold");
    if (!claim_.phase.empty() && !hides_cold_start && !per_token) said = {claim_.phase};
    if (said.empty() || said.contains(actual)) {
      if (!(per_token && actual == "run")) continue;
    }
    if (actual == "run" && per_token) {
      add(Verdict::Mislabelled, "J.3",
          "what the whole run read is called per token: loading and prompt are in it");
    } else {
      add(Verdict::Mislabelled, "R6",
          fmt::format("the words say {}, what was measured is {}", join(said, " or "), actual));
    }
  }
}

void ClaimWork::prompt_size() {
  const std::vector<NominalPrompt> nominal = nominal_prompts(claim_.text);
  if (nominal.empty() && !claim_.prompt_tokens) return;
  for (const Archived* entry : arm_.entries) {
    const double tokens = prompt_tokens(*entry);
    if (tokens < 0) continue;
    if (claim_.prompt_tokens && tokens != static_cast<double>(*claim_.prompt_tokens)) {
      add(Verdict::Mislabelled, "J.3",
          fmt::format("{}: the prompt had {:.0f} tokens, not {}", short_name(*entry), tokens,
                      *claim_.prompt_tokens));
    }
    for (const NominalPrompt& prompt : nominal) {
      if (tokens == static_cast<double>(prompt.least) ||
          tokens == static_cast<double>(prompt.most)) {
        continue;
      }
      add(Verdict::Mislabelled, "J.3",
          fmt::format("{}: '{}' is said of a prompt of {:.0f} tokens", short_name(*entry),
                      prompt.words, tokens));
    }
  }
}

// A warm start from a profile of the very text that is measured hits more than it would elsewhere.
void ClaimWork::in_sample() {
  bool hits = false;
  for (const std::string& pointer : arm_.pointers) {
    hits = hits || pointer.find("/uses_") != std::string::npos ||
           pointer.find("_share") != std::string::npos ||
           pointer.find("misses_per_token") != std::string::npos;
  }
  if (!hits && arm_.phases.count("decode") == 0) return;
  const std::string words = lower(claim_.text);
  for (const Archived* entry : arm_.entries) {
    const char* const where =
        entry->schema == kPeerSchema ? "/settings/profile" : "/inputs/profile";
    const Json* profile = resolve_pointer(entry->value, where);
    if (!entry->is_record() || profile == nullptr || profile->is_null()) continue;
    if (!claim_.in_sample) {
      add(Verdict::Mislabelled, "R6",
          fmt::format("{} began warm, from a profile: whether that was made from this text (in "
                      "sample) is not said",
                      short_name(*entry)));
      continue;
    }
    const Json* text = resolve_pointer(*profile, "/tokens_sha256");
    const Json* prompt =
        resolve_pointer(entry->value, entry->schema == kPeerSchema ? "/inputs/prompt/file"
                                                                   : "/turns/-1/prompt/file");
    const Json* overlap = resolve_pointer(*profile, "/overlap");
    const bool same =
        (text != nullptr && prompt != nullptr && text->is_string() && *text == *prompt) ||
        (overlap != nullptr && overlap->is_number() && overlap->get<double>() > 0);
    if (!*claim_.in_sample && same) {
      add(Verdict::Mislabelled, "R6",
          fmt::format("{} began warm from a profile of the same text, and is said not to be in "
                      "sample",
                      short_name(*entry)));
    } else if (*claim_.in_sample && !has_word(words, "in sample")) {
      add(Verdict::Mislabelled, "R6",
          "its profile was made from the text that is measured, and the words do not say "
          "in-sample");
    }
  }
}

bool ClaimWork::compares() const {
  if (claim_.unit.dimension == Dimension::Ratio || claim_.text.find("->") != std::string::npos ||
      claim_.text.find("\u2192") != std::string::npos ||
      std::find(claim_.needs.begin(), claim_.needs.end(), "paired arm") != claim_.needs.end()) {
    return true;
  }
  if (claim_.unit.dimension != Dimension::Percent && claim_.unit.dimension != Dimension::Bytes) {
    return false;
  }
  const std::string& value = claim_.value[0].text;
  if (value.starts_with('-') || value.starts_with('+') || value.starts_with("\u2212")) return true;
  const std::string words = lower(claim_.text);
  for (const char* word : {"faster", "slower", "fewer", "freed", "saved", "saves", "less than",
                           "more than the", "reduction", "vs ", "vs. "}) {
    if (has_word(words, word)) return true;
  }
  return false;
}

// R9: a ratio, a change and a saving are of two arms, and both are named.
void ClaimWork::names_both_arms() {
  if (claim_.against || !compares()) return;
  // A formula over one archived file may have both arms in it.
  const std::string& formula = claim_.source.formula;
  const bool within =
      arm_.pointers.size() >= 2 && (formula.find('/', formula.find('}')) != std::string::npos ||
                                    formula.find(" - ") != std::string::npos);
  if (within) return;
  lacks_arm_ = true;
  std::string hint;
  const std::vector<double>& values = arm_.values;
  if (values.size() >= 2 && claim_.unit.dimension == Dimension::Ratio) {
    std::vector<double> ratios;
    for (const double a : values) {
      for (const double b : values) {
        if (&a != &b && b != 0) ratios.push_back(a / b);
      }
    }
    double best = ratios.empty() ? 0 : ratios[0];
    for (const double ratio : ratios) {
      const double wanted = claim_.value[0].value;
      if (std::abs(ratio - wanted) < std::abs(best - wanted)) best = ratio;
    }
    const Spread spread = spread_of(ratios);
    hint = fmt::format("; between its records ratios are {:.2f} to {:.2f}, nearest {:.2f}",
                       spread.least, spread.most, best);
  }
  add(Verdict::NoSource, "R9",
      "it compares two things and names only one: say in 'against' which runs it is compared with" +
          hint);
}

}  // namespace penstock::measure
