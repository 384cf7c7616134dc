// penstock prune: the model with fewer experts, perhaps with other types in the same pass.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <memory>

#include "base/digest.h"
#include "base/error.h"
#include "base/log.h"
#include "cli/commands.h"
#include "cli/rewriting.h"
#include "cli/version.h"
#include "surgery/choose.h"
#include "surgery/slice.h"

namespace penstock::cli {
namespace {

using surgery::ExpertStats;
using surgery::KeepMap;
using surgery::LayerChoice;
using surgery::MoeLayer;

struct Flags {
  RewriteFlags rewrite;
  std::string stats, keep, keep_map, method = "reap", write_keep_map;
  std::string imatrix_out, profile, profile_out;
  uint64_t seed = 1;
  bool per_layer = false, protect_outliers = false, other_model = false;
};

// "256", "0.5" or "50%".
void parse_keep(const std::string& text, surgery::ChooseOptions* options) {
  const bool percent = text.ends_with('%');
  const char* const end = text.data() + text.size() - (percent ? 1 : 0);
  if (!percent && text.find('.') == std::string::npos) {
    const auto [at, error] = std::from_chars(text.data(), end, options->keep);
    if (error == std::errc() && at == end && options->keep > 0) return;
  } else {
    const auto [at, error] = std::from_chars(text.data(), end, options->share);
    if (percent) options->share /= 100;
    if (error == std::errc() && at == end && options->share > 0 && options->share <= 1) return;
  }
  fail(ErrorKind::Usage,
       "--keep {}: give a number of experts per layer (256) or a share of them (0.5 or 50%)", text);
}

bool same_shape(const ExpertStats& stats, const std::vector<MoeLayer>& layers) {
  bool same = stats.layers.size() == layers.size();
  for (size_t l = 0; same && l < layers.size(); ++l) {
    same = stats.layers[l].layer == layers[l].layer &&
           stats.layers[l].experts.size() == layers[l].n_expert;
  }
  return same;
}

// The statistics by the model's expert ids. Damaged ones could name the right model and still be of
// other layers; those of the model before it was pruned are followed through what it says of that.
ExpertStats fitting_stats(const Flags& flags, const gguf::Model& model, const Sha256& id,
                          const std::vector<MoeLayer>& layers) {
  ExpertStats stats = surgery::read_stats(flags.stats);
  if (!flags.other_model) surgery::check_stats(stats, flags.stats, model);
  const std::string name = gguf::printable(stats.model_name);
  if (same_shape(stats, layers)) {
    if (stats.model_id != id) {
      log::warn("{} was made from another file ('{}') and is taken for this model's", flags.stats,
                name);
    }
    return stats;
  }
  std::optional<ExpertStats> cut = surgery::slice_stats(stats, model, layers);
  if (!flags.other_model || !cut) {
    fail(ErrorKind::Format,
         "{}: its layers and experts are not the model's, nor those of a model that it was pruned "
         "from; calibrate this model",
         flags.stats);
  }
  log::warn(
      "{} was made before {} was pruned: it says what the experts did while all were there; a "
      "calibration of the pruned model would say more",
      flags.stats, flags.rewrite.model);
  return std::move(*cut);
}

struct Chosen {
  KeepMap map;
  std::vector<LayerChoice> layers;
  std::optional<ExpertStats> stats;
};

// Measures that do not count how often an expert is used can keep those that hardly ever are:
// docs/decisions/014-which-experts.md has a model on which that is worse than chance.
void compare_with_sum(const Chosen& chosen, const std::vector<MoeLayer>& layers,
                      surgery::ChooseOptions options) {
  constexpr double kSuspicious = 0.75;
  if (!chosen.stats || options.method == surgery::Method::Random) return;
  const auto mean = [](const std::vector<LayerChoice>& choice) {
    double sum = 0;
    for (const LayerChoice& layer : choice) sum += layer.retained_reap;
    return sum / static_cast<double>(choice.size());
  };
  const std::string name(surgery::method_name(options.method));
  options.method = surgery::Method::ReapSum;
  const double kept = mean(chosen.layers);
  const double most = mean(surgery::choose(layers, &*chosen.stats, options));
  if (kept >= kSuspicious * most) return;
  log::warn(
      "the experts that {} keeps make {:.0f} % of the experts' weighted output on the calibration "
      "text, those of --method reap-sum {:.0f} %: compare both with `penstock eval kld`",
      name, 100 * kept, 100 * most);
}

Chosen choose(const Flags& flags, const gguf::Model& model, const Sha256& id,
              const std::vector<MoeLayer>& layers) {
  if (flags.keep.empty() == flags.keep_map.empty()) {
    fail(ErrorKind::Usage,
         "say how many experts to keep: --keep 256, --keep 0.5 or --keep-map FILE");
  }
  Chosen chosen;
  std::optional<ExpertStats>& stats = chosen.stats;
  if (!flags.stats.empty()) stats = fitting_stats(flags, model, id, layers);
  const ExpertStats* measured = stats ? &*stats : nullptr;
  const std::string name(model.metadata().get_string("general.name", ""));
  if (!flags.keep_map.empty()) {
    chosen.map = surgery::read_keep_map(flags.keep_map);
    surgery::check_keep_map(chosen.map, flags.keep_map, layers, flags.other_model ? nullptr : &id);
    if (chosen.map.model_id != id) {
      log::warn("{} was made for another file ('{}') and is taken for this model's", flags.keep_map,
                gguf::printable(chosen.map.model_name));
      chosen.map.rule += ", as chosen for " + hex(chosen.map.model_id);
      chosen.map.model_id = id;
      chosen.map.model_name = name;
    }
    chosen.layers = surgery::judge(chosen.map.layers, measured);
    return chosen;
  }
  surgery::ChooseOptions options;
  if (!surgery::parse_method(flags.method, &options.method)) {
    fail(ErrorKind::Usage, "--method {}: choose reap, reap-sum, ean, frequency, mass or random",
         flags.method);
  }
  parse_keep(flags.keep, &options);
  options.per_layer = flags.per_layer;
  options.protect_outliers = flags.protect_outliers;
  options.seed = flags.seed;
  chosen.layers = surgery::choose(layers, measured, options);
  compare_with_sum(chosen, layers, options);
  KeepMap& map = chosen.map;
  map.model_id = id;
  map.model_name = name;
  map.method = flags.method;
  map.rule = surgery::rule_text(options);
  map.seed = options.method == surgery::Method::Random ? flags.seed : 0;
  if (stats) {
    map.stats_id = sha256_file(flags.stats);
    map.tokens = stats->tokens;
  }
  for (const LayerChoice& layer : chosen.layers) map.layers.push_back(layer.kept);
  surgery::check_keep_map(map, "the choice", layers, nullptr);
  return chosen;
}

void print_row(std::FILE* to, const std::string& what, double kept, double of, const LayerChoice& c,
               double never, bool measured) {
  fmt::print(to, "{:<10} {:>7.5g} {:>7.5g}", what, kept, of);
  if (measured) {
    fmt::print(to, " {:>11.2f} % {:>14.2f} % {:>10.4g}", 100 * c.retained_mass,
               100 * c.retained_reap, never);
  }
  fmt::print(to, "\n");
}

void print_layer(std::FILE* to, const std::string& what, const LayerChoice& c, bool measured) {
  print_row(to, what, static_cast<double>(c.kept.kept.size()), static_cast<double>(c.kept.n_expert),
            c, static_cast<double>(c.n_never), measured);
}

// "3.17, 3.200, 9.0": layer.expert
void print_never_used(std::FILE* to, const ExpertStats& stats) {
  constexpr size_t kShown = 12;
  const size_t most = log::level() >= log::Level::Debug ? SIZE_MAX : kShown;
  std::string list;
  size_t n = 0;
  for (const surgery::LayerStats& layer : stats.layers) {
    for (size_t e = 0; e < layer.experts.size(); ++e) {
      if (layer.experts[e].n == 0 && n++ < most) {
        list += fmt::format("{}{}.{}", list.empty() ? "" : ", ", layer.layer, e);
      }
    }
  }
  if (n > 0) {
    fmt::print(to, "never selected by the calibration text: {} experts (layer.expert: {}{})\n", n,
               list, n > most ? ", ...; all with -v" : "");
  }
}

void print_choice(std::FILE* to, const Chosen& chosen) {
  const std::vector<LayerChoice>& layers = chosen.layers;
  const bool measured = chosen.stats.has_value();
  fmt::print(to, "method {}, {}; keep-map {}\n", chosen.map.method, chosen.map.rule,
             hex(surgery::keep_map_id(chosen.map)));
  fmt::print(to, "{:<10} {:>7} {:>7}", "layer", "kept", "of");
  if (measured) {
    fmt::print(to, " {:>13} {:>16} {:>10}", "router mass", "weight x norm", "never used");
  }
  fmt::print(to, "\n");
  const bool all = log::level() >= log::Level::Debug;
  LayerChoice mean;
  double kept = 0, of = 0, never = 0;
  uint64_t n_protected = 0;
  const LayerChoice* least = &layers.front();
  for (const LayerChoice& c : layers) {
    if (all) print_layer(to, std::to_string(c.kept.layer), c, measured);
    const auto n = static_cast<double>(layers.size());
    mean.retained_mass += c.retained_mass / n;
    mean.retained_reap += c.retained_reap / n;
    kept += static_cast<double>(c.kept.kept.size()) / n;
    of += static_cast<double>(c.kept.n_expert) / n;
    never += static_cast<double>(c.n_never) / n;
    n_protected += c.n_protected;
    if (measured ? c.retained_reap < least->retained_reap
                 : c.kept.kept.size() < least->kept.kept.size()) {
      least = &c;
    }
  }
  if (!all) print_layer(to, fmt::format("{}", layers.front().kept.layer), layers.front(), measured);
  if (!all && layers.size() > 1) {
    print_layer(to, fmt::format("{}", layers.back().kept.layer), layers.back(), measured);
  }
  print_layer(to, fmt::format("{} (least)", least->kept.layer), *least, measured);
  print_row(to, "mean", kept, of, mean, never, measured);
  if (n_protected > 0) fmt::print(to, "{} experts are kept for their outliers\n", n_protected);
  if (measured) print_never_used(to, *chosen.stats);
}

// The draft block keeps its width, and with --per-layer so may any layer.
void print_counts(std::FILE* to, const surgery::RewritePlan& plan) {
  if (!plan.set.contains("penstock.expert_counts")) return;
  fmt::print(
      to,
      "the blocks differ in their numbers of experts: penstock runs such a file, programs that "
      "read "
      "one {} do not\n",
      plan.source->arch_key("expert_count"));
}

void write_companions(const Flags& flags, const KeepMap& map,
                      const std::optional<GivenImatrix>& imatrix, const std::string& written) {
  if (!flags.imatrix_out.empty()) {
    surgery::write_imatrix(flags.imatrix_out, surgery::slice_imatrix(imatrix->imatrix, map));
    fmt::print(flags.rewrite.text(), "{}\n", flags.imatrix_out);
  }
  if (!flags.profile_out.empty()) {
    const gguf::Model pruned = gguf::Model::open(written);
    experts::write_profile(flags.profile_out,
                           surgery::slice_profile(experts::read_profile(flags.profile),
                                                  flags.profile, map, pruned.model_id()));
    fmt::print(flags.rewrite.text(), "{}\n", flags.profile_out);
  }
}

void check_flags(const Flags& flags) {
  if (!flags.imatrix_out.empty() && flags.rewrite.imatrix.empty()) {
    fail(ErrorKind::Usage, "--imatrix-out needs --imatrix FILE, of the model that is pruned");
  }
  if (!flags.rewrite.imatrix.empty() && flags.imatrix_out.empty() &&
      flags.rewrite.rules().empty()) {
    fail(ErrorKind::Usage,
         "--imatrix is for --imatrix-out, or for types (--experts Q2_0) in the same pass");
  }
  if (flags.profile.empty() != flags.profile_out.empty()) {
    fail(ErrorKind::Usage, "--profile FILE and --profile-out FILE belong together");
  }
  if (!flags.profile_out.empty() && flags.rewrite.out.empty()) {
    fail(ErrorKind::Usage, "--profile-out is a profile of the pruned model: name it with -o");
  }
}

int run_prune(const Flags& flags) {
  check_flags(flags);
  const gguf::Model model = gguf::Model::open(flags.rewrite.model);
  const std::vector<MoeLayer> layers = surgery::moe_layers(model);
  const Sha256 id = model.model_id();
  const std::optional<GivenImatrix> imatrix = read_importance(flags.rewrite);
  const Chosen chosen = choose(flags, model, id, layers);
  std::FILE* const to = flags.rewrite.text();
  print_choice(to, chosen);
  surgery::RewritePlan plan = surgery::copy_plan(model);
  surgery::apply_keep_map(chosen.map, layers, tool_name(), &plan);
  plan_types(flags.rewrite, id, imatrix, &plan);
  print_counts(to, plan);
  std::string written;
  if (!flags.rewrite.out.empty()) {
    written = carry_out(flags.rewrite, imatrix, plan).files.front();
  }
  // Not before: a refused run leaves what was there.
  if (!flags.write_keep_map.empty()) {
    surgery::write_keep_map(flags.write_keep_map, chosen.map);
    fmt::print(to, "{}\n", flags.write_keep_map);
  }
  write_companions(flags, chosen.map, imatrix, written);
  return 0;
}

void add_choice(CLI::App& command, Flags* flags) {
  command.add_option("--keep", flags->keep,
                     "experts of each layer to keep: a number (256) or a share (0.5, 50%)");
  command.add_option("--keep-map", flags->keep_map, "keep what this file lists instead");
  command.add_option("--stats", flags->stats, "statistics, as `calibrate` writes them");
  command
      .add_option("--method", flags->method,
                  "what the best experts are: reap, reap-sum, ean, frequency, mass, random")
      ->check(CLI::IsMember({"reap", "reap-sum", "ean", "frequency", "mass", "random"}))
      ->capture_default_str();
  command.add_option("--seed", flags->seed, "of --method random")->capture_default_str();
  command.add_flag("--per-layer", flags->per_layer,
                   "share the same total out by score: layers may keep different numbers");
  command.add_flag("--protect-outliers", flags->protect_outliers,
                   "keep every expert with extraordinary outputs");
  command.add_flag("--other-model", flags->other_model,
                   "statistics or keep-map may be of another file of the same shape, such as "
                   "another quantisation of the same model; statistics also of the model before "
                   "it was pruned");
  command.add_option("--write-keep-map", flags->write_keep_map, "write the choice to this file");
}

}  // namespace

void add_prune(CLI::App& app, Action* action) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand(
      "prune",
      "Writes a model with fewer experts: those that calibration found to matter least are left "
      "out, everything else stays as it is, byte for byte. Lossy: measure what it costs.");
  flags->rewrite.add_output(*command);
  add_choice(*command, flags.get());
  command->add_option("--imatrix-out", flags->imatrix_out,
                      "write --imatrix for the pruned model to this file");
  command->add_option("--profile", flags->profile, "an expert profile of the model, and");
  command->add_option("--profile-out", flags->profile_out, "where to write it for the pruned one");
  flags->rewrite.add_types(*command);
  command->footer(
      "Examples:\n"
      "  penstock prune MODEL.gguf --stats STATS.gguf --keep 0.5 -o SMALLER.gguf\n"
      "  penstock prune MODEL.gguf --stats STATS.gguf --keep 256 --experts Q2_0 -o SMALL.gguf\n"
      "With types it requantises in the same pass, without a model in between. Without -o it tells "
      "what would\n"
      "be kept. More: docs/surgery.md");
  command->callback([flags, action] { *action = [flags] { return run_prune(*flags); }; });
}

}  // namespace penstock::cli
