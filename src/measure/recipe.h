// A recipe: how a model is pruned, requantised, packed and judged, in one file that anyone can run
// again (docs/recipes.md). This is its reading, and the commands it comes down to; `penstock
// recipe` runs them.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace penstock::measure {

// Cache-aware routing of an arm, in runs and when it is judged.
struct RecipeRouting {
  enum class Kind { Exact, Bonus, Prior };
  Kind kind = Kind::Exact;
  double value = 0;  // bonus or lambda
  std::string name() const;
};

struct RecipeArm {
  std::string name;
  std::string model;  // a file that another program made of the source; empty: none
  std::string from;   // another arm's model; empty: the source
  std::string base;   // an arm that it is compared with beside the source; empty: none
  std::string method;
  std::string keep;  // as `prune --keep` takes it; empty: not pruned
  bool per_layer = false, protect_outliers = false;
  uint64_t seed = 1;
  std::string experts, dense, embedding, head;  // types; empty: as they are
  std::vector<std::string> keep_type;           // PATTERN=TYPE
  bool importance = false;
  bool pack = false;
  std::string pack_align;  // as `pack --align` takes it; empty: its default
  bool pack_content_id = false;
  std::vector<RecipeRouting> routings;

  bool pruned() const noexcept { return !keep.empty(); }
  bool requantised() const noexcept {
    return !(experts.empty() && dense.empty() && embedding.empty() && head.empty() &&
             keep_type.empty());
  }
};

struct Recipe {
  std::string model;
  std::vector<std::string> calibration_text;
  int64_t calibration_window = 512;
  std::vector<std::string> text;
  int64_t window = 512;
  std::string tasks;
  int64_t max_tokens = 128;
  std::string prompt;  // a file; empty: no speed is measured
  int64_t speed_tokens = 128;
  int speed_runs = 5;
  double arena = 0.25;  // share of an arm's experts that has slots, in runs and step mode
  std::vector<RecipeArm> arms;
};

// Throws Error(Io); Error(Format) naming the field and its line for what is no recipe: unknown
// fields, wrong types, an arm without a name or twice, `from` or `base` an arm that comes later,
// `from` beside `model`, statistics without [calibrate], pack settings without pack.
Recipe read_recipe(const std::string& path);

// The file with an arm's model; what it is made from, if nothing is done to it.
std::string model_of(const Recipe& recipe, const RecipeArm& arm, const std::string& folder);

// One command, and what it makes.
struct RecipeStep {
  std::string name;                  // of the step, and of its record
  std::vector<std::string> command;  // arguments of `penstock`
  std::vector<std::string> inputs;   // files that decide its result
  std::vector<std::string> outputs;  // files it writes beside its standard output
  bool json = false;                 // its standard output is JSON and kept
};

// Of the source: MoE layers, and routed experts of all of them together.
struct ExpertCounts {
  uint64_t layers = 0, experts = 0;
  bool pruned = false;  // the file says that it had more once
};

// An arm with one routing, as its steps are called: "half.bonus-0.85".
std::string recipe_row_name(const RecipeArm& arm, const RecipeRouting& routing);

// The commands in order; everything they make goes into `folder`. Throws Error(Usage) when an arm
// prunes by statistics what another has pruned and the source is a pruned model itself.
std::vector<RecipeStep> recipe_steps(const Recipe& recipe, const std::string& folder,
                                     const ExpertCounts& source);

// A finished recipe: `source`, with what was measured of it, and `rows`, an arm with one routing
// each, from the JSON of the steps (by step name) and the sizes of the models in bytes (by arm; of
// the source by "source").
nlohmann::ordered_json recipe_result(const Recipe& recipe,
                                     const std::map<std::string, nlohmann::json>& results,
                                     const std::map<std::string, uint64_t>& bytes);
// It as a Markdown table.
std::string recipe_table(const nlohmann::ordered_json& result);

}  // namespace penstock::measure
