#include "server/metrics.h"

#include <fmt/format.h>
#include <unistd.h>

#include <fstream>
#include <string_view>

namespace penstock::server {
namespace {

class Page {
 public:
  // Begins a metric; its samples follow.
  Page& metric(std::string_view name, std::string_view type, std::string_view help) {
    name_ = name;
    fmt::format_to(std::back_inserter(text_), "# HELP penstock_{0} {1}\n# TYPE penstock_{0} {2}\n",
                   name, help, type);
    return *this;
  }
  template <typename T>
  Page& sample(T value, std::string_view labels = {}) {
    if (labels.empty()) {
      fmt::format_to(std::back_inserter(text_), "penstock_{} {}\n", name_, value);
    } else {
      fmt::format_to(std::back_inserter(text_), "penstock_{}{{{}}} {}\n", name_, labels, value);
    }
    return *this;
  }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
  std::string name_;
};

std::string label(std::string_view name, std::string_view value) {
  std::string escaped;
  for (const char c : value) {
    if (c == '\\' || c == '"') escaped += '\\';
    if (c == '\n') {
      escaped += "\\n";
    } else {
      escaped += c;
    }
  }
  return fmt::format("{}=\"{}\"", name, escaped);
}

double share(double part, double whole) {
  return whole > 0 ? part / whole : 0;
}

double seconds(uint64_t ns) {
  return static_cast<double>(ns) * 1e-9;
}

// Resident bytes as the kernel's counters give them: quick, unlike a walk over the page tables.
uint64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  uint64_t size = 0, resident = 0;
  statm >> size >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

void write_experts(Page& page, const EngineFacts& engine) {
  const experts::Counters& c = engine.counters;
  page.metric("expert_uses_total", "counter", "Uses of experts in decode by exclusive class.");
  const auto uses = [&](const char* phase, const experts::UseCounts& counts) {
    const auto one = [&](const char* name, uint64_t value) {
      page.sample(value, label("class", name) + "," + label("phase", phase));
    };
    one("arena", counts.arena);
    one("read_ahead_timely", counts.ra_timely);
    one("read_ahead_late", counts.ra_late);
    one("miss_issued", counts.miss_issued);
    one("miss_joined", counts.miss_joined);
  };
  uses("first", c.first);
  uses("steady", c.steady);
  page.metric("prompt_experts_total", "counter",
              "Experts a prompt chunk needed, by where they were.")
      .sample(c.prompt_arena_used, label("class", "arena"))
      .sample(c.prompt_experts_touched - c.prompt_arena_used, label("class", "read"));
  const std::pair<const char*, const experts::ReadCounts&> reads[] = {{"demand", c.demand},
                                                                      {"prompt", c.prompt},
                                                                      {"fill", c.fill},
                                                                      {"speculative", c.spec},
                                                                      {"ngram_rows", c.ple}};
  page.metric("read_bytes_total", "counter", "Bytes asked of the disk by reason.");
  for (const auto& [reason, counts] : reads) page.sample(counts.bytes, label("reason", reason));
  page.metric("reads_total", "counter", "Reads by reason.");
  for (const auto& [reason, counts] : reads) page.sample(counts.reads, label("reason", reason));
  page.metric("read_retries_total", "counter", "Reads that failed and were repeated.")
      .sample(c.read_errors_retried);
  page.metric("records_verified_total", "counter", "Records of a pack whose checksum was right.")
      .sample(c.records_verified);
  page.metric("evictions_total", "counter", "Experts that made room for others.")
      .sample(c.evict_total);
  page.metric("stall_seconds_total", "counter", "Time the computation waited for the disk.")
      .sample(seconds(c.stall_ns), label("phase", "decode"))
      .sample(seconds(c.prompt_stall_ns), label("phase", "prompt"));
  const engine::Timings& t = engine.timings;
  page.metric("stall_share", "gauge", "Share of the computing time spent waiting for the disk.")
      .sample(share(seconds(c.stall_ns), t.first_s + t.decode_s), label("phase", "decode"))
      .sample(share(seconds(c.prompt_stall_ns), t.prefill_s), label("phase", "prompt"));
}

void write_model(Page& page, const ModelFacts& m) {
  page.metric("info", "gauge", "What runs.")
      .sample(1, label("version", m.version) + "," + label("model", m.model) + "," +
                     label("io", m.io) + "," + label("experts_from", m.experts_from) + "," +
                     label("isa", m.isa) + "," + label("precision", m.precision) + "," +
                     label("kv", m.kv));
  page.metric("load_seconds", "gauge", "Time it took to load the model.").sample(m.load_seconds);
  page.metric("threads", "gauge", "Compute threads.").sample(m.threads);
  page.metric("context_tokens", "gauge", "Length of the context.").sample(m.n_ctx);
  page.metric("arena_slots", "gauge", "Experts that fit into the arena.").sample(m.arena_slots);
  page.metric("experts", "gauge", "Experts of the model.").sample(m.experts);
  page.metric("arena_bytes", "gauge", "Size of the arena.").sample(m.arena_bytes);
  page.metric("arena_huge_bytes", "gauge", "Of it on huge pages, as measured.")
      .sample(m.arena_huge_bytes);
  page.metric("memory_planned_bytes", "gauge", "The memory plan by term.");
  for (const auto& [term, bytes] : m.plan) page.sample(bytes, label("term", term));
  page.metric("memory_budget_bytes", "gauge", "What the plan had to fit into.").sample(m.budget);
  page.metric("memory_planned_peak_bytes", "gauge", "The plan's largest sum, without slack.")
      .sample(m.peak_planned);
  page.metric("lossy_option", "gauge", "1 where an option that changes the output is in force.");
  for (const auto& [option, on] : m.lossy) page.sample(on ? 1 : 0, label("option", option));
}

}  // namespace

void Metrics::count_response(const std::string& endpoint, int status) {
  const std::lock_guard lock(mutex_);
  ++responses_[{endpoint, status}];
}

void Metrics::count_job(const Outcome& outcome, CancelReason cancelled, double waited_s) {
  const std::lock_guard lock(mutex_);
  std::string name;
  if (cancelled == CancelReason::ClientGone) {
    name = "client_closed_request";
  } else if (outcome.error) {
    name = outcome.error->code();
  } else {
    const bool cut = outcome.reason == engine::StopReason::Length ||
                     outcome.reason == engine::StopReason::ContextFull;
    name = cut ? "length" : "stop";
  }
  ++outcomes_[name];
  tokens_.prompt_tokens += outcome.usage.prompt_tokens;
  tokens_.cached_tokens += outcome.usage.cached_tokens;
  tokens_.completion_tokens += outcome.usage.completion_tokens;
  tokens_.reasoning_tokens += outcome.usage.reasoning_tokens;
  waited_s_ += waited_s;
}

void Metrics::note_speeds(double prompt, double decode) {
  const std::lock_guard lock(mutex_);
  if (prompt > 0) prompt_speed_ = prompt;
  if (decode > 0) decode_speed_ = decode;
}

void Metrics::set_model(ModelFacts facts) {
  const std::lock_guard lock(mutex_);
  model_ = std::move(facts);
}

void Metrics::publish(const EngineFacts& facts) {
  const std::lock_guard lock(mutex_);
  engine_ = facts;
}

std::string Metrics::text(const Gauges& gauges) const {
  const uint64_t resident = resident_bytes();
  const std::lock_guard lock(mutex_);
  Page page;
  page.metric("ready", "gauge", "1 when the model is loaded and requests are taken.")
      .sample(gauges.ready ? 1 : 0);
  page.metric("requests_waiting", "gauge", "Requests that wait for the model.")
      .sample(gauges.waiting);
  page.metric("requests_running", "gauge", "Requests that the model works on.")
      .sample(gauges.running);
  page.metric("http_responses_total", "counter", "Responses by endpoint and status.");
  for (const auto& [key, count] : responses_) {
    page.sample(count,
                label("endpoint", key.first) + "," + label("status", std::to_string(key.second)));
  }
  page.metric("requests_total", "counter", "Generations by how they ended.");
  for (const auto& [outcome, count] : outcomes_) page.sample(count, label("outcome", outcome));
  page.metric("queue_seconds_total", "counter", "Time requests waited for the model.")
      .sample(waited_s_);
  page.metric("tokens_total", "counter", "Tokens by kind; reasoning is part of completion.")
      .sample(tokens_.prompt_tokens, label("kind", "prompt"))
      .sample(tokens_.cached_tokens, label("kind", "prompt_cached"))
      .sample(tokens_.completion_tokens, label("kind", "completion"))
      .sample(tokens_.reasoning_tokens, label("kind", "reasoning"));
  const engine::Timings& t = engine_.timings;
  page.metric("evaluated_tokens_total", "counter", "Tokens that went through the model.")
      .sample(t.prefill_tokens, label("phase", "prompt"))
      .sample(t.first_tokens + t.decode_tokens, label("phase", "decode"));
  page.metric("compute_seconds_total", "counter", "Time the model worked.")
      .sample(t.prefill_s, label("phase", "prompt"))
      .sample(t.first_s + t.decode_s, label("phase", "decode"));
  page.metric("tokens_per_second", "gauge", "Speed of the last request that had the phase.")
      .sample(prompt_speed_, label("phase", "prompt"))
      .sample(decode_speed_, label("phase", "decode"));
  write_experts(page, engine_);
  write_model(page, model_);
  page.metric("memory_peak_bytes", "gauge", "The largest footprint measured.")
      .sample(engine_.footprint_peak);
  page.metric("memory_resident_bytes", "gauge", "Resident memory now, files included.")
      .sample(resident);
  return page.take();
}

}  // namespace penstock::server
