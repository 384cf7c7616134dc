// penstock run: completes a text or holds a conversation in the terminal.
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/machine.h"
#include "cli/chat_flags.h"
#include "cli/commands.h"
#include "cli/dense_summary.h"
#include "cli/interrupt.h"
#include "cli/quality_summary.h"
#include "cli/run_record.h"
#include "cli/runtime_flags.h"
#include "cli/summary.h"
#include "engine/conversation.h"
#include "engine/generate.h"
#include "experts/predict.h"
#include "experts/trace_file.h"
#include "surgery/corpus.h"
#include "text/reasoning.h"
#include "text/tokenizer_gguf.h"

namespace penstock::cli {
namespace {

struct Flags {
  RuntimeFlags runtime;
  ChatFlags chat_flags;
  std::string prompt, file, ids, save, restore, system, profile_out, trace, timeline, record;
  bool trace_logits = false;
  bool chat = false, interactive = false, ignore_eos = false, special = false, json = false,
       no_summary = false;
  int64_t n_predict = -1;
  std::optional<float> temperature, top_p, min_p;
  std::optional<int> top_k;
  float repetition = 1.0f, presence = 0.0f, frequency = 0.0f;
  std::optional<uint64_t> seed;
  std::vector<std::string> stop;
};

engine::SamplerOptions sampler_options(const Flags& flags, const engine::Runtime& runtime) {
  engine::SamplerOptions options = runtime.default_sampling();
  options.temperature = flags.temperature.value_or(options.temperature);
  options.top_k = flags.top_k.value_or(options.top_k);
  options.top_p = flags.top_p.value_or(options.top_p);
  options.min_p = flags.min_p.value_or(options.min_p);
  options.repetition_penalty = flags.repetition;
  options.presence_penalty = flags.presence;
  options.frequency_penalty = flags.frequency;
  options.seed = flags.seed.value_or(
      static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count()));
  return options;
}

// Shows text as it comes; reasoning dimmed on a terminal.
class Screen {
 public:
  Screen(bool shown, bool split, bool inside)
      : shown_(shown), dim_(split && isatty(STDOUT_FILENO) == 1), splitter_(inside) {}

  void push(std::string_view text) {
    if (!shown_) return;
    if (!dim_) {
      put(text);
    } else {
      for (const text::ReasoningSplitter::Part& part : splitter_.push(text)) show(part);
    }
    std::fflush(stdout);
  }

  void finish() {
    if (!shown_) return;
    if (dim_) {
      for (const text::ReasoningSplitter::Part& part : splitter_.flush()) show(part);
    }
    if (!ends_line_) std::fputc('\n', stdout);
    std::fflush(stdout);
  }

 private:
  void show(const text::ReasoningSplitter::Part& part) {
    if (part.reasoning) {
      fmt::print("\033[2m{}\033[0m", part.text);
    } else {
      if (was_reasoning_ && !part.text.empty()) put("\n\n");
      put(part.text);
    }
    if (!part.text.empty()) was_reasoning_ = part.reasoning;
  }
  void put(std::string_view text) {
    if (text.empty()) return;
    std::fwrite(text.data(), 1, text.size(), stdout);
    ends_line_ = text.back() == '\n';
  }

  bool shown_;
  bool dim_;
  bool was_reasoning_ = false;
  bool ends_line_ = true;
  text::ReasoningSplitter splitter_;
};

class Runner {
 public:
  Runner(const Flags& flags, engine::Runtime& runtime, RunRecord& record)
      : flags_(flags),
        runtime_(runtime),
        record_(record),
        session_(runtime),
        cancel_(interrupt_flag()),
        keep_going_([this] {
          record_.poll(session_);
          return !cancel_.load(std::memory_order_relaxed);
        }) {}

  int run();

 private:
  int go();
  int complete(std::vector<int32_t> ids);
  int chat_once(const std::string& message);
  int chat_interactive();
  void report_plan() const;
  engine::GenerateResult answer(engine::Sampler& sampler, bool in_reasoning, bool chat);
  int finish(const engine::GenerateResult& result);
  void start_recording();
  void finish_recording();
  void write_profile();
  void print_json(const engine::GenerateResult& result);
  text::ChatRequest start_chat(const engine::ChatFormat& format) const;

