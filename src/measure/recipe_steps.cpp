// The commands that a recipe comes down to.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "measure/recipe.h"

namespace penstock::measure {
namespace {

using Words = std::vector<std::string>;

Words with(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

std::string in(const std::string& folder, const std::string& name) {
  return folder + "/" + name;
}

const RecipeArm* arm_called(const Recipe& recipe, const std::string& name) {
  for (const RecipeArm& arm : recipe.arms) {
    if (arm.name == name) return &arm;
  }
  return nullptr;
}

// What an arm is made from.
std::string origin_of(const Recipe& recipe, const RecipeArm& arm, const std::string& folder) {
  if (!arm.model.empty()) return arm.model;
  const RecipeArm* from = arm_called(recipe, arm.from);
  return from != nullptr ? model_of(recipe, *from, folder) : recipe.model;
}

// The last arm before this one that left experts out; null: it is made of all of them.
const RecipeArm* pruned_before(const Recipe& recipe, const RecipeArm& arm) {
  const RecipeArm* from = arm_called(recipe, arm.from);
  if (from == nullptr || from->pruned()) return from;
  return pruned_before(recipe, *from);
}

// Whether a later arm needs the importance matrix cut to this arm's experts.
bool slice_wanted(const Recipe& recipe, const RecipeArm& arm) {
  return std::any_of(recipe.arms.begin(), recipe.arms.end(), [&](const RecipeArm& other) {
    return pruned_before(recipe, other) == &arm &&
           (other.importance || (other.pruned() && slice_wanted(recipe, other)));
  });
}

bool by_statistics(const RecipeArm& arm) {
  return arm.pruned() && (arm.method != "random" || arm.protect_outliers);
}

// Routed experts of an arm's layers together, rounded in each as `prune` rounds.
uint64_t experts_of(const Recipe& recipe, const RecipeArm& arm, const ExpertCounts& source) {
  const RecipeArm* before = pruned_before(recipe, arm);
  const uint64_t n = before != nullptr ? experts_of(recipe, *before, source) : source.experts;
  if (!arm.pruned()) return n;
  const double value = std::strtod(arm.keep.c_str(), nullptr);
  const bool percent = arm.keep.ends_with('%');
  const auto layers = static_cast<double>(source.layers);
  const bool count = !percent && arm.keep.find('.') == std::string::npos;
  const double per_layer =
      count ? value : (percent ? value / 100 : value) * static_cast<double>(n) / layers;
  return static_cast<uint64_t>(std::llround(per_layer)) * source.layers;
}

std::string slots_of(const Recipe& recipe, const RecipeArm& arm, const ExpertCounts& source) {
  const auto n = static_cast<double>(experts_of(recipe, arm, source));
  return fmt::format("{}", std::max<uint64_t>(1, static_cast<uint64_t>(recipe.arena * n)));
}

// Which experts stay.
void add_choice(const RecipeArm& arm, const std::string& folder, RecipeStep* step) {
  Words& c = step->command;
  c = with(std::move(c), {"--keep", arm.keep, "--method", arm.method});
  if (by_statistics(arm)) {
    c = with(std::move(c), {"--stats", in(folder, "stats.gguf")});
    step->inputs.push_back(in(folder, "stats.gguf"));
    if (!arm.from.empty() || !arm.model.empty()) c.emplace_back("--other-model");
  }
  if (arm.method == "random") c = with(std::move(c), {"--seed", fmt::format("{}", arm.seed)});
  if (arm.per_layer) c.emplace_back("--per-layer");
  if (arm.protect_outliers) c.emplace_back("--protect-outliers");
  step->outputs.push_back(in(folder, arm.name + ".keep.json"));
  c = with(std::move(c), {"--write-keep-map", step->outputs.back()});
}

void add_types(const RecipeArm& arm, RecipeStep* step) {
  for (const auto& [flag, type] :
       {std::pair("--experts", &arm.experts), std::pair("--dense", &arm.dense),
        std::pair("--embedding", &arm.embedding), std::pair("--head", &arm.head)}) {
    if (!type->empty()) step->command = with(std::move(step->command), {flag, *type});
  }
  for (const std::string& rule : arm.keep_type) {
    step->command = with(std::move(step->command), {"--keep-type", rule});
  }
}

// Of a model that was pruned before: that arm's slice of it.
void add_importance(const Recipe& recipe, const RecipeArm& arm, const std::string& folder,
                    RecipeStep* step) {
  const bool slice = arm.pruned() && slice_wanted(recipe, arm);
  if (!arm.importance && !slice) return;
  const RecipeArm* before = pruned_before(recipe, arm);
  const std::string given =
      in(folder, (before == nullptr ? "" : before->name + ".") + "imatrix.gguf");
  step->command = with(std::move(step->command), {"--imatrix", given});
  step->inputs.push_back(given);
  if (!slice) return;
  step->outputs.push_back(in(folder, arm.name + ".imatrix.gguf"));
  step->command = with(std::move(step->command), {"--imatrix-out", step->outputs.back()});
}

RecipeStep build_step(const Recipe& recipe, const RecipeArm& arm, const std::string& folder) {
  const std::string source = origin_of(recipe, arm, folder);
  RecipeStep step;
  step.name = arm.name + ".build";
  step.inputs = {source};
  step.outputs = {in(folder, arm.name + ".gguf"), in(folder, arm.name + ".report.json")};
  step.command = {arm.pruned() ? "prune" : "requantise",
                  source,
                  "-o",
                  step.outputs[0],
                  "--force",
                  "--json",
                  step.outputs[1]};
  if (arm.pruned()) add_choice(arm, folder, &step);
  add_types(arm, &step);
  add_importance(recipe, arm, folder, &step);
  return step;
}

RecipeStep pack_step(const Recipe& recipe, const RecipeArm& arm, const std::string& folder) {
  const std::string model = model_of(recipe, arm, folder);
  const std::string pack = in(folder, arm.name + ".xpk");
  RecipeStep step{arm.name + ".pack", {"pack", model, "-o", pack}, {model}, {pack}, false};
  if (!arm.pack_align.empty()) {
    step.command = with(std::move(step.command), {"--align", arm.pack_align});
  }
  if (arm.pack_content_id) step.command.emplace_back("--content-id");
  return step;
}

RecipeStep calibrate_step(const Recipe& recipe, const std::string& folder) {
  RecipeStep step{"calibrate",
                  with({"calibrate", recipe.model, "-o", in(folder, "stats.gguf"), "--imatrix-out",
                        in(folder, "imatrix.gguf"), "--window",
                        fmt::format("{}", recipe.calibration_window), "--text"},
                       recipe.calibration_text),
                  recipe.calibration_text,
                  {in(folder, "stats.gguf"), in(folder, "imatrix.gguf")},
                  false};
  step.inputs.push_back(recipe.model);
  return step;
}

// The distributions that others are compared with.
RecipeStep base_step(const Recipe& recipe, const std::string& name, const std::string& model,
                     const std::string& logits) {
  return {name,
          with({"eval", "perplexity", model, "--json", "--base-out", logits, "--window",
                fmt::format("{}", recipe.window), "--text"},
               recipe.text),
          with(recipe.text, {model}),
          {logits},
          true};
}

RecipeStep source_step(const Recipe& recipe, const std::string& folder) {
  RecipeStep step = base_step(recipe, "source", recipe.model, in(folder, "base.logits"));
  if (recipe.calibration_text.empty()) return step;
  step.command.emplace_back("--held-out-from");
  step.command = with(std::move(step.command), recipe.calibration_text);
  step.inputs = with(std::move(step.inputs), recipe.calibration_text);
  return step;
}

std::string arm_logits(const std::string& folder, const std::string& arm) {
  return in(folder, arm + ".as-base.logits");
}

RecipeStep kld_step(const Recipe& recipe, const std::string& name, const std::string& model,
                    const std::string& base, const Words& flags) {
  return {name,
          with(with({"eval", "kld", model, "--base", base, "--json", "--window",
                     fmt::format("{}", recipe.window), "--text"},
                    recipe.text),
               flags),
          with({model, base}, recipe.text),
          {},
          true};
}

Words routing_flags(const RecipeRouting& routing) {
  switch (routing.kind) {
    case RecipeRouting::Kind::Exact:
      return {};
    case RecipeRouting::Kind::Bonus:
      return {"--moce",           "bonus", "--moce-bonus", fmt::format("{}", routing.value),
              "--moce-residency", "epoch"};
    case RecipeRouting::Kind::Prior:
      return {"--moce",           "prior", "--moce-lambda", fmt::format("{}", routing.value),
              "--moce-residency", "epoch"};
  }
  return {};
}

// How one row is judged: against the source, against its base, by tasks.
void add_judging(const Recipe& recipe, const RecipeArm& arm, const RecipeRouting& routing,
                 const std::string& folder, const std::string& slots,
                 std::vector<RecipeStep>* steps) {
  const std::string model = model_of(recipe, arm, folder), name = recipe_row_name(arm, routing);
  Words flags = routing_flags(routing);
  if (!flags.empty()) flags = with(std::move(flags), {"--arena-slots", slots});
  const Words stepwise = flags.empty() ? flags : with(flags, {"--step-mode"});
  steps->push_back(kld_step(recipe, name + ".kld", model, in(folder, "base.logits"), stepwise));
  if (!arm.base.empty()) {
    // No quality record: those speak of the distance from the source.
    steps->push_back(kld_step(recipe, name + ".against", model, arm_logits(folder, arm.base),
                              with(stepwise, {"--no-record"})));
  }
  if (recipe.tasks.empty()) return;
  steps->push_back({name + ".tasks",
                    with({"eval", "tasks", model, "--tasks", recipe.tasks, "--json", "--max-tokens",
                          fmt::format("{}", recipe.max_tokens)},
                         flags),
                    {model, recipe.tasks},
                    {},
                    true});
}

void add_speed(const Recipe& recipe, const RecipeArm& arm, const RecipeRouting& routing,
               const std::string& folder, const std::string& slots,
               std::vector<RecipeStep>* steps) {
  const std::string model = model_of(recipe, arm, folder);
  Words command =
      with({"run", "-m", model, "--file", recipe.prompt, "-n",
            fmt::format("{}", recipe.speed_tokens), "--temp", "0", "--ignore-eos", "--json", "-q"},
           with(routing_flags(routing), {"--arena-slots", slots}));
  if (arm.pack) command = with(std::move(command), {"--pack", in(folder, arm.name + ".xpk")});
  for (int r = 0; r < recipe.speed_runs; ++r) {
    steps->push_back({fmt::format("{}.speed-{}", recipe_row_name(arm, routing), r + 1),
                      command,
                      {model, recipe.prompt},
                      {},
                      true});
  }
}

// Round by round, there and back, so that a slow stretch of the machine meets all arms. `speed`:
// every row's runs, one row after the other.
std::vector<RecipeStep> interleaved(std::vector<RecipeStep> speed, size_t runs) {
  std::vector<RecipeStep> steps;
  const size_t n_rows = speed.size() / runs;
  for (size_t r = 0; r < runs; ++r) {
    for (size_t i = 0; i < n_rows; ++i) {
      const size_t row = r % 2 == 0 ? i : n_rows - 1 - i;
      steps.push_back(std::move(speed[row * runs + r]));
    }
  }
  return steps;
}

void add_arm_logits(const Recipe& recipe, const std::string& folder,
                    std::vector<RecipeStep>* steps) {
  for (const RecipeArm& arm : recipe.arms) {
    const bool wanted = std::any_of(recipe.arms.begin(), recipe.arms.end(),
                                    [&](const RecipeArm& other) { return other.base == arm.name; });
    if (!wanted) continue;
    steps->push_back(base_step(recipe, arm.name + ".as-base", model_of(recipe, arm, folder),
                               arm_logits(folder, arm.name)));
  }
}

// Statistics name experts by their places in the source, a pruned file's keys by those in the
// model that was pruned first.
void check_source(const Recipe& recipe, const ExpertCounts& source) {
  if (!source.pruned) return;
  for (const RecipeArm& arm : recipe.arms) {
    if (!by_statistics(arm) || pruned_before(recipe, arm) == nullptr) continue;
    fail(ErrorKind::Usage,
         "arm '{}' prunes what arm '{}' has pruned, and {} is a pruned model already: its "
         "statistics cannot be followed through both; make '{}' from the source at once",
         arm.name, pruned_before(recipe, arm)->name, recipe.model, arm.name);
  }
}

}  // namespace

std::string recipe_row_name(const RecipeArm& arm, const RecipeRouting& routing) {
  return arm.name + "." + routing.name();
}

std::string model_of(const Recipe& recipe, const RecipeArm& arm, const std::string& folder) {
  if (arm.pruned() || arm.requantised()) return in(folder, arm.name + ".gguf");
  return origin_of(recipe, arm, folder);
}

std::vector<RecipeStep> recipe_steps(const Recipe& recipe, const std::string& folder,
                                     const ExpertCounts& source) {
  check_source(recipe, source);
  std::vector<RecipeStep> steps;
  if (!recipe.calibration_text.empty()) steps.push_back(calibrate_step(recipe, folder));
  steps.push_back(source_step(recipe, folder));
  for (const RecipeArm& arm : recipe.arms) {
    if (arm.pruned() || arm.requantised()) steps.push_back(build_step(recipe, arm, folder));
    if (arm.pack) steps.push_back(pack_step(recipe, arm, folder));
  }
  // Judged after all are made: a mistake in the last arm shows before hours of measuring.
  add_arm_logits(recipe, folder, &steps);
  std::vector<RecipeStep> speed;
  for (const RecipeArm& arm : recipe.arms) {
    const std::string slots = slots_of(recipe, arm, source);
    for (const RecipeRouting& routing : arm.routings) {
      add_judging(recipe, arm, routing, folder, slots, &steps);
      if (!recipe.prompt.empty()) add_speed(recipe, arm, routing, folder, slots, &speed);
    }
  }
  const auto runs = static_cast<size_t>(std::max(1, recipe.speed_runs));
  for (RecipeStep& step : interleaved(std::move(speed), runs)) steps.push_back(std::move(step));
  return steps;
}

}  // namespace penstock::measure
