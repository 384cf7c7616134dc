// penstock eval: what a model is worth, in numbers with errors.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <functional>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/digest.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/progress.h"
#include "cli/commands.h"
#include "cli/eval_command.h"
#include "cli/interrupt.h"
#include "cli/run_record.h"
#include "cli/runtime_flags.h"
#include "cli/shard_flag.h"
#include "cli/version.h"
#include "experts/profile.h"
#include "measure/evaluate.h"
#include "measure/quality_report.h"
#include "measure/quality_store.h"

namespace penstock::cli {
namespace {

using Json = nlohmann::ordered_json;
using measure::EvalMode;

using Flags = EvalFlags;

// A file that is gone when its user is.
class TemporaryFile {
 public:
  TemporaryFile()
      : path_((std::filesystem::temp_directory_path() / fmt::format("penstock-base-{}", getpid()))
                  .string()) {}
  ~TemporaryFile() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
    std::filesystem::remove(path_ + ".partial", ignored);
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  const std::string& path() const noexcept { return path_; }

 private:
  std::string path_;
};

measure::ScoreSet score(engine::Runtime& runtime, const surgery::Corpus& corpus,
                        const measure::EvalOptions& options, const std::string& label) {
  const std::atomic<bool>& interrupted = interrupt_flag();
  std::unique_ptr<Progress> line;
  const auto window = static_cast<uint64_t>(corpus.window_tokens());
  measure::EvalProgress last;
  measure::ScoreSet set = measure::evaluate(
      runtime, corpus, options,
      [&](const measure::EvalProgress& now) {
        if (!line) line = std::make_unique<Progress>(label, now.n_windows * window, "tok");
        line->set(now.windows * window);
        last = now;
      },
      [&] { return interrupted.load(); });
  line.reset();
  check_unchanged(runtime);
  if (interrupted) {
    fail(ErrorKind::Cancelled, "interrupted after {} windows of {}{}", last.windows, last.n_windows,
         options.base_out.empty() ? "" : ": the same command goes on with the base logits");
  }
  if (last.tokens == 0) {
    log::info("{}: every window was there already", label);
    return set;
  }
  log::info("{}: {} tokens in {:.1f} s, {:.1f} tokens/s", label, last.tokens, last.seconds,
            static_cast<double>(last.tokens) / last.seconds);
  return set;
}

measure::BaseRows::Form form_of(const Flags& flags) {
  return flags.base_form == "f32" ? measure::BaseRows::Form::Logits
                                  : measure::BaseRows::Form::Compact;
}

// Writes the distributions of the model that is compared with.
void make_base(const Flags& flags, const std::string& path) {
  engine::RuntimeOptions options = flags.runtime.options();
  options.model_path = flags.base;
  options.profile = "none";
  options.stream.moce.mode = experts::Moce::Off;
  options.stream.pack.file = "auto";
  options.dense_convert.clear();
  measure::prepare(&options, EvalMode::Batch, flags.window, form_of(flags));
  const auto runtime = engine::Runtime::open(options, progress_line());
  const surgery::Corpus corpus = surgery::Corpus::load(*runtime, flags.texts, flags.window);
  measure::EvalOptions how;
  parse_shard(flags.shard, &how.shard, &how.n_shards);
  how.base_out = path;
  how.base_logits_exact = flags.base_form == "f32";
  score(*runtime, corpus, how, "base");
}

Json streaming_json(const engine::Runtime& runtime) {
  const experts::Counters c = runtime.counters();
  if (c.tokens == 0) return nullptr;
  experts::UseCounts uses = c.first;
  uses += c.steady;
  const auto tokens = static_cast<double>(c.tokens);
  const auto hits = static_cast<double>(uses.arena + uses.ra_timely + uses.ra_late);
  return {{"slots", runtime.plan().slots()},
          {"hit_rate", hits / static_cast<double>(std::max<uint64_t>(1, uses.total()))},
          {"bytes_per_token", static_cast<double>(c.demand.bytes + c.spec.bytes) / tokens}};
}

// Of every 13 tokens in a row of the text, how many stand in the other files too.
Json overlap_json(const engine::Runtime& runtime, const surgery::Corpus& corpus,
                  const std::vector<std::string>& files) {
  if (files.empty()) return nullptr;
  const surgery::Corpus other = surgery::Corpus::load(runtime, files, 2);
  const std::vector<uint64_t> a = experts::window_hashes(corpus.tokens());
  const std::vector<uint64_t> b = experts::window_hashes(other.tokens());
  std::vector<uint64_t> both;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
  if (!both.empty()) {
    log::warn("{} of {} sequences of 13 tokens are in the other text too: not all is held out",
              both.size(), a.size());
  }
  return {{"sequences_of_13", a.size()}, {"shared", both.size()}};
}

// What belongs to a result beside its scores: how much cache-aware routing replaced; step by step,
// what the arena gave; with --held-out-from, the overlap.
std::string circumstances(const engine::Runtime& runtime, const Json& overlap) {
  Json out = Json::object();
  const auto put = [&](const char* name, const Json& value) {
    if (!value.is_null()) out[name] = value;
  };
  put("routing", routing_json(runtime));
  put("streaming", streaming_json(runtime));
  put("overlap", overlap);
  return out.empty() ? std::string() : eval_text(out);
}

// `take`: gets the result before it is printed.
int finish(const Flags& flags, const measure::ScoreSet& set,
           const std::function<void(const Json&)>& take = {}) {
  if (!flags.scores.empty()) measure::write_scores(flags.scores, set);
  if (!set.whole()) {
    if (flags.scores.empty()) {
      fail(ErrorKind::Usage,
           "{} of {} windows are scored: a part is only good for `penstock eval merge`, with "
           "--scores "
           "FILE and then together with the other shards",
           set.windows.size(), set.n_windows);
    }
    log::info("{} of {} windows scored in {}; `penstock eval merge` joins the shards",
              set.windows.size(), set.n_windows, flags.scores);
    return 0;
  }
  Json json = measure::quality_json(set);
  if (!set.circumstances.empty()) json.update(Json::parse(set.circumstances));
  record_evaluation(flags, json);
  if (take) take(json);
  fmt::print("{}", flags.json ? eval_text(json) + "\n" : measure::quality_table(set));
  return 0;
}

int run_text(const Flags& flags, bool with_base, RunRecord& run_record) {
  std::unique_ptr<TemporaryFile> temporary;
  std::unique_ptr<measure::BaseReader> base;
  if (with_base) {
    std::string path = flags.base;
    if (!measure::BaseReader::is_base(flags.base)) {
      if (flags.texts.empty()) fail(ErrorKind::Usage, "a base model needs a text: --text FILE");
      path = flags.base_out;
      if (path.empty()) {
        temporary = std::make_unique<TemporaryFile>();
        path = temporary->path();
      }
      make_base(flags, path);
    }
    base = std::make_unique<measure::BaseReader>(measure::BaseReader::open(path));
  }
  int64_t window = flags.window;
  if (flags.texts.empty()) {
    if (!base) fail(ErrorKind::Usage, "--text FILE is missing");
    window = base->header().window_tokens;
  }
  engine::RuntimeOptions options = flags.runtime.options();
  const EvalMode mode = flags.step ? EvalMode::Step : EvalMode::Batch;
  measure::prepare(
      &options, mode, window,
      with_base || flags.base_out.empty() ? std::nullopt : std::optional(form_of(flags)),
      base.get());
  const auto runtime = engine::Runtime::open(options, run_record.watch(progress_line()));
  run_record.opened(*runtime);
  run_record.settings(*runtime, {{"window", window}, {"step_mode", flags.step}});
  const bool add_bos = runtime->has_tokenizer() && runtime->tokenizer().add_bos();
  const surgery::Corpus corpus =
      flags.texts.empty() ? surgery::Corpus::of(base->header().tokens, window,
                                                add_bos ? runtime->tokenizer().bos() : std::nullopt)
                          : surgery::Corpus::load(*runtime, flags.texts, window);
  measure::EvalOptions how;
  how.mode = mode;
  parse_shard(flags.shard, &how.shard, &how.n_shards);
  how.base = base.get();
  if (!with_base) {
    how.base_out = flags.base_out;
    how.base_logits_exact = flags.base_form == "f32";
  }
  const auto positions =
      corpus.n_windows() * static_cast<uint64_t>(measure::n_scored(corpus.window_tokens()));
  if (how.n_shards == 1 && positions < measure::kLeastPositions) {
    fail(ErrorKind::Usage,
         "this text gives {} positions, a summary needs {}: give more text or a smaller --window",
         positions, measure::kLeastPositions);
  }
  const Json overlap = overlap_json(*runtime, corpus, flags.held_out_from);
  measure::ScoreSet set = score(*runtime, corpus, how, with_base ? "kld" : "perplexity");
  set.circumstances = circumstances(*runtime, overlap);
  return finish(flags, set, [&](const Json& result) { run_record.evaluated(*runtime, result); });
}

int run_merge(const Flags& flags) {
  if (read_text_file(flags.parts.front()).starts_with("{")) return merge_tasks(flags);
  measure::ScoreSet all = measure::read_scores(flags.parts.front());
  for (size_t i = 1; i < flags.parts.size(); ++i) {
    measure::merge(all, measure::read_scores(flags.parts[i]), flags.parts[i]);
  }
  return finish(flags, all);
}

int with_record(const Flags& flags, bool with_base) {
  return recorded(flags.record,
                  [&](RunRecord& record) { return run_text(flags, with_base, record); });
}

void add_common(CLI::App& command, const std::shared_ptr<Flags>& flags) {
  command.add_flag("--json", flags->json, "the result as JSON");
  command.add_option("--quality-dir", flags->quality_dir,
                     "where quality records are kept; default $XDG_DATA_HOME/penstock/quality");
  command.add_flag("--no-record", flags->no_record, "do not record the result");
}

void add_against(CLI::App& command, const std::shared_ptr<Flags>& flags) {
  command.add_option("--against", flags->against,
                     "compares with a result of the same tasks (eval tasks --answers --json), "
                     "task by task");
}

void add_model(CLI::App& command, const std::shared_ptr<Flags>& flags) {
  flags->runtime.add_to(command);
  command.add_option("model_file", "the same as --model")->each([flags](const std::string& path) {
    flags->runtime.set_model(path);
  });
  command.add_option("--record", flags->record, "writes a run record into this folder");
  command.add_option("--shard", flags->shard, "I/N: only every N-th window or task, from I on");
  add_common(command, flags);
}

void add_text(CLI::App& command, const std::shared_ptr<Flags>& flags) {
  add_model(command, flags);
  command.add_option("--text", flags->texts, "text files (NAME.ids: token ids)")->expected(1, -1);
  command.add_option("--window", flags->window, "tokens of a window; the later half is scored")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  command.add_flag("--step-mode", flags->step,
                   "one token per step through the decode path, with the arena and its routing");
  command
      .add_option("--held-out-from", flags->held_out_from,
                  "calibration text: counts the sequences of 13 tokens that both share")
      ->expected(1, -1);
  command.add_option("--scores", flags->scores, "keeps every position's scores, for eval merge");
  command.add_option("--base-out", flags->base_out, "keeps base logits, to compare others with");
  command
      .add_option("--base-form", flags->base_form,
                  "base logits as 16-bit log-probabilities (u16) or whole (f32)")
      ->check(CLI::IsMember({"u16", "f32"}))
      ->capture_default_str();
}

}  // namespace

void add_eval(CLI::App& app, Action* action) {
  CLI::App* eval = app.add_subcommand(
      "eval", "Measures quality: perplexity, KL divergence from a base model, tasks.");
  eval->footer(
      "Examples:\n"
      "  penstock eval perplexity MODEL.gguf --text HELD_OUT.txt\n"
      "  penstock eval kld SMALL.gguf --base MODEL.gguf --text HELD_OUT.txt\n"
      "  penstock eval tasks SMALL.gguf --tasks TASKS.jsonl\n"
      "A headline needs both: KL divergence and same-top share on held-out text, and tasks.");
  eval->require_subcommand(1);

  auto perplexity = std::make_shared<Flags>();
  CLI::App* command = eval->add_subcommand(
      "perplexity", "How well the model predicts a text; --base-out keeps its distributions.");
  add_text(*command, perplexity);
  command->callback(
      [perplexity, action] { *action = [perplexity] { return with_record(*perplexity, false); }; });

  auto kld = std::make_shared<Flags>();
  command = eval->add_subcommand(
      "kld", "How far the model's predictions are from those of a base, position by position.");
  add_text(*command, kld);
  command
      ->add_option("--base", kld->base,
                   "a model, or base logits of `eval perplexity --base-out` or of llama.cpp")
      ->required();
  command->callback([kld, action] { *action = [kld] { return with_record(*kld, true); }; });

  auto tasks = std::make_shared<Flags>();
  command = eval->add_subcommand("tasks", "Tasks with answers that can be checked (JSONL).");
  add_model(*command, tasks);
  command->add_option("--tasks", tasks->tasks, "the tasks")->required();
  command->add_option("--chat-template", tasks->chat, "auto, chatml or raw")->capture_default_str();
  command->add_option("--max-tokens", tasks->max_tokens, "of an answer")->capture_default_str();
  command->add_flag("--answers", tasks->answers, "with every answer in the JSON");
  add_against(*command, tasks);
  command->add_option("--text", tasks->texts, "text for --continuations")->expected(1, -1);
  command->add_option(
      "--continuations", tasks->continuations,
      "greedy continuations of so many places in the text: do they fall into loops?");
  command->callback([tasks, action] {
    *action = [tasks] {
      return recorded(tasks->record, [&](RunRecord& record) { return run_tasks(*tasks, record); });
    };
  });

  auto merge = std::make_shared<Flags>();
  command = eval->add_subcommand("merge", "Joins the scores of shards.");
  command->add_option("parts", merge->parts, "files of --scores")->required()->expected(1, -1);
  command->add_option("--scores", merge->scores, "keeps the joined scores");
  add_against(*command, merge);
  add_common(*command, merge);
  command->callback([merge, action] { *action = [merge] { return run_merge(*merge); }; });
}

}  // namespace penstock::cli
