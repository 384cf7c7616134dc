#include "measure/figures.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "measure/archive.h"
#include "measure/record.h"

namespace penstock::measure {
namespace {

using Json = nlohmann::json;

// Decode steps of the last counters: the first token's and the steady ones (spec/streaming.md
// §A.1).
constexpr const char* kSteady = "/counters/-1/counters/uses_steady/";

std::string steady(const char* name) {
  return "{" + std::string(kSteady) + name + "}";
}

std::vector<Figure> of_run_records() {
  const std::string hits = steady("arena") + " + " + steady("ra_timely");
  const std::string misses =
      steady("ra_late") + " + " + steady("miss_issued") + " + " + steady("miss_joined");
  const std::string per_use = " / " + steady("total");
  const std::string steps = "{/counters/-1/counters/steps}";
  const auto share = [&](const char* name) { return Formula(steady(name) + per_use + " * 100"); };
  // Factors of 1 that are no number where nothing was counted: experts used in the mapped file are
  // waited for inside the kernel, and nobody sees it.
  const std::string streamed = " * " + steady("total") + " / " + steady("total");
  const std::string prompt_reads = "{/counters/-1/counters/reads_prompt/reads}";
  const std::string prompt_read = " * " + prompt_reads + " / " + prompt_reads;
  return {
      {"load_s", "load", "s", "load",
       Formula("{/timings/load/open_s} + {/timings/load/dense_s} + {/timings/load/arena_s}"), 2},
      {"fill_s", "warm fill", "s", "fill", Formula("{/timings/fill/seconds}"), 2},
      {"prompt_tokens", "prompt", "tokens", "prefill", Formula("{/timings/prefill/tokens}"), 0},
      {"prefill_s", "prompt", "s", "prefill", Formula("{/timings/prefill/seconds}"), 3},
      {"prefill_tok_s", "prompt", "tok/s", "prefill",
       Formula("{/timings/prefill/tokens} / {/timings/prefill/seconds}"), 2},
      {"prefill_stall_s", "waiting in the prompt", "s", "prefill",
       Formula("{/counters/-1/counters/prompt_stall_ns} / 1e9" + prompt_read), 2},
      {"prefill_mb", "read for the prompt", "MB", "prefill",
       Formula("{/counters/-1/counters/reads_prompt/bytes} / 1e6" + prompt_read), 0},
      {"first_token_s", "first token", "s", "first token",
       Formula("{/timings/first_token/seconds}"), 3},
      {"cold_start_s", "start to first token", "s", "cold start",
       Formula("{/timings/load/open_s} + {/timings/load/dense_s} + {/timings/load/arena_s} + "
               "{/timings/fill/seconds} + {/timings/prefill/seconds} + "
               "{/timings/first_token/seconds}"),
       2},
      {"decode_tokens", "decode", "tokens", "decode", Formula("{/timings/decode/tokens}"), 0},
      {"decode_s", "decode", "s", "decode", Formula("{/timings/decode/seconds}"), 3},
      {"decode_tok_s", "decode", "tok/s", "decode",
       Formula("{/timings/decode/tokens} / {/timings/decode/seconds}"), 2},
      {"decode_ms", "decode", "ms/token", "decode",
       Formula("{/timings/decode/seconds} / {/timings/decode/tokens} * 1000"), 2},
      {"hit_pct", "hits", "%", "decode", Formula("(" + hits + ")" + per_use + " * 100"), 2},
      {"arena_pct", "arena hits", "%", "decode", share("arena"), 2},
      {"ra_timely_pct", "read ahead in time", "%", "decode", share("ra_timely"), 2},
      {"ra_late_pct", "read ahead too late", "%", "decode", share("ra_late"), 2},
      {"miss_pct", "misses", "%", "decode",
       Formula("(" + steady("miss_issued") + " + " + steady("miss_joined") + ")" + per_use +
               " * 100"),
       2},
      {"misses_per_token", "misses", "/token", "decode",
       Formula("(" + misses + ") / {/timings/decode/tokens}"), 1},
      {"stall_ms", "waiting", "ms/token", "decode",
       Formula("{/counters/-1/counters/stall_ns} / " + steps + " / 1e6" + streamed), 2},
      {"mb_per_token", "read", "MB/token", "decode",
       Formula("({/counters/-1/counters/reads_demand/bytes} + "
               "{/counters/-1/counters/reads_spec/bytes}) / " +
               steps + " / 1e6" + streamed),
       2},
      // What the system counted between the prompt and the end, mapped files and rows included.
      {"storage_mb_per_token", "fetched from storage", "MB/token", "decode",
       Formula("({/memory/-1/storage_bytes_read} - {/memory/-2/storage_bytes_read}) / " + steps +
               " / 1e6"),
       2},
      {"run_storage_mb", "read by the whole run", "MB", "run",
       Formula("{/counters/-1/counters/dev_bytes} / 1e6"), 1},
      {"planned_mib", "planned at the peak", "MiB", "memory",
       Formula("(most({/plan/peak_decode}, {/plan/peak_prefill}) - {/plan/terms/slack}) / 1048576"),
       1},
      {"footprint_mib", "footprint at the peak", "MiB", "memory",
       Formula("{/plan/measured/peak_footprint} / 1048576"), 1},
      // What every program can be measured by: of a process, and of the group that limits it.
      {"peak_rss_mib", "resident at the peak, mapped files too", "MiB", "memory",
       Formula("{/memory/-1/peak_rss} / 1048576"), 1},
      {"group_peak_mib", "cgroup at its peak, page cache too", "MiB", "memory",
       Formula("{/memory/-1/cgroup_peak} / 1048576"), 1},
      {"arena_mib", "arena", "MiB", "memory", Formula("{/plan/terms/arena} / 1048576"), 1},
      {"slots", "slots", "slots", "memory", Formula("{/settings/slots}"), 0},
      {"swapped_mib", "swapped out", "MiB", "memory",
       Formula("({/memory/-1/swapped_out} - {/memory/0/swapped_out}) / 1048576"), 1},
      // Of `eval --record`.
      {"ppl", "perplexity", "", "quality", Formula("{/evaluation/ppl}"), 4},
      {"mean_kld", "mean KL divergence", "nats", "quality", Formula("{/evaluation/mean_kld}"), 5},
      {"same_top_pct", "same top token", "%", "quality", Formula("{/evaluation/same_top} * 100"),
       2},
      {"task_pct", "tasks", "%", "quality", Formula("{/evaluation/accuracy} * 100"), 2},
  };
}

// Peers say less; what their parser reads is under /values (src/measure/peer_output.h).
std::vector<Figure> of_peer_records() {
  return {
      {"load_s", "load", "s", "load", Formula("{/values/load_ms} / 1000"), 2},
      {"fill_s", "warm fill", "s", "fill", Formula("{/values/fill_ms} / 1000"), 2},
      {"prompt_tokens", "prompt", "tokens", "prefill", Formula("{/values/prefill_tokens}"), 0},
      {"prefill_s", "prompt", "s", "prefill", Formula("{/values/prefill_ms} / 1000"), 3},
      {"prefill_tok_s", "prompt", "tok/s", "prefill",
       Formula("{/values/prefill_tokens} / {/values/prefill_ms} * 1000"), 2},
      {"cold_prefill_tok_s", "prompt from a cold start", "tok/s", "cold start",
       Formula("{/values/prefill_tokens} / {/values/cold_prefill_ms} * 1000"), 2},
      {"decode_tokens", "decode", "tokens", "decode", Formula("{/values/decode_tokens}"), 0},
      {"decode_s", "decode", "s", "decode", Formula("{/values/decode_ms} / 1000"), 3},
      {"decode_tok_s", "decode", "tok/s", "decode",
       Formula("{/values/decode_tokens} / {/values/decode_ms} * 1000"), 2},
      {"decode_ms", "decode", "ms/token", "decode",
       Formula("{/values/decode_ms} / {/values/decode_tokens}"), 2},
      {"hit_pct", "hits", "%", "decode",
       Formula("({/values/arena_share} + {/values/read_ahead_share}) * 100"), 2},
      {"misses_per_token", "misses", "/token", "decode", Formula("{/values/misses_per_token}"), 1},
      {"stall_ms", "waiting", "ms/token", "decode", Formula("{/values/stall_ms_per_token}"), 2},
      {"mb_per_token", "read", "MB/token", "decode", Formula("{/values/decode_mb_per_token}"), 2},
      {"run_storage_mb", "read by the whole run", "MB", "run", Formula("{/values/run_storage_mb}"),
       1},
      // Without mapped files, locked or not: not what our own footprint counts.
      {"anonymous_mib", "anonymous at the peak", "MiB", "memory",
       Formula("{/memory/peak_bytes} / 1048576"), 1},
      {"peak_rss_mib", "resident at the peak, mapped files too", "MiB", "memory",
       Formula("{/memory/peak_rss} / 1048576"), 1},
      {"group_peak_mib", "cgroup at its peak, page cache too", "MiB", "memory",
       Formula("{/memory/group_peak} / 1048576"), 1},
      {"swapped_mib", "swapped out", "MiB", "memory", Formula("{/memory/swapped_out} / 1048576"),
       1},
  };
}

struct PhasePrefix {
  const char* prefix;
  const char* phase;
};

}  // namespace

const std::vector<Figure>& figures_of(const std::string& schema) {
  static const std::vector<Figure> ours = of_run_records();
  static const std::vector<Figure> peers = of_peer_records();
  static const std::vector<Figure> none;
  return schema == kRecordSchema ? ours : schema == kPeerSchema ? peers : none;
}

const Figure* find_figure(const std::string& schema, const std::string& name) {
  for (const Figure& figure : figures_of(schema)) {
    if (figure.name == name) return &figure;
  }
  return nullptr;
}

std::string phase_of(const std::string& schema, const std::string& pointer) {
  static const PhasePrefix ours[] = {
      {"/timings/load", "load"},
      {"/timings/fill", "fill"},
      {"/timings/scratch", "scratch"},
      {"/timings/prefill", "prefill"},
      {"/timings/first_token", "first token"},
      {"/timings/decode", "decode"},
      {"/counters/-1/counters/dev_bytes", "run"},
      {"/counters/-1/counters/prompt_", "prefill"},
      {"/counters/-1/counters/reads_fill", "fill"},
      {"/counters/-1/counters/reads_prompt", "prefill"},
      {"/counters/-1/counters", "decode"},
      {"/tokens", "decode"},
      {"/evaluation", "quality"},
      {"/plan", "memory"},
      {"/memory/-1/storage_bytes_read", "decode"},
      {"/memory/-2/storage_bytes_read", "decode"},
      {"/memory", "memory"},
      {"/dense", "memory"},
  };
  static const PhasePrefix peers[] = {
      {"/values/load_", "load"},
      {"/values/fill_", "fill"},
      {"/values/prefill_", "prefill"},
      {"/values/cold_", "cold start"},
      {"/values/decode_", "decode"},
      {"/values/arena_share", "decode"},
      {"/values/read_ahead_share", "decode"},
      {"/values/misses_per_token", "decode"},
      {"/values/stall_", "decode"},
      {"/values/compute_", "decode"},
      {"/values/run_", "run"},
      {"/memory", "memory"},
      {"/values/locked_", "memory"},
      {"/values/slots", "memory"},
  };
  const auto look = [&](const auto& table) -> std::string {
    for (const PhasePrefix& row : table) {
      if (pointer.starts_with(row.prefix)) return row.phase;
    }
    return {};
  };
  if (schema == kRecordSchema) return look(ours);
  return schema == kPeerSchema ? look(peers) : std::string();
}

std::optional<double> figure_value(const Figure& figure, const Json& record) {
  try {
    return figure.formula.evaluate(record);
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::string why_no_decode(const Json& record, uint64_t least) {
  const auto text_at = [&](const char* pointer) {
    const Json* found = resolve_pointer(record, pointer);
    return found != nullptr && found->is_string() ? found->get<std::string>() : std::string();
  };
  const std::string state = text_at("/outcome/state");
  if (state != "finished") return "the run ended as '" + state + "'";
  const std::string schema = text_at("/schema");
  const Figure* tokens = find_figure(schema, "decode_tokens");
  const std::optional<double> n = tokens ? figure_value(*tokens, record) : std::nullopt;
  if (!n) return "it has no decode steps";
  // N tokens have N - 1 intervals.
  if (*n + 1 >= static_cast<double>(least)) return {};
  const std::string stop =
      schema == kRecordSchema ? text_at("/turns/-1/stop_reason") : text_at("/outcome/stop_reason");
  return fmt::format("{:.0f} tokens, fewer than {}{}", *n + 1, least,
                     stop.empty() ? "" : ", ended by: " + stop);
}

}  // namespace penstock::measure
