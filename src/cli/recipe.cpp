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
#include "cli/version.h"
#include "gguf/model.h"

extern char** environ;

namespace penstock::cli {
namespace {

namespace fs = std::filesystem;
using measure::Recipe;
using measure::RecipeStep;

struct Flags {
  std::string file, folder;
  bool dry_run = false, json = false;
};

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
  return hex(sha256(read_text_file(path)));
}

class Kitchen {
 public:
  Kitchen(const Recipe& recipe, std::string folder)
      : recipe_(recipe), folder_(std::move(folder)), steps_folder_(folder_ + "/steps") {
    const gguf::Model source = gguf::Model::open(recipe.model, {.allow_missing_experts = true});
    measure::ExpertCounts counts;
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
      if (!done(step, key)) {
        log::info("step {} of {}: {}", number, steps_.size(), command_text(step));
        execute(step, key);
      }
      for (const std::string& output : step.outputs) made_[output] = key;
      if (step.json) results_[step.name] = read_result(step);
    }
  }

  nlohmann::ordered_json rows() const {
    std::map<std::string, uint64_t> bytes;
    for (const measure::RecipeArm& arm : recipe_.arms) {
      std::error_code error;
      const auto size = fs::file_size(measure::model_of(recipe_, arm, folder_), error);
      if (!error) bytes[arm.name] = size;
    }
    return measure::recipe_rows(recipe_, results_, bytes);
  }

 private:
  std::string stamp_path(const RecipeStep& step) const {
    return steps_folder_ + "/" + step.name + ".json";
  }
  std::string output_path(const RecipeStep& step) const {
    return steps_folder_ + "/" + step.name + ".out";
  }

  // The command and everything that it reads: a step of another key is another step.
  std::string key_of(const RecipeStep& step) {
    std::string text = command_text(step);
    for (const std::string& input : step.inputs) {
      auto known = made_.find(input);
      if (known == made_.end()) known = made_.emplace(input, identity_of(input)).first;
      text += "\n" + known->second;
    }
    return hex(sha256(text));
  }

  bool done(const RecipeStep& step, const std::string& key) const {
    std::error_code error;
    if (!fs::exists(stamp_path(step), error)) return false;
    for (const std::string& output : step.outputs) {
      if (!fs::exists(output, error)) return false;
    }
    const auto stamp = nlohmann::json::parse(read_text_file(stamp_path(step)), nullptr, false);
    return stamp.is_object() && stamp.value("key", std::string()) == key;
  }

  void execute(const RecipeStep& step, const std::string& key) const {
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
    const int64_t began = now_ns();
    pid_t child = 0;
    const int error =
        posix_spawn(&child, "/proc/self/exe", &actions, nullptr, argv.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    if (error != 0) fail(ErrorKind::Io, "starting a step: {}", std::strerror(error));
    int status = 0;
    bool told = false;
    while (waitpid(child, &status, 0) < 0) {
      if (errno != EINTR) fail(ErrorKind::Io, "waiting for a step: {}", std::strerror(errno));
      // Ctrl-C reaches the child by itself, a signal to this process alone does not.
      if (interrupt_flag() && !told) kill(child, SIGTERM);
      told = interrupt_flag();
    }
    if (interrupt_flag()) {
      fail(ErrorKind::Cancelled, "interrupted in step {}: the same command goes on", step.name);
    }
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
    const nlohmann::ordered_json stamp = {{"step", step.name},
                                          {"key", key},
                                          {"command", step.command},
                                          {"program", version_number()},
                                          {"seconds", seconds_since(began)}};
    const std::string text = stamp.dump(1) + "\n";
    AtomicFile file(stamp_path(step));
    file.write(text.data(), text.size());
    file.commit();
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
  std::vector<RecipeStep> steps_;
  std::map<std::string, std::string> made_;  // path: key of the step that made it, or its identity
  std::map<std::string, nlohmann::json> results_;
};

int run_recipe(const Flags& flags) {
  const Recipe recipe = measure::read_recipe(flags.file);
  std::string folder = flags.folder;
  if (folder.empty()) folder = fs::path(flags.file).replace_extension(".work").string();
  Kitchen kitchen(recipe, folder);
  if (flags.dry_run) {
    kitchen.print();
    return 0;
  }
  interrupt_flag();
  kitchen.run();
  const nlohmann::ordered_json rows = kitchen.rows();
  const nlohmann::ordered_json result = {{"schema", "penstock-recipe-result-1"},
                                         {"program", version_number()},
                                         {"recipe_sha256", hex(sha256(read_text_file(flags.file)))},
                                         {"rows", rows}};
  const std::string text = result.dump(1) + "\n";
  AtomicFile file(folder + "/result.json");
  file.write(text.data(), text.size());
  file.commit();
  fmt::print("{}", flags.json ? text : measure::recipe_table(rows));
  log::info("all of it: {}/result.json", folder);
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
  command->add_flag("--dry-run", flags->dry_run, "print the commands, run none");
  command->add_flag("--json", flags->json, "the result as JSON");
  command->callback([flags, action] { *action = [flags] { return run_recipe(*flags); }; });
}

}  // namespace penstock::cli
