#include "measure/recipe.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "measure/toml_fields.h"

namespace penstock::measure {
namespace {

void check_name(const std::string& name, const std::string& path) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  };
  if (name.empty() || name[0] == '.' || !std::all_of(name.begin(), name.end(), plain) ||
      name == "source") {
    fail(ErrorKind::Format,
         "{}: an arm cannot be called '{}': its files bear its name; letters, digits, - _ . (and "
         "'source' is the model itself)",
         path, name);
  }
}

// An arm speaks of arms that stand before it, and never of itself.
void check_relations(const RecipeArm& arm, const std::string& path, const Recipe& recipe) {
  const auto known = [&](const std::string& name) {
    return std::any_of(recipe.arms.begin(), recipe.arms.end(),
                       [&](const RecipeArm& other) { return other.name == name; });
  };
  if (!arm.model.empty() && !arm.from.empty()) {
    fail(ErrorKind::Format, "{}: arm '{}' has a model of its own and is made from '{}': not both",
         path, arm.name, arm.from);
  }
  if (known(arm.name)) fail(ErrorKind::Format, "{}: two arms are called '{}'", path, arm.name);
  if (!arm.from.empty() && !known(arm.from)) {
    fail(ErrorKind::Format, "{}: arm '{}' is made from '{}', which no arm before it is called",
         path, arm.name, arm.from);
  }
  if (!arm.base.empty() && !known(arm.base)) {
    fail(ErrorKind::Format,
         "{}: arm '{}' has the base '{}', which no arm before it is called (all are compared with "
         "the source; a base is one more)",
         path, arm.name, arm.base);
  }
}

void check_needs(const RecipeArm& arm, const std::string& path, const Recipe& recipe) {
  const bool statistics = (arm.pruned() && arm.method != "random") || arm.importance;
  if (statistics && recipe.calibration_text.empty()) {
    fail(ErrorKind::Format, "{}: arm '{}' needs statistics: give [calibrate] a text", path,
         arm.name);
  }
  if (!arm.pack && (!arm.pack_align.empty() || arm.pack_content_id)) {
    fail(ErrorKind::Format, "{}: arm '{}' says how to pack, but not pack = true", path, arm.name);
  }
}

// A row each: those of `bonus`, then those of `lambda`; without either one of exact routing.
std::vector<RecipeRouting> read_routings(TomlFields* fields) {
  const std::vector<double> bonus = fields->numbers("bonus"), lambda = fields->numbers("lambda");
  std::vector<RecipeRouting> routings;
  if (bonus.empty() && lambda.empty()) routings.push_back({});
  for (const double value : bonus) {
    routings.push_back(
        {value == 0 ? RecipeRouting::Kind::Exact : RecipeRouting::Kind::Bonus, value});
  }
  for (const double value : lambda) routings.push_back({RecipeRouting::Kind::Prior, value});
  return routings;
}

RecipeArm read_arm(const toml::table& table, const std::string& path, const Recipe& recipe) {
  TomlFields f(table, "[[arm]]", path);
  RecipeArm arm;
  arm.name = f.text("name");
  check_name(arm.name, path);
  arm.model = f.text("model", "");
  arm.from = f.text("from", "");
  arm.base = f.text("base", "");
  check_relations(arm, path, recipe);
  arm.keep = f.argument("keep");
  arm.method = f.text("method", "reap");
  arm.per_layer = f.flag("per_layer");
  arm.protect_outliers = f.flag("protect_outliers");
  arm.seed = static_cast<uint64_t>(f.number("seed", 1, 0, 1e15));
  arm.experts = f.text("experts", "");
  arm.dense = f.text("dense", "");
  arm.embedding = f.text("embedding", "");
  arm.head = f.text("head", "");
  arm.keep_type = f.texts("keep_type", false);
  arm.importance = f.flag("importance");
  arm.pack = f.flag("pack");
  arm.pack_align = f.argument("pack_align");
  arm.pack_content_id = f.flag("pack_content_id");
  arm.routings = read_routings(&f);
  f.finish();
  check_needs(arm, path, recipe);
  return arm;
}

}  // namespace

std::string RecipeRouting::name() const {
  switch (kind) {
    case Kind::Exact:
      return "exact";
    case Kind::Bonus:
      return fmt::format("bonus-{}", value);
    case Kind::Prior:
      return fmt::format("prior-{}", value);
  }
  return {};
}

Recipe read_recipe(const std::string& path) {
  Recipe recipe;
  const toml::table file = parse_toml(read_text_file(path), path);
  const auto table = [&](const char* name, bool required) -> const toml::table* {
    const toml::node* node = file.get(name);
    if (node == nullptr && required) fail(ErrorKind::Format, "{}: [{}] is missing", path, name);
    if (node != nullptr && !node->is_table()) {
      fail(ErrorKind::Format, "{}: line {}: {} must be a table", path, node->source().begin.line,
           name);
    }
    return node == nullptr ? nullptr : node->as_table();
  };
  for (const auto& [key, node] : file) {
    const std::string_view name = key.str();
    if (name != "source" && name != "calibrate" && name != "evaluate" && name != "speed" &&
        name != "arm") {
      fail(ErrorKind::Format,
           "{}: line {}: a recipe has no [{}]; it has source, calibrate, evaluate, speed and "
           "[[arm]]",
           path, node.source().begin.line, name);
    }
  }
  TomlFields source(*table("source", true), "[source]", path);
  recipe.model = source.text("model");
  source.finish();
  if (const toml::table* t = table("calibrate", false)) {
    TomlFields f(*t, "[calibrate]", path);
    recipe.calibration_text = f.texts("text", true);
    recipe.calibration_window = static_cast<int64_t>(f.number("window", 512, 2, 1 << 20));
    f.finish();
  }
  TomlFields evaluate(*table("evaluate", true), "[evaluate]", path);
  recipe.text = evaluate.texts("text", true);
  recipe.window = static_cast<int64_t>(evaluate.number("window", 512, 2, 1 << 20));
  recipe.tasks = evaluate.text("tasks", "");
  recipe.max_tokens = static_cast<int64_t>(evaluate.number("max_tokens", 128, 1, 1 << 20));
  recipe.arena = evaluate.number("arena", 0.25, 0.001, 1);
  evaluate.finish();
  if (const toml::table* t = table("speed", false)) {
    TomlFields f(*t, "[speed]", path);
    recipe.prompt = f.text("prompt");
    recipe.speed_tokens = static_cast<int64_t>(f.number("tokens", 128, 64, 1 << 20));
    recipe.speed_runs = static_cast<int>(f.number("runs", 5, 3, 100));
    f.finish();
  }
  const std::vector<const toml::table*> arms = toml_tables(file, "arm", path);
  if (arms.empty()) {
    fail(ErrorKind::Format, "{}: no [[arm]]: a recipe names at least one model to make", path);
  }
  for (const toml::table* arm : arms) recipe.arms.push_back(read_arm(*arm, path, recipe));
  return recipe;
}

}  // namespace penstock::measure
