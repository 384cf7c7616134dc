// penstock eval tasks: tasks with answers that can be checked, in one run or in shards.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <memory>
#include <set>

#include "base/digest.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/progress.h"
#include "cli/eval_command.h"
#include "cli/interrupt.h"
#include "cli/shard_flag.h"
#include "cli/version.h"
#include "measure/quality_report.h"
#include "measure/quality_store.h"
#include "measure/task_set.h"
#include "surgery/corpus.h"

namespace penstock::cli {
namespace {

using Json = nlohmann::ordered_json;

// Which of the shards that a part says it is of are given.
class Shards {
 public:
  void add(const Json& part, const std::string& path) {
    const Json shard = part.value("shard", Json{0u, 1u});
    if (!shard.is_array() || shard.size() != 2 || !shard[0].is_number_unsigned() ||
        !shard[1].is_number_unsigned() || shard[0] >= shard[1]) {
      fail(ErrorKind::Format, "{}: 'shard' is {}, not [I, N]", path, shard.dump());
    }
    if (n_ != 0 && n_ != shard[1].get<uint64_t>()) {
      fail(ErrorKind::Usage, "{} is one of {} shards, the files before it of {}", path,
           shard[1].get<uint64_t>(), n_);
    }
    n_ = shard[1];
    there_.insert(shard[0].get<uint64_t>());
  }
  // Throws Error(Usage) naming the first that is missing.
  void check() const {
    for (uint64_t i = 0; i < n_; ++i) {
      if (!there_.contains(i)) {
        fail(ErrorKind::Usage, "shard {}/{} is missing: its tasks are part of the result", i, n_);
      }
    }
  }

