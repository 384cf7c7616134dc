#include "measure/recipe.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "measure/toml_fields.h"

namespace penstock::measure {
namespace {

RecipeArm read_arm(const toml::table& table, const std::string& path, const Recipe& recipe) {
  TomlFields f(table, "[[arm]]", path);
  RecipeArm arm;
  arm.name = f.text("name");
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  };
  if (arm.name.empty() || arm.name[0] == '.' ||
      !std::all_of(arm.name.begin(), arm.name.end(), plain) || arm.name == "source") {
    fail(ErrorKind::Format,
         "{}: an arm cannot be called '{}': its files bear its name; letters, digits, - _ . (and "
         "'source' is the model itself)",
         path, arm.name);
  }
  arm.model = f.text("model", "");
  arm.from = f.text("from", "");
  if (!arm.model.empty() && !arm.from.empty()) {
    fail(ErrorKind::Format, "{}: arm '{}' has a model of its own and is made from '{}': not both",
         path, arm.name, arm.from);
  }
  const auto known = [&](const std::string& name) {
    return std::any_of(recipe.arms.begin(), recipe.arms.end(),
                       [&](const RecipeArm& other) { return other.name == name; });
  };
  if (known(arm.name)) fail(ErrorKind::Format, "{}: two arms are called '{}'", path, arm.name);
  if (!arm.from.empty() && !known(arm.from)) {
    fail(ErrorKind::Format, "{}: arm '{}' is made from '{}', which no arm before it is called",
         path, arm.name, arm.from);
  }
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
  const std::vector<double> bonus = f.numbers("bonus"), lambda = f.numbers("lambda");
  if (bonus.empty() && lambda.empty()) arm.routings.push_back({});
  for (const double value : bonus) {
    arm.routings.push_back(
        {value == 0 ? RecipeRouting::Kind::Exact : RecipeRouting::Kind::Bonus, value});
  }
  for (const double value : lambda) {
    arm.routings.push_back({RecipeRouting::Kind::Prior, value});
  }
  f.finish();
  if ((arm.pruned() && arm.method != "random") || arm.importance) {
    if (recipe.calibration_text.empty()) {
      fail(ErrorKind::Format, "{}: arm '{}' needs statistics: give [calibrate] a text", path,
           arm.name);
    }
  }
  return arm;
}

std::string in(const std::string& folder, const std::string& name) {
  return folder + "/" + name;
}

// What an arm is made from.
std::string origin_of(const Recipe& recipe, const RecipeArm& arm, const std::string& folder) {
  if (!arm.model.empty()) return arm.model;
  for (const RecipeArm& other : recipe.arms) {
    if (other.name == arm.from) return model_of(recipe, other, folder);
  }
  return recipe.model;
}

const RecipeArm* pruned_ancestor(const Recipe& recipe, const RecipeArm& arm) {
  if (arm.pruned()) return &arm;
  for (const RecipeArm& other : recipe.arms) {
    if (other.name == arm.from) return pruned_ancestor(recipe, other);
  }
  return nullptr;
}

RecipeStep build_step(const Recipe& recipe, const RecipeArm& arm, const std::string& folder) {
  const std::string source = origin_of(recipe, arm, folder);
  const RecipeArm* before = nullptr;
  for (const RecipeArm& other : recipe.arms) {
    if (other.name == arm.from) before = pruned_ancestor(recipe, other);
  }
  RecipeStep step;
  step.name = arm.name + ".build";
  step.inputs = {source};
  step.outputs = {in(folder, arm.name + ".gguf"), in(folder, arm.name + ".report.json")};
  std::vector<std::string>& c = step.command;
  const auto add = [&](std::initializer_list<std::string> more) {
    c.insert(c.end(), more.begin(), more.end());
  };
  add({arm.pruned() ? "prune" : "requantise", source, "-o", step.outputs[0], "--force", "--json",
       step.outputs[1]});
  if (arm.pruned()) {
    add({"--keep", arm.keep, "--method", arm.method});
    if (arm.method != "random" || arm.protect_outliers) {
      add({"--stats", in(folder, "stats.gguf")});
      step.inputs.push_back(in(folder, "stats.gguf"));
      if (!arm.from.empty() || !arm.model.empty()) add({"--other-model"});
    }
    if (arm.method == "random") add({"--seed", fmt::format("{}", arm.seed)});
    if (arm.per_layer) add({"--per-layer"});
    if (arm.protect_outliers) add({"--protect-outliers"});
    add({"--write-keep-map", in(folder, arm.name + ".keep.json")});
    step.outputs.push_back(in(folder, arm.name + ".keep.json"));
  }
  for (const auto& [flag, type] :
       {std::pair("--experts", &arm.experts), std::pair("--dense", &arm.dense),
        std::pair("--embedding", &arm.embedding), std::pair("--head", &arm.head)}) {
    if (!type->empty()) add({flag, *type});
  }
  for (const std::string& rule : arm.keep_type) add({"--keep-type", rule});
  if (arm.importance) {
    // Of a model that was pruned before: that arm's slice of it.
    const std::string imatrix =
        in(folder, (before == nullptr ? "" : before->name + ".") + "imatrix.gguf");
    add({"--imatrix", imatrix});
    step.inputs.push_back(imatrix);
  }
  const bool wanted_later =
      arm.pruned() && std::any_of(recipe.arms.begin(), recipe.arms.end(), [&](const RecipeArm& o) {
        return o.importance && !o.from.empty() && !o.pruned();
      });
  if (wanted_later) {
    if (!arm.importance) {
      add({"--imatrix", in(folder, "imatrix.gguf")});
      step.inputs.push_back(in(folder, "imatrix.gguf"));
    }
    add({"--imatrix-out", in(folder, arm.name + ".imatrix.gguf")});
    step.outputs.push_back(in(folder, arm.name + ".imatrix.gguf"));
  }
  return step;
}

std::vector<std::string> routing_flags(const RecipeRouting& routing) {
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

// How many of n experts `keep` leaves, as `prune` counts it.
uint64_t kept_of(const ExpertCounts& counts, const std::string& keep) {
  const uint64_t n = counts.experts;
  if (keep.empty()) return n;
  const double value = std::strtod(keep.c_str(), nullptr);
  if (keep.ends_with('%'))
    return static_cast<uint64_t>(std::llround(value / 100 * static_cast<double>(n)));
  if (keep.find('.') != std::string::npos) {
    return static_cast<uint64_t>(std::llround(value * static_cast<double>(n)));
  }
  return static_cast<uint64_t>(value) * counts.layers;
}

std::string row_name(const RecipeArm& arm, const RecipeRouting& routing) {
  return arm.name + "." + routing.name();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : 0.5 * (values[n / 2 - 1] + values[n / 2]);
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

std::string model_of(const Recipe& recipe, const RecipeArm& arm, const std::string& folder) {
  if (arm.pruned() || arm.requantised()) return in(folder, arm.name + ".gguf");
  return origin_of(recipe, arm, folder);
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

std::vector<RecipeStep> recipe_steps(const Recipe& recipe, const std::string& folder,
                                     const ExpertCounts& counts) {
  std::vector<RecipeStep> steps;
  const auto with = [](std::vector<std::string> command, const std::vector<std::string>& more) {
    command.insert(command.end(), more.begin(), more.end());
    return command;
  };
  if (!recipe.calibration_text.empty()) {
    RecipeStep step{"calibrate",
                    with({"calibrate", recipe.model, "-o", in(folder, "stats.gguf"),
                          "--imatrix-out", in(folder, "imatrix.gguf"), "--window",
                          fmt::format("{}", recipe.calibration_window), "--text"},
                         recipe.calibration_text),
                    recipe.calibration_text,
                    {in(folder, "stats.gguf"), in(folder, "imatrix.gguf")},
                    false};
    step.inputs.push_back(recipe.model);
    steps.push_back(std::move(step));
  }
  const std::string base = in(folder, "base.logits");
  RecipeStep perplexity{"source",
                        with({"eval", "perplexity", recipe.model, "--json", "--base-out", base,
                              "--window", fmt::format("{}", recipe.window), "--text"},
                             recipe.text),
                        recipe.text,
                        {base},
                        true};
  perplexity.inputs.push_back(recipe.model);
  if (!recipe.calibration_text.empty()) {
    perplexity.command.push_back("--held-out-from");
    perplexity.command = with(perplexity.command, recipe.calibration_text);
    perplexity.inputs = with(perplexity.inputs, recipe.calibration_text);
  }
  steps.push_back(std::move(perplexity));

  for (const RecipeArm& arm : recipe.arms) {
    const std::string model = model_of(recipe, arm, folder);
    if (arm.pruned() || arm.requantised()) steps.push_back(build_step(recipe, arm, folder));
    if (arm.pack) {
      steps.push_back({arm.name + ".pack",
                       {"pack", model, "-o", in(folder, arm.name + ".xpk")},
                       {model},
                       {in(folder, arm.name + ".xpk")},
                       false});
    }
  }
  // Judged after all are made: a mistake in the last arm shows before hours of measuring.
  std::vector<RecipeStep> speed;
  for (const RecipeArm& arm : recipe.arms) {
    const std::string model = model_of(recipe, arm, folder);
    const RecipeArm* pruned = pruned_ancestor(recipe, arm);
    const uint64_t n = kept_of(counts, pruned == nullptr ? "" : pruned->keep);
    const std::string slots = fmt::format(
        "{}", std::max<uint64_t>(1, static_cast<uint64_t>(recipe.arena * static_cast<double>(n))));
    for (const RecipeRouting& routing : arm.routings) {
      const std::string name = row_name(arm, routing);
      std::vector<std::string> flags = routing_flags(routing);
      const bool exact = routing.kind == RecipeRouting::Kind::Exact;
      if (!exact) flags = with(flags, {"--arena-slots", slots});
      steps.push_back({name + ".kld",
                       with(with({"eval", "kld", model, "--base", base, "--json", "--window",
                                  fmt::format("{}", recipe.window), "--text"},
                                 recipe.text),
                            exact ? flags : with(flags, {"--step-mode"})),
                       with({model, base}, recipe.text),
                       {},
                       true});
      if (!recipe.tasks.empty()) {
        steps.push_back({name + ".tasks",
                         with({"eval", "tasks", model, "--tasks", recipe.tasks, "--json",
                               "--max-tokens", fmt::format("{}", recipe.max_tokens)},
                              flags),
                         {model, recipe.tasks},
                         {},
                         true});
      }
      if (exact) flags = {"--arena-slots", slots};
      if (arm.pack) flags = with(flags, {"--pack", in(folder, arm.name + ".xpk")});
      for (int r = 0; r < recipe.speed_runs && !recipe.prompt.empty(); ++r) {
        speed.push_back({fmt::format("{}.speed-{}", name, r + 1),
                         with({"run", "-m", model, "--file", recipe.prompt, "-n",
                               fmt::format("{}", recipe.speed_tokens), "--temp", "0",
                               "--ignore-eos", "--json", "-q"},
                              flags),
                         {model, recipe.prompt},
                         {},
                         true});
      }
    }
  }
  // Round by round, there and back, so that a slow stretch of the machine meets all arms.
  const auto runs = static_cast<size_t>(std::max(1, recipe.speed_runs));
  const size_t n_rows = speed.size() / runs;
  for (size_t r = 0; r < runs && n_rows > 0; ++r) {
    for (size_t i = 0; i < n_rows; ++i) {
      const size_t row = r % 2 == 0 ? i : n_rows - 1 - i;
      steps.push_back(std::move(speed[row * runs + r]));
    }
  }
  return steps;
}

nlohmann::ordered_json recipe_rows(const Recipe& recipe,
                                   const std::map<std::string, nlohmann::json>& results,
                                   const std::map<std::string, uint64_t>& bytes) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  const auto copy = [](nlohmann::ordered_json* row, const nlohmann::json& from,
                       std::initializer_list<const char*> fields) {
    for (const char* field : fields) {
      for (const std::string& name :
           {std::string(field), std::string(field) + "_error", std::string(field) + "_interval"}) {
        if (from.contains(name)) (*row)[name] = from[name];
      }
    }
  };
  for (const RecipeArm& arm : recipe.arms) {
    for (const RecipeRouting& routing : arm.routings) {
      const std::string name = row_name(arm, routing);
      nlohmann::ordered_json row = {{"arm", arm.name}, {"routing", routing.name()}};
      if (bytes.contains(arm.name)) row["bytes"] = bytes.at(arm.name);
      if (const auto kld = results.find(name + ".kld"); kld != results.end()) {
        const nlohmann::json& j = kld->second;
        copy(&row, j, {"ppl", "ppl_ratio", "mean_kld", "same_top", "rms_dp"});
        for (const char* field : {"quality_key", "mode", "positions", "streaming", "parts"}) {
          if (j.contains(field)) row[field] = j[field];
        }
        if (j.contains("routing")) row["replaced_share"] = j["routing"].at("replaced_share");
      }
      if (const auto tasks = results.find(name + ".tasks"); tasks != results.end()) {
        nlohmann::ordered_json part;
        copy(&part, tasks->second, {"accuracy"});
        part["n"] = tasks->second.value("n", 0);
        part["structured"] = tasks->second.value("structured", nlohmann::json());
        row["tasks"] = std::move(part);
      }
      std::vector<double> rates, hits, read;
      for (int r = 1; r <= recipe.speed_runs; ++r) {
        const auto run = results.find(fmt::format("{}.speed-{}", name, r));
        if (run == results.end()) continue;
        const nlohmann::json& j = run->second;
        rates.push_back(j.at("timings").at("decode").at("tokens_per_second"));
        const nlohmann::json& uses = j.at("counters").at("uses_steady");
        const double total = std::max(1.0, uses.at("total").get<double>());
        hits.push_back((uses.at("arena").get<double>() + uses.at("ra_timely").get<double>() +
                        uses.at("ra_late").get<double>()) /
                       total);
        const double demand = j["counters"].at("reads_demand").at("bytes");
        const double spec = j["counters"].at("reads_spec").at("bytes");
        read.push_back((demand + spec) / j["counters"].at("tokens").get<double>());
      }
      if (!rates.empty()) {
        const auto [low, high] = std::minmax_element(rates.begin(), rates.end());
        row["speed"] = {{"decode_tokens_per_second", median(rates)},
                        {"min", *low},
                        {"max", *high},
                        {"all", rates},
                        {"hit_rate", median(hits)},
                        {"bytes_per_token", median(read)}};
      }
      rows.push_back(std::move(row));
    }
  }
  return rows;
}

std::string recipe_table(const nlohmann::ordered_json& rows) {
  std::string out =
      "| arm | routing | MB | tokens/s (min-max) | hits % | perplexity [95 %] | mean KLD [95 %] | "
      "same "
      "top % | tasks % [95 %] |\n|---|---|---:|---:|---:|---:|---:|---:|---:|\n";
  const auto interval = [](const nlohmann::ordered_json& row, const char* name, double scale,
                           int digits) {
    if (!row.contains(name)) return std::string("-");
    std::string text = fmt::format("{:.{}f}", scale * row[name].get<double>(), digits);
    const std::string field = std::string(name) + "_interval";
    if (row.contains(field)) {
      text += fmt::format(" [{:.{}f}, {:.{}f}]", scale * row[field][0].get<double>(), digits,
                          scale * row[field][1].get<double>(), digits);
    }
    return text;
  };
  for (const nlohmann::ordered_json& row : rows) {
    const std::string size =
        row.contains("bytes") ? fmt::format("{:.1f}", row["bytes"].get<double>() * 1e-6) : "-";
    std::string speed = "-", hits = "-", tasks = "-";
    if (row.contains("speed")) {
      const nlohmann::ordered_json& s = row["speed"];
      speed = fmt::format("{:.2f} ({:.2f}-{:.2f})", s["decode_tokens_per_second"].get<double>(),
                          s["min"].get<double>(), s["max"].get<double>());
      hits = fmt::format("{:.1f}", 100 * s["hit_rate"].get<double>());
    }
    if (row.contains("tasks")) tasks = interval(row["tasks"], "accuracy", 100, 1);
    out += fmt::format(
        "| {} | {} | {} | {} | {} | {} | {} | {} | {} |\n", row["arm"].get<std::string>(),
        row["routing"].get<std::string>(), size, speed, hits, interval(row, "ppl", 1, 3),
        interval(row, "mean_kld", 1, 4),
        row.contains("same_top") ? fmt::format("{:.2f}", 100 * row["same_top"].get<double>()) : "-",
        tasks);
  }
  return out;
}

}  // namespace penstock::measure