  const Flags& flags_;
  engine::Runtime& runtime_;
  RunRecord& record_;
  engine::Session session_;
  std::atomic<bool>& cancel_;
  engine::KeepGoing keep_going_;
  engine::SamplerOptions sampling_;
  size_t prompt_tokens_ = 0;
  std::optional<experts::UseCounter> uses_;    // with --profile-out
  std::optional<experts::TraceWriter> trace_;  // with --trace-routing
  std::optional<experts::Timeline> timeline_;
};

text::ChatRequest Runner::start_chat(const engine::ChatFormat& format) const {
  text::ChatRequest request = flags_.chat_flags.start(format);
  if (!flags_.system.empty()) {
    request.messages.push_back({.role = "system", .content = flags_.system});
  }
  return request;
}

void Runner::report_plan() const {
  const experts::Plan& plan = runtime_.plan();
  for (const std::string& warning : plan.warnings) log::warn("{}", warning);
  log::info("{} threads, {}; {} of {} experts in memory ({}); {}", runtime_.options().threads,
            quant::isa_name(quant::current_isa()), plan.slots(), plan.shape.n_experts(),
            format_bytes(plan.arena), runtime_.stream().io().describe());
  log::info("experts are read from {}", runtime_.source().describe());
  log::debug("the plan:\n{}", experts::format_plan(plan));
}

engine::GenerateResult Runner::answer(engine::Sampler& sampler, bool in_reasoning, bool chat) {
  engine::GenerateOptions options;
  options.max_tokens = flags_.n_predict;
  options.stop = flags_.stop;
  options.ignore_end = flags_.ignore_eos;
  options.render_control = flags_.special;
  options.reasoning_budget = flags_.chat_flags.reasoning_budget();
  options.starts_in_reasoning = in_reasoning;

  Screen screen(!flags_.json, chat, in_reasoning);
  // A thinking model on a slow disk can think for a long time before it says a word: say so once
  // the speed is known.
  bool hint_due = chat && in_reasoning && !flags_.chat_flags.reasoning_limited();
  constexpr int64_t kTokensToKnow = 16;
  constexpr double kThinkingTokens = 1000;
  constexpr double kLongSeconds = 120;
  const engine::GenerateResult result = engine::generate(
      session_, sampler, options,
      [&](const engine::Output& output) {
        screen.push(output.text);
        const engine::Timings& timings = session_.timings();
        if (!hint_due || timings.decode_tokens < kTokensToKnow) return;
        hint_due = false;
        const double seconds = kThinkingTokens / timings.decode_rate();
        if (seconds > kLongSeconds) {
          log::info(
              "the model is thinking at {:.1f} tokens/s: {:.0f} tokens of it take {:.0f} "
              "minutes. --reasoning off or --reasoning-budget N shorten that",
              timings.decode_rate(), kThinkingTokens, seconds / 60);
        }
      },
      keep_going_);
  screen.finish();
  record_.end_turn(session_, result);
  return result;
}

void Runner::print_json(const engine::GenerateResult& result) {
  nlohmann::ordered_json out;
  out["text"] = result.text;
  out["tokens"] = result.tokens;
  out["stop_reason"] = engine::stop_reason_text(result.reason);
  if (!result.stop_string.empty()) out["stop_string"] = result.stop_string;
  out["prompt_tokens"] = prompt_tokens_;
  out["reasoning_tokens"] = result.reasoning_tokens;
  out["sampling"] = sampling_json(sampling_);
  out["timings"] = timings_json(session_, runtime_);
  out["counters"] = counters_json(session_);
  out["experts"] = source_json(runtime_);
  out["plan"] = plan_json(session_);
  out["dense"] = dense_json(runtime_.load().dense);
  out["quality"] = quality_json(runtime_);
  out["watchdog"] = watchdog_json(runtime_);
  fmt::print("{}\n", out.dump(1, ' ', false, nlohmann::json::error_handler_t::replace));
}

int Runner::finish(const engine::GenerateResult& result) {
  if (!flags_.save.empty() && session_.intact()) {
    session_.save(flags_.save);
  } else if (!flags_.save.empty()) {
    log::warn("interrupted half-way through the prompt: {} was not written", flags_.save);
  }
  finish_recording();
  record_.measured(session_);
  if (flags_.json) print_json(result);
  if (!flags_.no_summary && log::level() >= log::Level::Info) {
    std::string end = engine::stop_reason_text(result.reason);
    if (sampling_.temperature > 0) end += fmt::format(" (seed {})", sampling_.seed);
    fmt::print(stderr, "\n{}", summary_table(session_, end));
  }
  check_unchanged(runtime_);
  if (result.reason == engine::StopReason::Watchdog) {
    log::warn(
        "memory ran out: the run was ended after its token. Close other programs, or use a smaller "
        "--memory");
    return static_cast<int>(ErrorKind::Watchdog);
  }
  return result.reason == engine::StopReason::Cancelled ? static_cast<int>(ErrorKind::Cancelled)
                                                        : 0;
}

int Runner::complete(std::vector<int32_t> ids) {
  if (flags_.restore.empty()) {
    if (runtime_.has_tokenizer() && flags_.ids.empty()) runtime_.tokenizer().prepend_bos(ids);
  } else {
    session_.restore(flags_.restore);
  }
  if (ids.empty() && flags_.restore.empty()) fail(ErrorKind::Usage, "the prompt is empty");
  prompt_tokens_ = ids.size();
  engine::Sampler sampler(sampling_);
  sampler.see_prompt(session_.tokens());
  sampler.see_prompt(ids);
  engine::GenerateResult result;
  record_.begin_turn(session_, ids, false);
  if (session_.prefill(ids, keep_going_)) {
    record_.prefilled(session_);
    result = answer(sampler, false, false);
  } else {
    result.reason = engine::prefill_stop(session_);
    record_.end_turn(session_, result);
  }
  return finish(result);
}

int Runner::chat_once(const std::string& message) {
  const text::Tokenizer& tokenizer = runtime_.tokenizer();
  const engine::ChatFormat format = flags_.chat_flags.open(runtime_);
  text::ChatRequest request = start_chat(format);
  request.messages.push_back({.role = "user", .content = message});
  const engine::ChatPrompt prompt = encode_chat(format, tokenizer, request);
  prompt_tokens_ = prompt.ids.size();
  engine::Sampler sampler(sampling_);
  sampler.see_prompt(prompt.ids);
  engine::GenerateResult result;
  record_.begin_turn(session_, prompt.ids, true);
  if (session_.prefill(prompt.ids, keep_going_)) {
    record_.prefilled(session_);
    result = answer(sampler, prompt.in_reasoning, true);
  } else {
    result.reason = engine::prefill_stop(session_);
    record_.end_turn(session_, result);
  }
  return finish(result);
}

// One line of the user's; a line that ends in a backslash goes on. Empty at the end of input.
std::optional<std::string> read_message() {
  std::string message;
  std::string line;
  fmt::print(stderr, "> ");
  while (std::getline(std::cin, line)) {
    if (line.empty() || line.back() != '\\') return message + line;
    line.back() = '\n';
    message += line;
    fmt::print(stderr, "| ");
  }
  return std::nullopt;
}

int Runner::chat_interactive() {
  const text::Tokenizer& tokenizer = runtime_.tokenizer();
  const engine::ChatFormat format = flags_.chat_flags.open(runtime_);
  text::ChatRequest request = start_chat(format);
  const size_t n_fixed = request.messages.size();
  engine::Conversation conversation(session_);
  log::info(
      "write, and end with Enter (a \\ at the end goes on in the next line); /reset forgets the "
      "conversation, /exit or Ctrl-D ends, Ctrl-C stops an answer");
  engine::GenerateResult result;
  for (;;) {
    const std::optional<std::string> message = read_message();
    if (!message || *message == "/exit" || cancel_.load()) break;
    if (*message == "/reset") {
      request.messages.resize(n_fixed);
      session_.reset();
      continue;
    }
    if (message->find_first_not_of(" \t\r\n") == std::string::npos) continue;
    request.messages.push_back({.role = "user", .content = *message});
    const engine::ChatPrompt prompt = encode_chat(format, tokenizer, request);
    if (static_cast<int64_t>(prompt.ids.size()) >= session_.n_ctx()) {
      log::warn(
          "the conversation no longer fits into {} tokens of context: /reset, or start again "
          "with a larger --ctx",
          session_.n_ctx());
      request.messages.pop_back();
      continue;
    }
    prompt_tokens_ = prompt.ids.size();
    record_.begin_turn(session_, prompt.ids, true);
    if (!conversation.advance(prompt.ids, prompt.n_stable, keep_going_)) {
      request.messages.pop_back();
      cancel_.store(false);
      result.reason = engine::prefill_stop(session_);
      record_.end_turn(session_, result);
      if (result.reason == engine::StopReason::Watchdog) break;
      continue;
    }
    record_.prefilled(session_);
    engine::Sampler sampler(sampling_);
    sampler.see_prompt(prompt.ids);
    result = answer(sampler, prompt.in_reasoning, true);
    cancel_.store(false);
    if (result.reason == engine::StopReason::Watchdog) break;
    if (result.reason == engine::StopReason::ContextFull) {
      log::warn("the context of {} tokens is full: /reset, or start again with a larger --ctx",
                session_.n_ctx());
    }
    text::ReasoningSplitter splitter(prompt.in_reasoning);
    text::ChatMessage reply{.role = "assistant", .content = {}};
    std::string reasoning;
    for (const bool flush : {false, true}) {
      for (const auto& part : flush ? splitter.flush() : splitter.push(result.text)) {
        (part.reasoning ? reasoning : reply.content) += part.text;
      }
    }
    if (!reasoning.empty()) reply.reasoning_content = reasoning;
    request.messages.push_back(std::move(reply));
  }
  const int code = finish(result);
  return result.reason == engine::StopReason::Watchdog ? code : 0;
}

// What was selected, and the tokens it was selected for, for later runs.
void Runner::write_profile() {
  experts::Profile profile;
  profile.model_id = runtime_.file().model_id();
  profile.keep_map_id = runtime_.file().metadata().get_string("penstock.keep_map_id", "");
  const experts::MoceOptions& moce = runtime_.options().stream.moce;
  profile.routing = moce.on() ? experts::moce_name(moce.mode) : "exact";
  profile.layers = uses_->layers();
  profile.n_tokens = session_.tokens().size();
  profile.tokens_id = surgery::tokens_id(session_.tokens());
  profile.windows = experts::window_hashes(session_.tokens());
  experts::write_profile(flags_.profile_out, profile);
  log::info("{} uses of experts counted in {}", profile.uses(), flags_.profile_out);
}

// What explains a trace to whoever replays it.
std::string trace_settings(const Flags& flags, const engine::Runtime& runtime,
                           const engine::SamplerOptions& sampling) {
  const experts::StreamOptions& stream = runtime.options().stream;
  nlohmann::ordered_json out;
  out["model_id"] = hex(runtime.file().model_id());
  out["chat_template"] = flags.chat || flags.interactive;
  out["text"] = "prompt as given, the rest generated";
  out["sampling"] = {{"temperature", sampling.temperature},
                     {"top_k", sampling.top_k},
                     {"top_p", sampling.top_p},
                     {"min_p", sampling.min_p},
                     {"seed", sampling.seed}};
  out["slots"] = runtime.stream().shape().slots();
  out["transit"] = runtime.stream().shape().transit;
  for (const experts::SlotClass& c : runtime.stream().shape().classes) {
    out["classes"].push_back({{"slot_bytes", c.slot_bytes}, {"slots", c.slots}});
  }
  out["class_of_layer"] = runtime.stream().shape().class_of;
  const experts::ArenaShape& shape = runtime.stream().shape();
  for (const experts::LayerLoad& load :
       experts::layer_loads(runtime.source().geometry, shape.alignment)) {
    out["read_bytes"].push_back(load.read_bytes);
  }
  out["evict"] = experts::evict_name(stream.evict);
  out["half_life"] = stream.half_life;
  out["hot_share"] = stream.hot_share;
  out["read_ahead"] = experts::read_ahead_name(stream.read_ahead);
  out["predictor"] = experts::predictor_name(stream.predictor);
  out["fill"] = experts::fill_name(stream.fill);
  out["profile"] = runtime.profile_path();
  out["moce"] = experts::moce_name(stream.moce.mode);
  if (stream.moce.on()) {
    out["moce_settings"] = {{"bonus", stream.moce.bonus},
                            {"lambda", stream.moce.lambda},
                            {"protect", stream.moce.protect},
                            {"window", stream.moce.window},
                            {"mass", stream.moce.mass},
                            {"guard", stream.moce.guard},
                            {"residency", experts::moce_residency_name(stream.moce.residency)}};
  }
  out["depth"] = stream.depth;
  return out.dump();
}

void Runner::start_recording() {
  experts::Stream& stream = runtime_.stream();
  if (!flags_.profile_out.empty()) {
    uses_.emplace(stream.geometry());
    stream.observe(&*uses_);
  }
  if (!flags_.trace.empty()) {
    trace_.emplace(flags_.trace, stream.geometry(), flags_.trace_logits,
                   trace_settings(flags_, runtime_, sampling_));
    stream.observe(&*trace_);
  }
  if (!flags_.timeline.empty()) {
    timeline_.emplace();
    stream.record(&*timeline_);
  }
}

void Runner::finish_recording() {
  if (uses_) write_profile();
  if (trace_) {
    trace_->finish();
    log::info("routing trace: {} in {}", format_bytes(trace_->bytes()), flags_.trace);
  }
  if (timeline_) {
    runtime_.stream().record(nullptr);
    timeline_->write(flags_.timeline);
    if (const auto token = timeline_->typical_token()) record_.looked_at(*token);
    log::info("timeline: {} events in {} (open it in ui.perfetto.dev or chrome://tracing){}",
              timeline_->events(), flags_.timeline,
              timeline_->lost() == 0
                  ? ""
                  : fmt::format("; {} later ones are left out", timeline_->lost()));
  }
}

int Runner::run() {
  report_plan();
  sampling_ = sampler_options(flags_, runtime_);
  record_.settings(runtime_, {{"sampling", sampling_json(sampling_)},
                              {"n_predict", flags_.n_predict},
                              {"ignore_eos", flags_.ignore_eos},
                              {"stop", flags_.stop}});
  start_recording();
  try {
    return go();
  } catch (const Error&) {
    record_.poll(session_);
    record_.measured(session_);
    throw;
  }
}

int Runner::go() {
  if (!flags_.ids.empty()) return complete(text::read_token_ids(flags_.ids));
  const bool no_prompt = flags_.prompt.empty() && flags_.file.empty() && flags_.restore.empty();
  if (flags_.interactive || (no_prompt && isatty(STDIN_FILENO) == 1)) return chat_interactive();
  std::string prompt = flags_.prompt;
  if (prompt.empty() && (flags_.restore.empty() || !flags_.file.empty())) {
    prompt = read_text_file(flags_.file.empty() ? "-" : flags_.file);
  }
  if (flags_.chat) return chat_once(prompt);
  if (prompt.empty()) return complete({});  // goes on from a restored state, or is refused there
  return complete(runtime_.tokenizer().encode(prompt, true));
}

// A conversation has no known end, and nor has a completion without -n.
int64_t tokens_to_expect(const Flags& flags) {
  const bool conversation = flags.interactive || flags.chat || !flags.profile_out.empty() ||
                            (flags.prompt.empty() && flags.file.empty() && flags.ids.empty());
  return conversation ? 0 : std::max<int64_t>(flags.n_predict, 0);
}

int run_run(const Flags& flags) {
  if (!flags.prompt.empty() && !flags.file.empty()) {
    fail(ErrorKind::Usage, "give the prompt with -p or a file with -f, not both");
  }
  if (!flags.ids.empty() && (!flags.prompt.empty() || !flags.file.empty() || flags.chat)) {
    fail(ErrorKind::Usage, "--ids is a prompt of its own: leave -p, -f and --chat away");
  }
  if (flags.interactive && (!flags.prompt.empty() || !flags.file.empty() || !flags.ids.empty() ||
                            !flags.restore.empty())) {
    fail(ErrorKind::Usage,
         "-i takes its messages from standard input: leave -p, -f, --ids and "
         "--restore away");
  }
  if (flags.chat && !flags.restore.empty()) {
    fail(ErrorKind::Usage, "--restore continues token by token: it does not go with --chat");
  }
  interrupt_flag();
  return recorded(flags.record, [&](RunRecord& record) {
    engine::RuntimeOptions options = flags.runtime.options();
    options.max_tokens = tokens_to_expect(flags);
    const auto runtime = engine::Runtime::open(options, record.watch(progress_line()));
    record.opened(*runtime);
    return Runner(flags, *runtime, record).run();
  });
}

}  // namespace