 private:
  uint64_t n_ = 0;
  std::set<uint64_t> there_;
};

nlohmann::ordered_json read_tasks_result(const std::string& path) {
  auto part = nlohmann::ordered_json::parse(read_text_file(path), nullptr, false);
  if (!part.is_object()) fail(ErrorKind::Format, "{} is no result of eval tasks", path);
  return part;
}

// With --against: the same tasks answered by something else.
void compare_tasks(const EvalFlags& flags, const std::vector<measure::TaskResult>& results,
                   Json* json) {
  if (flags.against.empty()) return;
  const Json other = read_tasks_result(flags.against);
  if (other.value("tasks_sha256", "") != (*json)["tasks_sha256"]) {
    fail(ErrorKind::Usage, "{} is of other tasks", flags.against);
  }
  (*json)["paired"] =
      measure::paired_json(results, measure::read_answers(other, flags.against), flags.against);
  (*json)["paired"]["other_model"] = other.value("model", "");
  (*json)["paired"]["other_key"] = other.value("quality_key", "");
}

void print_tasks(const EvalFlags& flags, const std::vector<measure::TaskResult>& results,
                 const Json& json) {
  if (flags.json) {
    fmt::print("{}\n", eval_text(json));
    return;
  }
  fmt::print("{}", measure::tasks_table(measure::summarise(results)));
  if (json.contains("paired")) fmt::print("{}", measure::paired_table(json["paired"]));
  if (!json.contains("continuations")) return;
  fmt::print("  {:<22} {} of {}\n", "continuations that loop",
             json["continuations"]["degenerate"].get<uint64_t>(),
             json["continuations"]["n"].get<uint64_t>());
}

}  // namespace

std::string eval_text(const nlohmann::ordered_json& json) {
  return json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void record_evaluation(const EvalFlags& flags, const Json& measurement) {
  if (flags.no_record) return;
  const measure::QualityStore store(flags.quality_dir);
  const measure::QualityKey key{measurement["quality_settings"],
                                measurement["quality_key"].get<std::string>()};
  Json entry = measurement;
  entry["program"] = version_number();
  log::info("recorded in {}", store.add(key, entry));
}

nlohmann::ordered_json routing_json(const engine::Runtime& runtime) {
  const experts::CacheRouter* router = runtime.stream().moce();
  if (router == nullptr) return nullptr;
  const experts::MoceMeasures m = router->total();
  const auto slots = static_cast<double>(std::max<uint64_t>(1, m.slots));
  return {{"replaced_share", static_cast<double>(m.replaced) / slots},
          {"guard_events", router->guard_events()}};
}

// Answers of shards, in the order in which one run would have given them.
int merge_tasks(const EvalFlags& flags) {
  Json all;
  Shards shards;
  std::vector<measure::TaskResult> results;
  for (const std::string& path : flags.parts) {
    const Json part = read_tasks_result(path);
    shards.add(part, path);
    for (const char* field : {"kind", "quality_key", "tasks_sha256", "max_tokens"}) {
      if (!part.contains(field) || (!all.empty() && part[field] != all[field])) {
        fail(ErrorKind::Usage, "{}: its {} is another than in the files before it", path, field);
      }
    }
    if (all.empty()) all = part;
    if (part.value("chat_template", "") != all.value("chat_template", "")) {
      fail(ErrorKind::Usage, "{}: its chat_template is another than in the files before it", path);
    }
    const auto more = measure::read_answers(part, path);
    results.insert(results.end(), more.begin(), more.end());
  }
  shards.check();
  const Json settings = all.value("quality_settings", Json::object());
  if (flags.parts.size() > 1 && settings.value("moce", "off") != "off") {
    fail(ErrorKind::Usage,
         "cache-aware routing depends on the tasks before: shards of it are not one run");
  }
  std::sort(results.begin(), results.end(),
            [](const auto& a, const auto& b) { return a.index < b.index; });
  for (size_t i = 1; i < results.size(); ++i) {
    if (results[i].index == results[i - 1].index) {
      fail(ErrorKind::Usage, "task {} is answered twice", results[i].id);
    }
  }
  for (const char* field : {"shard", "answers", "by_kind", "paired"}) all.erase(field);
  all.update(measure::tasks_json(results, false));
  compare_tasks(flags, results, &all);
  record_evaluation(flags, all);
  print_tasks(flags, results, all);
  return 0;
}

int run_tasks(const EvalFlags& flags, RunRecord& run_record) {
  const std::vector<measure::Task> tasks = measure::read_tasks(flags.tasks);
  engine::RuntimeOptions options = flags.runtime.options();
  const auto runtime = engine::Runtime::open(options, run_record.watch(progress_line()));
  run_record.opened(*runtime);
  run_record.settings(*runtime, {{"max_tokens", flags.max_tokens}});
  measure::TaskOptions how;
  how.chat_format = flags.chat;
  how.max_tokens = flags.max_tokens;
  parse_shard(flags.shard, &how.shard, &how.n_shards);
  const std::atomic<bool>& interrupted = interrupt_flag();
  const auto stop = [&] { return interrupted.load(); };
  std::vector<measure::TaskResult> results;
  {
    Progress line("tasks", (tasks.size() + how.n_shards - 1 - how.shard) / how.n_shards, "");
    uint64_t done = 0;
    results = measure::run_tasks(
        *runtime, tasks, how, [&](const measure::TaskResult&) { line.set(++done); }, stop);
  }
  measure::ContinuationResult continuations;
  if (flags.continuations > 0 && !stop()) {
    if (flags.texts.empty()) fail(ErrorKind::Usage, "--continuations needs --text FILE");
    const surgery::Corpus corpus = surgery::Corpus::load(*runtime, flags.texts, 128);
    continuations =
        measure::run_continuations(*runtime, corpus.tokens(), flags.continuations, 64, 96, stop);
  }
  check_unchanged(*runtime);
  if (stop()) fail(ErrorKind::Cancelled, "interrupted after {} tasks", results.size());
  const measure::QualityKey key = measure::quality_key(*runtime);
  Json json = {{"kind", "tasks"},
               {"model", std::string(runtime->file().metadata().get_string("general.name", ""))},
               {"model_id", hex(runtime->file().model_id())},
               {"quality_key", key.id},
               {"quality_settings", key.settings},
               {"mode", "step"},
               {"tasks", std::filesystem::path(flags.tasks).filename().string()},
               {"tasks_sha256", hex(sha256(read_text_file(flags.tasks)))},
               {"max_tokens", flags.max_tokens},
               {"chat_template", flags.chat}};
  if (const Json routing = routing_json(*runtime); !routing.is_null()) json["routing"] = routing;
  if (how.n_shards > 1) json["shard"] = {how.shard, how.n_shards};
  json.update(measure::tasks_json(results, flags.answers));
  if (continuations.n > 0) {
    json["continuations"] = {{"n", continuations.n}, {"degenerate", continuations.degenerate}};
  }
  compare_tasks(flags, results, &json);
  if (how.n_shards == 1) {
    Json short_form = json;
    short_form.erase("answers");
    record_evaluation(flags, short_form);
  }
  run_record.evaluated(*runtime, json);
  print_tasks(flags, results, json);
  return 0;
}

}  // namespace penstock::cli
