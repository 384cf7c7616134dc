// penstock recipe: runs a recipe's commands, each once, and prints what came out.
#include "measure/recipe.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/digest.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/run_record.h"
#include "cli/version.h"
#include "gguf/model.h"

extern char** environ;

namespace penstock::cli {
namespace {

namespace fs = std::filesystem;
using measure::Recipe;
using measure::RecipeStep;
using Json = nlohmann::ordered_json;

struct Flags {
  std::string file, folder, record;
  bool dry_run = false, json = false, any_build = false;
};

void write_json(const std::string& path, const Json& json) {
  const std::string text = json.dump(1) + "\n";
  AtomicFile file(path);
  file.write(text.data(), text.size());
  file.commit();
}

std::string quoted(const std::string& argument) {
  const bool plain =
      !argument.empty() && argument.find_first_of(" \t\n'\"\\$*?[];&|<>()`") == std::string::npos;
  if (plain) return argument;
  std::string out = "'";
  for (const char c : argument) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string command_text(const RecipeStep& step) {
  std::string text = "penstock";
  for (const std::string& argument : step.command) text += " " + quoted(argument);
  return text;
}

// What a step's result depends on that no other step made.
std::string identity_of(const std::string& path) {
  if (path.ends_with(".gguf")) {
    return hex(gguf::Model::open(path, {.allow_missing_experts = true}).model_id());
  }
  return hex(sha256_file(path));
}

// Of all shards.
uint64_t model_bytes(const std::string& path) {
  uint64_t bytes = 0;
  const gguf::Model model = gguf::Model::open(path, {.allow_missing_experts = true});
  for (const gguf::Shard& shard : model.shards()) bytes += fs::file_size(shard.path);
  return bytes;
}

// Throws Error(Cancelled) on Ctrl-C; else the child's status, as waitpid() gives it.
int wait_for(pid_t child, const std::string& step) {
  int status = 0;
  bool told = false;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) fail(ErrorKind::Io, "waiting for a step: {}", std::strerror(errno));
    // Ctrl-C reaches the child by itself, a signal to this process alone does not.
    if (interrupt_flag() && !told) kill(child, SIGTERM);
    told = interrupt_flag();
  }
  if (interrupt_flag()) {
    fail(ErrorKind::Cancelled, "interrupted in step {}: the same command goes on", step);
  }
  return status;
}

class Kitchen {
 public:
  // `any_build`: what another build of the program made counts as made.
  Kitchen(const Recipe& recipe, std::string folder, bool any_build)
      : recipe_(recipe),
        folder_(std::move(folder)),
        steps_folder_(folder_ + "/steps"),
        any_build_(any_build),
        executable_(hex(sha256_file("/proc/self/exe"))) {
    const gguf::Model source = gguf::Model::open(recipe.model, {.allow_missing_experts = true});
    measure::ExpertCounts counts;
    counts.pruned = source.metadata().has("penstock.prune.original_counts");
    for (const gguf::Tensor& tensor : source.tensors()) {
      if (!gguf::is_expert_bank(tensor.name) ||
          tensor.name.find("ffn_down_exps") == std::string::npos) {
        continue;
      }
      ++counts.layers;
      counts.experts += tensor.ne[2];
    }
    if (counts.layers == 0) {
      fail(ErrorKind::Usage, "{} has no routed experts: nothing to prune or stream", recipe.model);
    }
    steps_ = measure::recipe_steps(recipe, folder_, counts);
  }

  void print() const {
    for (const RecipeStep& step : steps_) fmt::print("{}\n", command_text(step));
  }

  void run() {
    std::error_code error;
    fs::create_directories(steps_folder_, error);
    if (error) fail(ErrorKind::Io, "{}: {}", steps_folder_, error.message());
    size_t number = 0;
    for (const RecipeStep& step : steps_) {
      ++number;
      const std::string key = key_of(step);
      Json stamp = read_stamp(step);
      if (!done(step, key, stamp)) {
        log::info("step {} of {}: {}", number, steps_.size(), command_text(step));
        stamp = execute(step, key);
      }
      const std::string build = stamp["executable_sha256"];
      // What another build made is another thing, whether or not it is taken.
      for (const std::string& output : step.outputs) made_[output] = key + "\n" + build;
      programs_[build] = stamp["program"];
      if (step.json) results_[step.name] = read_result(step);
    }
  }

  // Every command, how long it took and which build ran it.
  Json commands() const {
    Json out = Json::array();
    for (const RecipeStep& step : steps_) {
      Json stamp = read_stamp(step);
      stamp.erase("key");
      out.push_back(std::move(stamp));
    }
    return out;
  }

  // Everything that was measured, and the builds of the program that did.
  Json result() const {
    std::map<std::string, uint64_t> bytes = {{"source", model_bytes(recipe_.model)}};
    for (const measure::RecipeArm& arm : recipe_.arms) {
      bytes[arm.name] = model_bytes(measure::model_of(recipe_, arm, folder_));
    }
    Json out = measure::recipe_result(recipe_, results_, bytes);
    Json& builds = out["programs"] = Json::array();
    for (const auto& [executable, program] : programs_) {
      builds.push_back({{"program", program}, {"executable_sha256", executable}});
    }
    return out;
  }

 private:
  std::string stamp_path(const RecipeStep& step) const {
    return steps_folder_ + "/" + step.name + ".json";
  }
  std::string output_path(const RecipeStep& step) const {
    return steps_folder_ + "/" + step.name + ".out";
  }

  // The command and everything that it reads: a step of another key is another step. The build
  // that ran it is in the stamp.
  std::string key_of(const RecipeStep& step) {
    std::string text = command_text(step);
    for (const std::string& input : step.inputs) {
      auto known = made_.find(input);
      if (known == made_.end()) known = made_.emplace(input, identity_of(input)).first;
      text += "\n" + known->second;
    }
    return hex(sha256(text));
  }

