#include "server/scheduler.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "quant/matmul.h"

namespace penstock::server {
namespace {

constexpr int64_t kPublishNs = 100'000'000;

ApiError changed_error(const Status& status) {
  return {500, "model_file_changed",
          status.error + ": no answer can be relied on; check the file and start the server again"};
}

ApiError not_ready(const Status& status) {
  switch (status.phase) {
    case Phase::Changed:
      return changed_error(status);
    case Phase::Failed:
      return {503, "model_failed", "the model is not there: " + status.error};
    case Phase::Stopping:
      return cancel_error(CancelReason::Stopping);
    default:
      return {503, "model_loading", "the model is still being loaded: GET /health says how far"};
  }
}

}  // namespace

Scheduler::Scheduler(const ServerOptions& options, Load load, Metrics& metrics)
    : options_(options), load_(std::move(load)), metrics_(metrics) {}

Scheduler::~Scheduler() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    status_.phase = Phase::Stopping;
  }
  cancel_all(CancelReason::Stopping);
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Scheduler::start() {
  thread_ = std::thread([this] { run(); });
}

Status Scheduler::status() const {
  const std::lock_guard lock(mutex_);
  Status status = status_;
  for (const auto& [client, queue] : queues_) status.waiting += queue.size();
  status.running = running_ ? 1 : 0;
  return status;
}

std::exception_ptr Scheduler::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

std::shared_ptr<const Model> Scheduler::model() const {
  const std::lock_guard lock(mutex_);
  if (status_.phase != Phase::Ready) throw not_ready(status_);
  return model_;
}

void Scheduler::submit(const std::shared_ptr<Job>& job) {
  {
    const std::lock_guard lock(mutex_);
    if (status_.phase != Phase::Ready) throw not_ready(status_);
    size_t waiting = 0;
    for (const auto& [client, queue] : queues_) waiting += queue.size();
    if (waiting >= static_cast<size_t>(options_.limits.queue)) {
      throw ApiError(503, "queue_full",
                     fmt::format("{} requests are waiting already: try again later", waiting));
    }
    // A client that was not waiting comes behind those that are.
    if (!queues_.contains(job->client)) last_turn_[job->client] = ++turn_;
    queues_[job->client].push_back({job, now_ns()});
  }
  changed_.notify_one();
}

void Scheduler::cancel(const std::shared_ptr<Job>& job, CancelReason reason) {
  job->cancel(reason);
  {
    const std::lock_guard lock(mutex_);
    const auto found = queues_.find(job->client);
    if (found == queues_.end()) return;
    if (std::erase_if(found->second, [&](const Waiting& w) { return w.job == job; }) == 0) return;
    if (found->second.empty()) {
      last_turn_.erase(found->first);
      queues_.erase(found);
    }
  }
  Outcome outcome;
  outcome.error = cancel_error(reason);
  metrics_.count_job(outcome, reason, 0);
  job->finish(std::move(outcome));
}

void Scheduler::refuse_more() {
  const std::lock_guard lock(mutex_);
  status_.phase = Phase::Stopping;
}

void Scheduler::cancel_all(CancelReason reason) {
  std::vector<std::shared_ptr<Job>> jobs;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [client, queue] : queues_) {
      for (const Waiting& waiting : queue) jobs.push_back(waiting.job);
    }
    if (running_) running_->cancel(reason);
  }
  for (const std::shared_ptr<Job>& job : jobs) cancel(job, reason);
}

void Scheduler::load() {
  auto runtime = load_([this](std::string_view step, uint64_t done, uint64_t total) {
    const std::lock_guard lock(mutex_);
    if (stop_) fail(ErrorKind::Cancelled, "stopped while loading");
    status_.step = step;
    status_.done = done;
    status_.total = total;
  });
  auto model = std::make_shared<const Model>(*runtime, options_);
  if (!model->chat) log::warn("no chat: {}", model->no_chat);
  const std::lock_guard lock(mutex_);
  runtime_ = std::move(runtime);
  model_ = std::move(model);
}

