// penstock calibrate, penstock stats: what a model's experts do with a text.
#include "surgery/calibrate.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/machine.h"
#include "base/progress.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/runtime_flags.h"
#include "cli/shard_flag.h"
#include "experts/profile.h"
#include "gguf/model.h"

namespace penstock::cli {
namespace {

struct Flags {
  RuntimeFlags runtime;
  std::vector<std::string> texts;
  std::string out, imatrix_out, profile_out, shard;
  int64_t window = 512;
  bool importance = false;
  bool until_stable = false;
  double keep = 0.5;
  bool restart = false;
};

experts::Profile make_profile(const surgery::Calibration& calibration,
                              const surgery::Corpus& corpus) {
  experts::Profile profile;
  profile.model_id = calibration.model_id;
  profile.routing = "exact";
  const surgery::ExpertStats stats = calibration.stats();
  for (const surgery::LayerStats& layer : stats.layers) {
    experts::LayerUses uses;
    uses.layer = layer.layer;
    uses.decode.resize(layer.experts.size());
    for (const surgery::ExpertSums& expert : layer.experts) uses.prompt.push_back(expert.n);
    profile.layers.push_back(std::move(uses));
  }
  // Of the windows that were seen; they are the text's first unless it is a shard.
  std::vector<int32_t> seen;
  for (const surgery::ShardSeen& shard : calibration.shards) {
    for (uint64_t w = 0; w < shard.done; ++w) {
      const std::vector<int32_t> window = corpus.window(shard.index + w * shard.of);
      seen.insert(seen.end(), window.begin(), window.end());
    }
  }
  profile.n_tokens = seen.size();
  profile.tokens_id = surgery::tokens_id(seen);
  profile.windows = experts::window_hashes(seen);
  return profile;
}

size_t experts_without_use(const surgery::ExpertStats& stats) {
  size_t n = 0;
  for (const surgery::LayerStats& layer : stats.layers) {
    n += static_cast<size_t>(
        std::count_if(layer.experts.begin(), layer.experts.end(),
                      [](const surgery::ExpertSums& expert) { return expert.n == 0; }));
  }
  return n;
}

nlohmann::ordered_json describe(const surgery::Calibration& calibration) {
  const surgery::ExpertStats stats = calibration.stats();
  nlohmann::ordered_json corpus = nlohmann::ordered_json::array();
  for (const surgery::CorpusPart& part : calibration.corpus) {
    corpus.push_back({{"name", part.name},
                      {"tokens_sha256", hex(part.tokens_id)},
                      {"tokens_seen", part.tokens}});
  }
  nlohmann::ordered_json shards = nlohmann::ordered_json::array();
  for (const surgery::ShardSeen& shard : calibration.shards) {
    shards.push_back({{"index", shard.index}, {"of", shard.of}, {"windows", shard.done}});
  }
  nlohmann::ordered_json layers = nlohmann::ordered_json::array();
  for (const surgery::LayerStats& layer : stats.layers) {
    nlohmann::ordered_json experts = nlohmann::ordered_json::array();
    for (const surgery::ExpertSums& e : layer.experts) {
      experts.push_back({{"n", e.n},
                         {"n_windows", e.n_windows},
                         {"sum_p", e.p.value()},
                         {"sum_p_selected", e.p_selected.value()},
                         {"sum_g", e.g.value()},
                         {"sum_a", e.a.value()},
                         {"sum_ga", e.ga.value()},
                         {"sum_ga2", e.ga2.value()},
                         {"max_abs", e.max_abs},
                         {"reap", e.reap()}});
    }
    layers.push_back({{"layer", layer.layer}, {"n_used", layer.n_used}, {"experts", experts}});
  }
  return {{"model_id", hex(calibration.model_id)},
          {"model_name", calibration.model_name},
          {"precision", calibration.precision},
          {"window_tokens", calibration.window_tokens},
          {"windows", calibration.windows()},
          {"windows_in_text", calibration.n_windows},
          {"tokens", calibration.tokens},
          {"corpus_sha256", hex(calibration.corpus_id)},
          {"corpus", corpus},
          {"shards", shards},
          {"importance_of_tensors", calibration.columns.size()},
          {"halves_agreement_at_half", surgery::halves_agreement(calibration, 0.5)},
          {"layers", layers}};
}

void print_summary(const surgery::Calibration& calibration) {
  const surgery::ExpertStats stats = calibration.stats();
  size_t n_experts = 0;
  for (const surgery::LayerStats& layer : stats.layers) n_experts += layer.experts.size();
  fmt::print("model       {} ({})\n", calibration.model_name,
             hex(calibration.model_id).substr(0, 16));
  fmt::print("text        {} windows of {} tokens, {} in the text{}\n", calibration.windows(),
             calibration.window_tokens, calibration.n_windows,
             calibration.complete() ? "" : " (not all seen)");
  for (const surgery::CorpusPart& part : calibration.corpus) {
    fmt::print(
        "            {:5.1f} %  {} ({} tokens)\n",
        100.0 * static_cast<double>(part.tokens) /
            std::max(1.0, static_cast<double>(calibration.windows() * calibration.window_tokens)),
        part.name, part.tokens);
  }
  fmt::print("experts     {} in {} layers, {} never selected\n", n_experts, stats.layers.size(),
             experts_without_use(stats));
  fmt::print("stability   the better half by REAP of two halves of the text agrees to {:.3f}\n",
             surgery::halves_agreement(calibration, 0.5));
  fmt::print("importance  {}\n", calibration.columns.empty()
                                     ? "not collected"
                                     : fmt::format("of {} inputs", calibration.columns.size()));
}

int run_calibrate(const Flags& flags) {
  engine::RuntimeOptions options = flags.runtime.options();
  const bool importance = flags.importance || !flags.imatrix_out.empty();
  options.windows = true;
  options.n_ctx = flags.window;
  options.profile = "none";
  if (options.prompt_chunk != 0 && options.prompt_chunk < flags.window) {
    fail(ErrorKind::Usage,
         "--prompt-chunk {} is less than a window of {} tokens: windows are evaluated whole",
         options.prompt_chunk, flags.window);
  }
  {
    const gguf::Model file = gguf::Model::open(options.model_path, {.allow_missing_experts = true});
    if (importance) options.caller_bytes += surgery::Collector::importance_bytes(file);
  }
  surgery::CalibrateOptions how;
  how.importance = importance;
  parse_shard(flags.shard, &how.shard, &how.n_shards);
  if (flags.until_stable) how.until_stable = flags.keep;
  how.checkpoint = flags.out + ".partial";
  how.restart = flags.restart;
  const auto runtime = engine::Runtime::open(options, progress_line());
  const surgery::Corpus corpus = surgery::Corpus::load(*runtime, flags.texts, flags.window);
  log::info("{} windows of {} tokens, {} at once", corpus.n_windows(), flags.window,
            runtime->states().size());

  std::unique_ptr<Progress> line;
  surgery::CalibrateProgress last;
  const std::atomic<bool>& interrupted = interrupt_flag();
  const surgery::Calibration calibration = surgery::calibrate(
      *runtime, corpus, how,
      [&](const surgery::CalibrateProgress& now) {
        const auto window = static_cast<uint64_t>(flags.window);
        if (!line) {
          if (now.resumed > 0) log::info("going on after {} windows", now.resumed);
          line = std::make_unique<Progress>("calibrate", (now.n_windows - now.resumed) * window,
                                            "tok");
        }
        line->set((now.windows - now.resumed) * window);
        last = now;
      },
      [&] { return interrupted.load(); });
  line.reset();
  check_unchanged(*runtime);
  const uint64_t n_windows = surgery::windows_of_shard(corpus, how);
  const bool stable = flags.until_stable && last.agreement >= how.agreement;
  if (interrupted && calibration.windows() < n_windows && !stable) {
    fail(ErrorKind::Cancelled, "interrupted after {} windows of {}{}", calibration.windows(),
         n_windows,
         calibration.windows() > 0 ? ": the same command goes on" : ": nothing is kept yet");
  }
  surgery::write_calibration(flags.out, calibration);
  if (!flags.imatrix_out.empty()) {
    surgery::write_imatrix(flags.imatrix_out, calibration.importance());
  }
  if (!flags.profile_out.empty()) {
    experts::write_profile(flags.profile_out, make_profile(calibration, corpus));
  }
  std::error_code ignored;
  std::filesystem::remove(how.checkpoint, ignored);
  print_summary(calibration);
  if (last.seconds > 0) {
    const auto tokens = static_cast<double>(last.tokens);
    fmt::print(
        "speed       {:.1f} tokens/s, {} of experts read per 1,000 tokens, {} windows at once\n",
        tokens / last.seconds,
        format_bytes(static_cast<uint64_t>(static_cast<double>(last.bytes_read) * 1000 / tokens)),
        runtime->states().size());
  }
  fmt::print("wrote       {}\n", flags.out);
  return 0;
}

}  // namespace

void add_calibrate(CLI::App& app, Action* action) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand(
      "calibrate", "Measures what a model's experts do with a text, for pruning and quantising.");
  command->footer(
      "Example: which half of the experts does this text need?\n"
      "  penstock calibrate MODEL.gguf --text TEXT.txt -o MODEL.stats.gguf\n"
      "  penstock prune MODEL.gguf --stats MODEL.stats.gguf --keep 0.5 -o SMALLER.gguf\n"
      "Several machines: --shard 0/4 ... 3/4, then penstock stats merge. An interrupted run goes "
      "on\n"
      "where its last checkpoint (STATS.partial) stands.");
  flags->runtime.add_to(*command);
  command->add_option("model_file", "the same as --model")->each([flags](const std::string& path) {
    flags->runtime.set_model(path);
  });
  command->add_option("--text", flags->texts, "text files (NAME.ids: token ids)")
      ->required()
      ->expected(1, -1);
  command->add_option("-o,--out", flags->out, "the statistics")->required();
  command->add_option("--window", flags->window, "tokens of a window, each evaluated on its own")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  command->add_flag("--importance", flags->importance,
                    "sums of the squared inputs of every weight column too (an imatrix)");
  command->add_option("--imatrix-out", flags->imatrix_out,
                      "writes them as llama.cpp's importance matrix (GGUF)");
  command->add_option("--profile-out", flags->profile_out,
                      "writes an expert profile for warm fill");
  command->add_option("--shard", flags->shard, "I/N: only windows I, I + N, I + 2 N, ...");
  command->add_flag(
      "--until-stable", flags->until_stable,
      "stop as soon as two halves of the text choose the same experts (Jaccard 0.95)");
  command->add_option("--keep", flags->keep, "share of the experts that --until-stable chooses")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  command->add_flag("--restart", flags->restart, "do not go on from STATS.partial");
  command->callback([flags, action] { *action = [flags] { return run_calibrate(*flags); }; });
}