  // What is known of the step's last run; null: nothing.
  Json read_stamp(const RecipeStep& step) const {
    std::error_code error;
    if (!fs::exists(stamp_path(step), error)) return nullptr;
    Json stamp = Json::parse(read_text_file(stamp_path(step)), nullptr, false);
    const auto text = [&](const char* field) {
      return stamp.is_object() && stamp.contains(field) && stamp[field].is_string();
    };
    return text("key") && text("program") && text("executable_sha256") ? stamp : Json();
  }

  bool done(const RecipeStep& step, const std::string& key, const Json& stamp) const {
    if (stamp.is_null() || stamp["key"] != key) return false;
    if (!any_build_ && stamp["executable_sha256"] != executable_) return false;
    std::error_code error;
    for (const std::string& output : step.outputs) {
      if (!fs::exists(output, error)) return false;
    }
    return true;
  }

  // Starts a step; its standard output goes into a file.
  pid_t start(const RecipeStep& step) const {
    std::vector<std::string> words = {"penstock"};
    words.insert(words.end(), step.command.begin(), step.command.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    const std::string out = output_path(step);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, out.c_str(),
                                     O_WRONLY | O_CREAT | O_TRUNC, 0644);
    pid_t child = 0;
    const int error =
        posix_spawn(&child, "/proc/self/exe", &actions, nullptr, argv.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    if (error != 0) fail(ErrorKind::Io, "starting a step: {}", std::strerror(error));
    return child;
  }

  // Returns its stamp.
  Json execute(const RecipeStep& step, const std::string& key) const {
    // What is made half is of no key.
    std::error_code ignored;
    fs::remove(stamp_path(step), ignored);
    const int64_t began = now_ns();
    const int status = wait_for(start(step), step.name);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
      const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
      throw Error(
          code >= 2 && code <= 8 ? static_cast<ErrorKind>(code) : ErrorKind::Internal,
          fmt::format("step {} failed ({}). It ran:\n  {}\nThe same command goes on from here",
                      step.name,
                      WIFEXITED(status) ? fmt::format("exit code {}", code)
                                        : fmt::format("signal {}", WTERMSIG(status)),
                      command_text(step)));
    }
    Json stamp = {{"step", step.name},
                  {"key", key},
                  {"command", step.command},
                  {"program", version_number()},
                  {"executable_sha256", executable_},
                  {"seconds", seconds_since(began)}};
    write_json(stamp_path(step), stamp);
    return stamp;
  }

  nlohmann::json read_result(const RecipeStep& step) const {
    auto json = nlohmann::json::parse(read_text_file(output_path(step)), nullptr, false);
    if (json.is_discarded()) {
      fail(ErrorKind::Format, "{} is no JSON: remove it and {}, and run the recipe again",
           output_path(step), stamp_path(step));
    }
    return json;
  }

  const Recipe& recipe_;
  std::string folder_, steps_folder_;
  bool any_build_;
  std::string executable_;  // this program's SHA-256
  std::vector<RecipeStep> steps_;
  // Path: key and build of the step that made it, or its identity.
  std::map<std::string, std::string> made_;
  std::map<std::string, std::string> programs_;  // executable's SHA-256: version
  std::map<std::string, nlohmann::json> results_;
};

int run_recipe(const Flags& flags, RunRecord& record) {
  const Recipe recipe = measure::read_recipe(flags.file);
  const std::string text = read_text_file(flags.file);
  std::string folder = flags.folder;
  if (folder.empty()) folder = fs::path(flags.file).replace_extension(".work").string();
  Kitchen kitchen(recipe, folder, flags.any_build);
  if (flags.dry_run) {
    kitchen.print();
    return 0;
  }
  interrupt_flag();
  kitchen.run();
  Json result = {{"schema", "penstock-recipe-result-1"},
                 {"program", version_number()},
                 {"recipe_sha256", hex(sha256(text))}};
  result.update(kitchen.result());
  if (result["programs"].size() > 1) {
    log::warn("{} builds of the program made this: result.json names them",
              result["programs"].size());
  }
  write_json(folder + "/result.json", result);
  fmt::print("{}", flags.json ? result.dump(1) + "\n" : measure::recipe_table(result));
  log::info("all of it: {}/result.json", folder);
  record.cooked(recipe.model, text, kitchen.commands(), std::move(result));
  return 0;
}

}  // namespace

void add_recipe(CLI::App& app, Action* action) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand(
      "recipe", "Runs a recipe: calibrate, prune, requantise, pack and judge, from one file.");
  command->footer(
      "A recipe is a TOML file (docs/recipes.md). Every step is a command that can be run by "
      "hand:\n"
      "--dry-run prints them. What is done is not done again; an interrupted recipe goes on.");
  command->add_option("recipe", flags->file, "the recipe")->required();
  command->add_option("--work", flags->folder, "folder for what it makes; default RECIPE.work");
  CLI::Option* dry = command->add_flag("--dry-run", flags->dry_run, "print the commands, run none");
  command->add_flag("--json", flags->json, "the result as JSON");
  command
      ->add_option("--record", flags->record,
                   "writes a run record with the commands and the result into this folder")
      ->excludes(command->add_flag("--any-build", flags->any_build,
                                   "what another build of the program has made is not made again"))
      ->excludes(dry);
  command->callback([flags, action] {
    *action = [flags] {
      return recorded(flags->record, [&](RunRecord& record) { return run_recipe(*flags, record); });
    };
  });
}

}  // namespace penstock::cli