void Scheduler::run() {
  try {
    load();
    metrics_.set_model(facts());
    const std::lock_guard lock(mutex_);
    if (status_.phase == Phase::Loading) status_.phase = Phase::Ready;
  } catch (const std::exception& error) {
    const std::lock_guard lock(mutex_);
    failure_ = std::current_exception();
    status_.error = error.what();
    if (status_.phase == Phase::Loading) status_.phase = Phase::Failed;
    return;
  }
  engine::Session session(*runtime_);
  engine::Conversation conversation(session);
  publish(session);
  while (const std::shared_ptr<Job> job = next()) {
    execute(*job, session, conversation);
    const std::lock_guard lock(mutex_);
    running_.reset();
    if (!session.out_of_memory()) continue;
    // The machine needs the memory more: this ends the server.
    const Error error(ErrorKind::Watchdog,
                      "memory ran out: the server ends after the token it was at; close other "
                      "programs, or use a smaller --memory");
    failure_ = std::make_exception_ptr(error);
    status_.error = error.what();
    status_.phase = Phase::Failed;
    return;
  }
}

// The next job by turns; null when there shall be no more.
std::shared_ptr<Job> Scheduler::next() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return stop_ || !queues_.empty(); });
  if (stop_) return nullptr;
  const auto by_turn = [](const auto& a, const auto& b) { return a.second < b.second; };
  const auto client = std::min_element(last_turn_.begin(), last_turn_.end(), by_turn);
  const auto queue = queues_.find(client->first);
  const Waiting waiting = std::move(queue->second.front());
  queue->second.pop_front();
  client->second = ++turn_;
  if (queue->second.empty()) {
    queues_.erase(queue);
    last_turn_.erase(client);
  }
  running_ = waiting.job;
  waited_s_ = seconds_since(waiting.since_ns);
  return running_;
}

bool Scheduler::keep_going(Job& job, engine::Session& session) {
  const int64_t now = now_ns();
  if (now > job.deadline_ns) job.cancel(CancelReason::Timeout);
  if (now - published_ns_ > kPublishNs) publish(session);
  return job.cancelled() == CancelReason::None;
}

void Scheduler::publish(engine::Session& session) {
  published_ns_ = now_ns();
  EngineFacts facts;
  facts.counters = runtime_->counters();
  facts.timings = session.timings();
  facts.footprint_peak = session.last_peak_footprint();
  metrics_.publish(facts);
}

// An error once the model's file was written to or cut. That is for good: what has been read of it
// stays in memory, even if the file gets its old size and time again.
std::optional<ApiError> Scheduler::file_error() {
  std::string changed;
  try {
    changed = runtime_->source().changed();
  } catch (const Error& error) {
    return from_engine(error);
  }
  const std::lock_guard lock(mutex_);
  if (status_.error.empty()) status_.error = std::move(changed);
  if (status_.error.empty()) return std::nullopt;
  if (status_.phase == Phase::Ready) status_.phase = Phase::Changed;
  return changed_error(status_);
}

void Scheduler::generate(Job& job, engine::Session& session, engine::Conversation& conversation,
                         Outcome* outcome) {
  std::unique_ptr<JobWatch> watch;
  const engine::KeepGoing keep_going = [&] {
    if (watch) watch->step(session);
    return this->keep_going(job, session);
  };
  try {
    if (options_.watch) watch = options_.watch(session, job);
    engine::Sampler sampler(job.sampling);
    sampler.see_prompt(job.prompt);
    if (conversation.advance(job.prompt, job.n_stable, keep_going)) {
      outcome->usage.cached_tokens = conversation.reused();
      if (watch) watch->prefilled(session);
      const engine::GenerateResult result = engine::generate(
          session, sampler, job.generate, [&](const engine::Output& output) { job.put(output); },
          keep_going);
      outcome->reason = result.reason;
      outcome->usage.completion_tokens = static_cast<int64_t>(result.tokens.size());
      outcome->usage.reasoning_tokens = result.reasoning_tokens;
      if (watch) watch->done(session, result);
      watch.reset();
    }
    if (session.out_of_memory()) {
      outcome->error = ApiError(503, "out_of_memory", "the server ran out of memory");
    } else if (outcome->reason == engine::StopReason::Cancelled) {
      outcome->error = cancel_error(job.cancelled());
    }
  } catch (const Error& error) {
    outcome->error = from_engine(error);
  } catch (const std::exception& error) {
    outcome->error = ApiError(500, "internal_error", error.what());
  }
  if (watch) {
    watch->failed(session, outcome->error ? outcome->error->what() : "ended during its prompt");
  }
}