void add_stats(CLI::App& app, Action* action) {
  CLI::App* command = app.add_subcommand("stats", "Statistics of calibration: show, merge.");
  command->require_subcommand(1);
  struct Merge {
    std::vector<std::string> parts;
    std::string out, imatrix_out;
    bool json = false;
  };
  auto flags = std::make_shared<Merge>();
  CLI::App* merge = command->add_subcommand(
      "merge", "Joins the shards of a calibration: exactly what one run over all of them gives.");
  merge->add_option("parts", flags->parts, "statistics of shards")->required()->expected(1, -1);
  merge->add_option("-o,--out", flags->out, "the joined statistics")->required();
  merge->add_option("--imatrix-out", flags->imatrix_out,
                    "writes llama.cpp's importance matrix of all (GGUF)");
  merge->callback([flags, action] {
    *action = [flags] {
      surgery::Calibration all = surgery::read_calibration(flags->parts.front());
      for (size_t i = 1; i < flags->parts.size(); ++i) {
        surgery::merge(all, surgery::read_calibration(flags->parts[i]), flags->parts[i]);
      }
      surgery::write_calibration(flags->out, all);
      if (!flags->imatrix_out.empty()) {
        surgery::write_imatrix(flags->imatrix_out, all.importance());
      }
      print_summary(all);
      fmt::print("wrote       {}\n", flags->out);
      return 0;
    };
  });
  CLI::App* info = command->add_subcommand("info", "Shows statistics.");
  info->add_option("file", flags->parts, "statistics")->required()->expected(1);
  info->add_flag("--json", flags->json, "all of it as JSON");
  info->callback([flags, action] {
    *action = [flags] {
      const surgery::Calibration c = surgery::read_calibration(flags->parts.front());
      if (flags->json) {
        fmt::print("{}\n", describe(c).dump(1));
      } else {
        print_summary(c);
      }
      return 0;
    };
  });
}

}  // namespace penstock::cli
