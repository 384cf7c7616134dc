// A campaign that was run, as a file to run it again.
#include <fmt/format.h>

#include "base/error.h"
#include "measure/campaign.h"
#include "measure/formula.h"

namespace penstock::measure {
namespace {

using Json = nlohmann::json;

// A JSON string or list of strings is a TOML one, but for DEL; nothing for what is empty, null or
// 0.
void line(const Json& from, const char* key, const char* name, std::string* out) {
  const auto found = from.find(key);
  if (found == from.end() || found->is_null() || *found == "" || *found == 0 ||
      (found->is_array() && found->empty())) {
    return;
  }
  const bool size = std::string_view(key) == "limit" || std::string_view(key) == "min_available" ||
                    std::string_view(key) == "swap_limit";
  *out += fmt::format("{} = {}\n", name, size ? Json(found->dump()).dump() : found->dump());
}

void table(const Json& from, const char* title, std::initializer_list<const char*> keys,
           std::string* out) {
  if (!from.is_object()) fail(ErrorKind::Format, "a campaign's {} is no object", title);
  *out += fmt::format("\n[[{}]]\n", title);
  for (const char* key : keys) line(from, key, key, out);
}

}  // namespace

std::string campaign_toml(const Json& manifest, const std::string& path) {
  const Json* definition = resolve_pointer(manifest, "/definition");
  const Json* prompts = resolve_pointer(manifest, "/definition/prompts");
  const Json* arms = resolve_pointer(manifest, "/definition/arms");
  if (prompts == nullptr || arms == nullptr || !prompts->is_array() || !arms->is_array()) {
    fail(ErrorKind::Format, "{}: no manifest of a campaign: it has no definition", path);
  }
  std::string out;
  for (const auto& [key, name] : std::initializer_list<std::pair<const char*, const char*>>{
           {"name", "name"},
           {"description", "description"},
           {"notes", "notes"},
           {"model", "model"},
           {"repeats", "repeats"},
           {"tokens", "tokens"},
           {"context", "context"},
           {"cold", "cold"},
           {"limit", "limit"},
           {"cool_down_s", "cool_down"},
           {"timeout_s", "timeout"},
           {"control_limit", "control_limit"},
           {"roofline", "roofline"},
           {"min_available", "min_available"},
           {"swap_limit", "swap_limit"},
           {"max_celsius", "max_celsius"},
           {"start_wait_s", "start_wait"}}) {
    line(*definition, key, name, &out);
  }
  for (const Json& prompt : *prompts) {
    const bool random = prompt.is_object() && prompt.value("random_tokens", 0.0) > 0;
    table(prompt, "prompt", {"name", "text", "file", "random_tokens"}, &out);
    if (random) line(prompt, "seed", "seed", &out);
  }
  for (const Json& arm : *arms) {
    table(arm, "arm",
          {"name", "program", "model", "options", "command", "url", "parser", "version",
           "environment", "limit", "note"},
          &out);
  }
  return out;
}

}  // namespace penstock::measure
