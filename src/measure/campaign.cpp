#include "measure/campaign.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/machine.h"
#include "measure/peer_output.h"
#include "measure/toml_fields.h"

namespace penstock::measure {
namespace {

using Json = nlohmann::json;

bool plain_name(const std::string& name) {
  return !name.empty() && name.size() <= 80 && std::all_of(name.begin(), name.end(), [](char c) {
    return static_cast<unsigned char>(c) >= 0x20 && c != '|' && c != '/' && c != '\\';
  });
}

ArmProgram read_program(const std::string& name, const std::string& where) {
  for (const ArmProgram program :
       {ArmProgram::Penstock, ArmProgram::LlamaServer, ArmProgram::OpenAi, ArmProgram::Command}) {
    if (name == arm_program_name(program)) return program;
  }
  fail(ErrorKind::Format, "{}: program '{}' is not one of penstock, llama-server, openai, command",
       where, name);
}

std::optional<uint64_t> read_size(const std::string& text) {
  if (text.empty()) return std::nullopt;
  return parse_size(text);
}

CampaignPrompt read_prompt(const toml::table& table, const std::string& path) {
  TomlFields f(table, "[[prompt]]", path);
  CampaignPrompt prompt;
  prompt.name = f.text("name");
  prompt.text = f.text("text", "");
  prompt.file = f.text("file", "");
  prompt.random_tokens = static_cast<uint64_t>(f.number("random_tokens", 0, 0, 1 << 20));
  prompt.seed = static_cast<uint64_t>(f.number("seed", 1, 0, 1e15));
  f.finish();
  const int ways = !prompt.text.empty() + !prompt.file.empty() + (prompt.random_tokens != 0);
  if (ways != 1 || !plain_name(prompt.name)) {
    fail(ErrorKind::Format, "{}: a prompt has a name and either text, file or random_tokens", path);
  }
  return prompt;
}

void check_arm(const CampaignArm& arm, const std::string& path) {
  const auto need = [&](bool holds, std::string_view what) {
    if (!holds) fail(ErrorKind::Format, "{}: arm '{}' {}", path, arm.name, what);
  };
  need(plain_name(arm.name), "needs a short name without | / and \\");
  switch (arm.program) {
    case ArmProgram::Penstock:
      need(arm.command.empty() && arm.url.empty() && arm.parser.empty(),
           "runs penstock itself: it has options, no command, url or parser");
      break;
    case ArmProgram::LlamaServer:
      need(arm.command.size() == 1 && arm.url.empty() && arm.parser.empty(),
           "needs 'command', the path of llama-server; what is added to it are options");
      break;
    case ArmProgram::OpenAi:
      need(arm.command.empty() != arm.url.empty() && arm.parser.empty(),
           "needs either a command with {port} or the url of a server that runs");
      break;
    case ArmProgram::Command:
      need(!arm.command.empty() && arm.url.empty(), "needs a command");
      need(std::find(peer_parsers().begin(), peer_parsers().end(), arm.parser) !=
               peer_parsers().end(),
           fmt::format("needs a parser: {}", fmt::join(peer_parsers(), ", ")));
      break;
  }
  for (const std::string& entry : arm.environment) {
    need(entry.find('=') != std::string::npos && entry[0] != '=', "environment is NAME=VALUE");
  }
}

CampaignArm read_arm(const toml::table& table, const std::string& path) {
  TomlFields f(table, "[[arm]]", path);
  CampaignArm arm;
  arm.name = f.text("name");
  arm.program = read_program(f.text("program", "penstock"), path + ": arm '" + arm.name + "'");
  arm.model = f.text("model", "");
  arm.options = f.texts("options", false);
  arm.command = f.texts("command", false);
  arm.url = f.text("url", "");
  arm.parser = f.text("parser", "");
  arm.version = f.text("version", "");
  arm.environment = f.texts("environment", false);
  arm.limit = read_size(f.text("limit", ""));
  arm.note = f.text("note", "");
  f.finish();
  check_arm(arm, path);
  return arm;
}

template <typename T>
void check_names(const std::vector<T>& list, const char* what, const std::string& path) {
  if (list.empty()) fail(ErrorKind::Format, "{}: no [[{}]]", path, what);
  for (size_t i = 0; i < list.size(); ++i) {
    for (size_t k = 0; k < i; ++k) {
      if (list[i].name == list[k].name) {
        fail(ErrorKind::Format, "{}: two [[{}]] are called '{}'", path, what, list[i].name);
      }
    }
  }
}

}  // namespace

const char* arm_program_name(ArmProgram program) noexcept {
  switch (program) {
    case ArmProgram::Penstock:
      return "penstock";
    case ArmProgram::LlamaServer:
      return "llama-server";
    case ArmProgram::OpenAi:
      return "openai";
    case ArmProgram::Command:
      return "command";
  }
  return "?";
}

Campaign read_campaign(const std::string& text, const std::string& path) {
  const toml::table file = parse_toml(text, path);
  toml::table top;  // the fields beside the arrays
  for (const auto& [key, node] : file) {
    if (key.str() != "arm" && key.str() != "prompt") top.insert(key, node);
  }
  TomlFields f(top, "a campaign", path);
  Campaign c;
  c.name = f.text("name");
  c.description = f.text("description", "");
  c.notes = f.text("notes", "");
  c.model = f.text("model", "");
  c.repeats = static_cast<int>(f.number("repeats", c.repeats, 3, 1000));
  c.tokens = static_cast<uint64_t>(f.number("tokens", static_cast<double>(c.tokens), 2, 1 << 20));
  c.context = static_cast<uint64_t>(f.number("context", 0, 0, 1 << 24));
  c.cold = f.flag("cold", c.cold);
  c.limit = read_size(f.text("limit", ""));
  c.cool_down_s = f.number("cool_down", c.cool_down_s, 0, 3600);
  c.timeout_s = f.number("timeout", c.timeout_s, 1, 86400);
  c.control_limit = f.number("control_limit", c.control_limit, 0.001, 1);
  c.roofline = f.flag("roofline");
  c.min_available = read_size(f.text("min_available", "")).value_or(c.min_available);
  c.swap_limit = read_size(f.text("swap_limit", "")).value_or(c.swap_limit);
  c.max_celsius = f.number("max_celsius", c.max_celsius, 0, 200);
  c.start_wait_s = f.number("start_wait", c.start_wait_s, 0, 86400);
  f.finish();
  if (!plain_name(c.name)) fail(ErrorKind::Format, "{}: 'name' must be a short name", path);
  for (const toml::table* prompt : toml_tables(file, "prompt", path)) {
    c.prompts.push_back(read_prompt(*prompt, path));
  }
  for (const toml::table* arm : toml_tables(file, "arm", path)) {
    c.arms.push_back(read_arm(*arm, path));
  }
  check_names(c.prompts, "prompt", path);
  check_names(c.arms, "arm", path);
  for (const CampaignArm& arm : c.arms) {
    if (arm.model.empty() && c.model.empty()) {
      fail(ErrorKind::Format, "{}: arm '{}' has no model, nor has the campaign", path, arm.name);
    }
  }
  return c;
}

Json campaign_json(const Campaign& c) {
  const auto size = [](const std::optional<uint64_t>& bytes) {
    return bytes ? Json(*bytes) : Json();
  };
  Json out = {{"name", c.name},
              {"description", c.description},
              {"notes", c.notes},
              {"model", c.model},
              {"repeats", c.repeats},
              {"tokens", c.tokens},
              {"context", c.context},
              {"cold", c.cold},
              {"limit", size(c.limit)},
              {"cool_down_s", c.cool_down_s},
              {"timeout_s", c.timeout_s},
              {"control_limit", c.control_limit},
              {"roofline", c.roofline},
              {"min_available", c.min_available},
              {"swap_limit", c.swap_limit},
              {"max_celsius", c.max_celsius},
              {"start_wait_s", c.start_wait_s},
              {"prompts", Json::array()},
              {"arms", Json::array()}};
  for (const CampaignPrompt& prompt : c.prompts) {
    out["prompts"].push_back({{"name", prompt.name},
                              {"text", prompt.text},
                              {"file", prompt.file},
                              {"random_tokens", prompt.random_tokens},
                              {"seed", prompt.seed}});
  }
  for (const CampaignArm& arm : c.arms) {
    out["arms"].push_back({{"name", arm.name},
                           {"program", arm_program_name(arm.program)},
                           {"model", arm.model},
                           {"options", arm.options},
                           {"command", arm.command},
                           {"url", arm.url},
                           {"parser", arm.parser},
                           {"version", arm.version},
                           {"environment", arm.environment},
                           {"limit", size(arm.limit ? arm.limit : c.limit)},
                           {"note", arm.note}});
  }
  return out;
}

std::vector<CampaignRun> campaign_schedule(const Campaign& campaign) {
  std::vector<CampaignRun> runs;
  const size_t n = campaign.arms.size();
  for (int repeat = 0; repeat < campaign.repeats; ++repeat) {
    for (size_t prompt = 0; prompt < campaign.prompts.size(); ++prompt) {
      for (size_t i = 0; i < n; ++i) {
        runs.push_back(
            {.arm = repeat % 2 == 0 ? i : n - 1 - i, .prompt = prompt, .repeat = repeat});
      }
    }
  }
  for (int repeat = 0; repeat < std::min(campaign.repeats, 3); ++repeat) {
    runs.push_back({.arm = 0, .prompt = 0, .repeat = repeat, .control = true});
  }
  return runs;
}

}  // namespace penstock::measure
