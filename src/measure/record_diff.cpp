#include "measure/record_diff.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "measure/formula.h"
#include "measure/record.h"

namespace penstock::measure {
namespace {

using Json = nlohmann::json;
using Facts = std::map<std::string, std::string>;

std::string valid_text(const std::string& text) {
  // The JSON writer replaces what is no UTF-8.
  const std::string quoted = Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
  std::string out = Json::parse(quoted).get<std::string>();
  std::replace_if(
      out.begin(), out.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20; }, ' ');
  return out;
}

std::string value_text(const Json& value) {
  if (value.is_string()) {
    const std::string& text = value.get_ref<const std::string&>();
    return text.starts_with('/') ? shown_name(text) : valid_text(text);
  }
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Leaves of an object, by their path; lists count as leaves.
void flatten(const Json& value, const std::string& name, Facts* out) {
  if (!value.is_object()) {
    (*out)[name] = value_text(value);
    return;
  }
  for (const auto& [key, member] : value.items()) flatten(member, name + "/" + key, out);
}

void put(const Json& record, const char* pointer, const char* name, Facts* out) {
  const Json* found = resolve_pointer(record, pointer);
  if (found != nullptr && !found->is_null()) (*out)[name] = value_text(*found);
}

void put_hash(const Json& record, const char* pointer, const char* name, Facts* out) {
  const Json* found = resolve_pointer(record, pointer);
  if (found == nullptr || !found->is_string()) return;
  const std::string text = valid_text(found->get<std::string>());
  if (!text.empty()) (*out)[name] = text.substr(0, std::min<size_t>(12, text.size()));
}

std::string text_at(const Json& record, const char* pointer) {
  const Json* found = resolve_pointer(record, pointer);
  return found != nullptr && found->is_string() ? found->get<std::string>() : std::string();
}

bool is_number(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789.eE+-") == std::string::npos &&
         text.find_first_of("0123456789") != std::string::npos;
}

// Settings that an option decides beside those that bear its name.
const std::map<std::string, std::vector<std::string>>& consequences() {
  static const std::map<std::string, std::vector<std::string>> table = {
      {"arena_slots", {"slots"}},
      {"memory", {"slots", "arena_slots", "n_ctx", "prompt_chunk"}},
      {"m", {"slots"}},
      {"model", {"slots"}},
      {"ctx", {"n_ctx", "slots"}},
      {"c", {"n_ctx", "slots"}},
      {"n", {"n_predict", "max_tokens"}},
      {"t", {"threads"}},
      {"temp", {"temperature"}},
      {"hot_cap", {"hot_share"}},
      {"repeat_penalty", {"repetition_penalty"}},
      {"chunk", {"prompt_chunk"}},
      {"exact", {"precision"}},
      {"isa", {"kernels"}},
      {"profile", {"fill"}},
      {"kv", {"kv_type"}},
  };
  return table;
}

bool decides(const std::string& option, const std::string& path) {
  const std::string setting = path.substr(path.rfind('/') + 1);
  if (setting == option || setting.starts_with(option + "_")) return true;
  const auto found = consequences().find(option);
  return found != consequences().end() &&
         std::find(found->second.begin(), found->second.end(), setting) != found->second.end();
}

std::vector<std::string> changed_options(const Json& a, const Json& b) {
  const auto argv = [](const Json& record) {
    const auto found = record.find("argv");
    return found == record.end() ? Json() : *found;
  };
  const auto left = options_of(argv(a)), right = options_of(argv(b));
  std::vector<std::string> out;
  for (const auto& [name, values] : left) {
    const auto other = right.find(name);
    if (other == right.end() || other->second != values) out.push_back(name);
  }
  for (const auto& [name, values] : right) {
    if (left.count(name) == 0) out.push_back(name);
  }
  return out;
}

// Facts that options decide although they are no settings.
bool decides_fact(const std::string& option, const std::string& kind, const std::string& name) {
  if (kind == "settings") return decides(option, name);
  if (kind != "identity") return false;
  if (name == "lossy" || name == "quality key")
    return option == "moce" || option == "dense_convert" || option == "alias_experts";
  if (name.starts_with("model")) return option == "m" || option == "model";
  if (name.starts_with("pack")) return option.starts_with("pack") || option == "no_pack";
  return name.starts_with("profile") && option.starts_with("profile");
}

}  // namespace

std::string shown_name(const std::string& path) {
  const std::string name = std::filesystem::path(path).filename().string();
  return valid_text(name.empty() ? path : name);
}

std::map<std::string, std::vector<std::string>> options_of(const Json& argv) {
  std::map<std::string, std::vector<std::string>> out;
  if (!argv.is_array()) return out;
  std::string option;
  for (size_t i = 1; i < argv.size(); ++i) {
    if (!argv[i].is_string()) continue;
    const std::string& word = argv[i].get_ref<const std::string&>();
    const bool is_option = word.size() > 1 && word[0] == '-' && !is_number(word);
    if (!is_option) {
      out[option].push_back(word);
      continue;
    }
    const size_t begin = word.find_first_not_of('-');
    if (begin == std::string::npos) continue;
    const size_t equals = word.find('=', begin);
    option = word.substr(begin, equals == std::string::npos ? equals : equals - begin);
    std::replace(option.begin(), option.end(), '-', '_');
    out[option];
    if (equals != std::string::npos) out[option].push_back(word.substr(equals + 1));
  }
  for (const char* own : {"record", "json", "timeline", "trace_routing", "profile_out"}) {
    out.erase(own);
  }
  return out;
}

Facts facts_of(const Json& record) {
  Facts out;
  if (!record.is_object()) return out;
  put(record, "/producer/program", "identity/program", &out);
  put(record, "/producer/version", "identity/version", &out);
  put(record, "/producer/revision", "identity/revision", &out);
  put(record, "/producer/flags", "identity/build flags", &out);
  put(record, "/producer/compiler", "identity/compiler", &out);
  put_hash(record, "/producer/diff_sha256", "identity/source difference", &out);
  put_hash(record, "/producer/executable_sha256", "identity/executable", &out);
  put_hash(record, "/inputs/model/model_id", "identity/model", &out);
  if (const std::string path = text_at(record, "/inputs/model/path"); !path.empty()) {
    out["identity/model file"] = shown_name(path);
  }
  put_hash(record, "/inputs/keep_map_id", "identity/keep-map", &out);
  put_hash(record, "/inputs/quant_recipe_id", "identity/quantisation recipe", &out);
  put_hash(record, "/inputs/pack/pack_id", "identity/pack", &out);
  put_hash(record, "/inputs/profile/sha256", "identity/profile", &out);
  // Our own records have the limit as the machine's, those of peers as what was set for them.
  const bool ours = text_at(record, "/schema") == kRecordSchema;
  put(record, ours ? "/machine/cgroup/limit" : "/limit/bytes", "identity/memory limit", &out);
  put_hash(record, "/quality_key", "identity/quality key", &out);
  if (const auto lossy = record.find("lossy"); lossy != record.end() && lossy->is_array()) {
    std::string names;
    for (const Json& name : *lossy) names += (names.empty() ? "" : ", ") + value_text(name);
    out["identity/lossy"] = names.empty() ? "none" : names;
  }
  for (const char* kind : {"settings", "environment"}) {
    const auto found = record.find(kind);
    if (found == record.end() || !found->is_object()) continue;
    for (const auto& [key, member] : found->items()) {
      flatten(member, std::string(kind) + "/" + valid_text(key), &out);
    }
  }
  // A seed decides nothing where the most likely token is always taken.
  for (const char* group : {"settings", "settings/sampling"}) {
    const Json* temperature = resolve_pointer(record, fmt::format("/{}/temperature", group));
    if (temperature != nullptr && *temperature == 0) out.erase(fmt::format("{}/seed", group));
  }
  out.erase("settings/request");  // which of a server's requests it was
  put(record, "/machine/cpu/model", "machine/processor", &out);
  put(record, "/machine/cpu/logical", "machine/logical processors", &out);
  put(record, "/machine/cpu/governor", "machine/governor", &out);
  put(record, "/machine/memory/total", "machine/memory", &out);
  put(record, "/machine/kernel/release", "machine/kernel", &out);
  put(record, "/machine/device/class", "machine/disk", &out);
  put(record, "/machine/device/model", "machine/disk model", &out);
  return out;
}

std::vector<Difference> differences_of(const Json& a, const Json& b) {
  const Facts left = facts_of(a), right = facts_of(b);
  std::set<std::string> names;
  for (const auto& [name, value] : left) names.insert(name);
  for (const auto& [name, value] : right) names.insert(name);
  const bool one_program =
      text_at(a, "/producer/program") == text_at(b, "/producer/program") && a.contains("producer");
  const std::vector<std::string> options =
      one_program ? changed_options(a, b) : std::vector<std::string>();
  std::vector<Difference> out;
  for (const char* kind : {"identity", "settings", "environment", "machine"}) {
    if (!one_program && kind == std::string("settings")) continue;
    for (const std::string& full : names) {
      const size_t slash = full.find('/');
      if (full.compare(0, slash, kind) != 0) continue;
      const auto x = left.find(full), y = right.find(full);
      Difference d{kind, full.substr(slash + 1), x == left.end() ? "-" : x->second,
                   y == right.end() ? "-" : y->second};
      if (d.a == d.b) continue;
      for (const std::string& option : options) {
        d.named = d.named || decides_fact(option, d.kind, d.name);
      }
      out.push_back(std::move(d));
    }
  }
  return out;
}

Workload workload_of(const Json& record) {
  Workload out;
  out.model = text_at(record, "/inputs/model/model_id");
  if (out.model.empty()) {
    const std::string path = text_at(record, "/inputs/model/path");
    if (!path.empty()) out.model = shown_name(path);
  }
  const std::string schema = text_at(record, "/schema");
  const char* const prompt = schema == kRecordSchema ? "/turns/0/prompt" : "/inputs/prompt";
  out.prompt = text_at(record, (std::string(prompt) + "/file").c_str());
  const Json* tokens = resolve_pointer(record, std::string(prompt) + "/tokens");
  if (tokens != nullptr && tokens->is_number()) out.prompt_tokens = tokens->get<double>();
  const auto value = [&](const char* name) {
    const Figure* figure = find_figure(schema, name);
    return figure == nullptr ? std::nullopt : figure_value(*figure, record);
  };
  if (!out.prompt_tokens) out.prompt_tokens = value("prompt_tokens");
  if (why_no_decode(record, 0).empty()) out.decode_tokens = value("decode_tokens");
  out.prompt_text = out.prompt_tokens ? fmt::format("{:.0f} tokens", *out.prompt_tokens) : "";
  if (out.prompt.size() == 64) out.prompt_text += fmt::format(" ({})", out.prompt.substr(0, 8));
  return out;
}

std::vector<std::string> why_uncomparable(const Workload& a, const Workload& b) {
  std::vector<std::string> out;
  const auto name = [](const std::string& text) {
    return text.empty() ? std::string("one that is not named")
                        : text.substr(0, text.size() == 64 ? 12 : std::string::npos);
  };
  if (a.model != b.model || a.model.empty()) {
    out.push_back(fmt::format("different models: {} and {}", name(a.model), name(b.model)));
  }
  const auto count = [](const std::optional<double>& n) {
    return n ? fmt::format("{:.0f}", *n) : std::string("unknown");
  };
  if (a.prompt_tokens != b.prompt_tokens) {
    out.push_back(fmt::format("different prompts: {} and {} tokens", count(a.prompt_tokens),
                              count(b.prompt_tokens)));
  } else if (!a.prompt.empty() && !b.prompt.empty() && a.prompt != b.prompt) {
    out.push_back(fmt::format("different prompts: {} and {}", name(a.prompt), name(b.prompt)));
  }
  if (a.decode_tokens && b.decode_tokens && *a.decode_tokens != *b.decode_tokens) {
    out.push_back(fmt::format("different lengths: {} and {} decode steps", count(a.decode_tokens),
                              count(b.decode_tokens)));
  }
  return out;
}

}  // namespace penstock::measure