void Scheduler::execute(Job& job, engine::Session& session, engine::Conversation& conversation) {
  const engine::Timings before = session.timings();
  Outcome outcome;
  outcome.usage.prompt_tokens = static_cast<int64_t>(job.prompt.size());
  outcome.error = file_error();
  if (!outcome.error) {
    generate(job, session, conversation, &outcome);
    // An answer from a file that changed meanwhile is none, and explains a failed read.
    if (std::optional<ApiError> error = file_error()) outcome.error = std::move(error);
  }
  if (outcome.error && outcome.error->status() == 500)
    log::warn("{}: {}", job.id, outcome.error->what());

  const engine::Timings& after = session.timings();
  engine::Timings of_job;
  of_job.prefill_tokens = after.prefill_tokens - before.prefill_tokens;
  of_job.prefill_s = after.prefill_s - before.prefill_s;
  of_job.decode_tokens = after.decode_tokens - before.decode_tokens;
  of_job.decode_s = after.decode_s - before.decode_s;
  metrics_.note_speeds(of_job.prefill_rate(), of_job.decode_rate());
  metrics_.count_job(outcome, job.cancelled(), waited_s_);
  log::info(
      "{}: {} prompt tokens ({} reused), {} generated in {:.2f} s after {:.2f} s of waiting: {}",
      job.id, outcome.usage.prompt_tokens, outcome.usage.cached_tokens,
      outcome.usage.completion_tokens,
      after.prefill_s - before.prefill_s + after.first_s - before.first_s + of_job.decode_s,
      waited_s_, outcome.error ? outcome.error->code() : engine::stop_reason_text(outcome.reason));
  publish(session);
  job.finish(std::move(outcome));
}

ModelFacts Scheduler::facts() const {
  const engine::Runtime& runtime = *runtime_;
  const engine::RuntimeOptions& options = runtime.options();
  const experts::Plan& plan = runtime.plan();
  const engine::LoadReport& load = runtime.load();
  ModelFacts facts;
  facts.model = model_->id;
  facts.version = options_.version;
  facts.io = runtime.stream().io().describe();
  facts.experts_from = runtime.source().describe();
  facts.isa = quant::isa_name(quant::current_isa());
  facts.precision = options.precision == quant::Precision::Exact ? "exact" : "fast";
  facts.kv = *options.kv == models::KvType::F32 ? "f32" : "f16";
  facts.threads = options.threads;
  facts.n_ctx = options.n_ctx;
  facts.arena_slots = plan.slots();
  facts.experts = plan.shape.n_experts();
  facts.arena_bytes = plan.arena;
  facts.arena_huge_bytes = load.arena_huge_bytes;
  facts.budget = plan.budget;
  facts.peak_planned = std::max(plan.peak_decode, plan.peak_prefill) - plan.slack;
  for (const auto& [term, bytes] : plan.rows()) facts.plan.emplace_back(term, bytes);
  facts.lossy = {{"alias_experts", options.stream.alias},
                 {"moce", options.stream.moce.on()},
                 {"dense_convert", load.dense.tensors_converted() != 0}};
  facts.load_seconds = load.open_s + load.dense_s + load.arena_s;
  return facts;
}

}  // namespace penstock::server