void add_run(CLI::App& app, Action* action) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand(
      "run", "Completes a text (-p, -f, standard input) or holds a conversation in the terminal.");
  command->footer(
      "Examples:\n"
      "  penstock run -p \"In the beginning\" -n 100\n"
      "  penstock run -m MODEL.gguf --memory 8G                    a chat within 8 GB\n"
      "  penstock run -m MODEL.gguf --chat -p \"What is a penstock?\" --reasoning off\n"
      "  penstock run -m MODEL.gguf --json -p \"...\" > run.json\n"
      "\n"
      "The summary goes to standard error; -q leaves it away.");
  flags->runtime.add_to(*command);
  command->add_option("-p,--prompt", flags->prompt, "the text to go on from")->group("Prompt");
  command->add_option("-f,--file", flags->file, "file with the prompt; - for stdin")
      ->group("Prompt");
  command->add_option("--ids", flags->ids, "file with the prompt as token ids; - for stdin")
      ->group("Prompt");
  command->add_flag("--chat", flags->chat, "the prompt is a message: apply the chat template")
      ->group("Prompt");
  command
      ->add_flag("-i,--interactive", flags->interactive,
                 "a conversation, line by line; what a terminal without a prompt gets")
      ->group("Prompt");
  command->add_option("--save", flags->save, "writes the state after the run to a file")
      ->group("Prompt");
  command->add_option("--restore", flags->restore, "goes on from a saved state")->group("Prompt");
  command->add_option("--system", flags->system, "system message of the chat")->group("Chat");
  flags->chat_flags.add_to(*command);
  command
      ->add_option("-n,--n-predict", flags->n_predict, "tokens to generate at most; -1: no limit")
      ->capture_default_str()
      ->group("Generation");
  command->add_option("--temp", flags->temperature, "temperature; 0: always the most likely token")
      ->default_str("the file's, else 0.7")
      ->group("Generation");
  command->add_option("--top-k", flags->top_k, "choose among the K most likely; 0: all")
      ->default_str("the file's, else 20")
      ->group("Generation");
  command->add_option("--top-p", flags->top_p, "choose among the smallest set of this probability")
      ->default_str("the file's, else 0.95")
      ->group("Generation");
  command->add_option("--min-p", flags->min_p, "leave out what is below this share of the best")
      ->default_str("0")
      ->group("Generation");
  command->add_option("--repeat-penalty", flags->repetition, "above 1: less repetition")
      ->capture_default_str()
      ->group("Generation");
  command
      ->add_option("--presence-penalty", flags->presence, "above 0: less of what was already said")
      ->capture_default_str()
      ->group("Generation");
  command
      ->add_option("--frequency-penalty", flags->frequency, "above 0: less of what was said often")
      ->capture_default_str()
      ->group("Generation");
  command->add_option("--seed", flags->seed, "same seed, same text")
      ->default_str("from the clock, printed")
      ->group("Generation");
  command->add_option("--stop", flags->stop, "stops before this text; may be given several times")
      ->group("Generation");
  command->add_flag("--ignore-eos", flags->ignore_eos, "goes on past the end of the turn")
      ->group("Generation");
  command->add_flag("--special", flags->special, "shows control tokens")->group("Generation");
  command
      ->add_flag("--json", flags->json,
                 "prints text, tokens, timings, counters and plan as JSON instead of the text")
      ->group("Output");
  command
      ->add_option("--record", flags->record,
                   "writes a record of the run into this folder (docs/records.md)")
      ->group("Output");
  command
      ->add_option("--trace-routing", flags->trace,
                   "writes which experts every token selected, for replaying other policies")
      ->group("Output");
  command->add_flag("--trace-logits", flags->trace_logits, "the trace has the routers' logits too")
      ->group("Output");
  command
      ->add_option("--timeline", flags->timeline,
                   "writes when what was computed, read and waited for, for ui.perfetto.dev")
      ->group("Output");
  command
      ->add_option("--profile-out", flags->profile_out,
                   "counts how often each expert was used, for later runs (--profile)")
      ->group("Output");
  command->add_flag("--no-summary", flags->no_summary, "leaves the table at the end away")
      ->group("Output");
  command->callback([flags, action] { *action = [flags] { return run_run(*flags); }; });
}

}  // namespace penstock::cli
