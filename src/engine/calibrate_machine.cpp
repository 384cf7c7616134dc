#include "engine/calibrate_machine.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "engine/runtime.h"
#include "engine/speed.h"
#include "experts/forwarding_stream.h"
#include "experts/iobench.h"
#include "ops/matmul.h"

namespace penstock::engine {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

// Times of a measurement, chosen so that the whole stays near half a minute.
constexpr double kReadWarmUp = 0.3;
constexpr double kReadSeconds = 2.0;    // per depth
constexpr double kKernelSeconds = 0.4;  // per type
constexpr double kFillSeconds = 5.0;    // to read the experts that stand for all
constexpr double kDecodeSeconds = 6.0;  // at most
constexpr double kPromptSeconds = 8.0;  // at most, as far as decode foretells it
constexpr int kDropTokens = 4;          // pages are touched for the first time, caches are cold
constexpr int kDecodeTokens = 32;
constexpr int kLeastTokens = 4;
constexpr int kLeastPrompt = 16;

void check(const KeepGoing& keep_going) {
  if (keep_going && !keep_going()) {
    fail(ErrorKind::Cancelled, "interrupted: nothing was written to the machine file");
  }
}

// Threads that wait for each other suffer more from another program than their share of the
// processor: what is measured then may be several times too slow.
void note_load(std::vector<std::string>* notes) {
  double load = 0;
  const int cpus = std::max(1, cpu_facts().logical);
  if (getloadavg(&load, 1) != 1 || load < 0.5 * cpus) return;
  notes->push_back(
      fmt::format("other programs were running (load average {:.1f} on {} processors): measure "
                  "again when they are not",
                  load, cpus));
}

// ------------------------------------------------------------------------------ reads

DiskFigures measure_reads(const OpenedModel& opened, const CalibrationProgress& progress,
                          const KeepGoing& keep_going, std::vector<std::string>* notes) {
  check(keep_going);
  const int depth = opened.options.stream.depth;
  experts::IoBenchOptions options;
  options.io = opened.options.stream.io;
  options.depths = depth == 1 ? std::vector<int>{1} : std::vector<int>{1, depth};
  options.warm_up_s = kReadWarmUp;
  options.seconds = kReadSeconds;
  options.decorate = opened.options.stream.decorate;
  uint64_t done = 0;
  const experts::IoBenchReport report = experts::iobench(
      opened.source.geometry, *opened.source.files, options, [&](const experts::IoBenchRow&) {
        progress("expert reads", ++done, options.depths.size(), "depths");
        check(keep_going);
      });
  const experts::IoBenchRow& alone = report.rows.front();
  const experts::IoBenchRow& deep = report.rows.back();
  if (alone.experts == 0 || deep.experts == 0) {
    fail(ErrorKind::Io, "no expert arrived within {:.1f} s: the disk is too slow to be measured",
         kReadSeconds);
  }
  if (report.span_bytes < experts::kDriveCache) {
    notes->push_back(
        fmt::format("the experts are less than {}: a cache of the drive may have answered",
                    format_bytes(experts::kDriveCache)));
  }
  if (!report.io.direct) {
    notes->push_back("reads are buffered: memory may have answered in place of the disk");
  }
  DiskFigures out;
  out.bytes_per_s = deep.bytes_per_s();
  const double mean_bytes = static_cast<double>(alone.bytes) / static_cast<double>(alone.experts);
  out.latency_s =
      std::max(0.0, static_cast<double>(alone.p50_ns) * 1e-9 - mean_bytes / out.bytes_per_s);
  out.seconds = deep.seconds;
  out.reads = deep.experts;
  out.span_bytes = report.span_bytes;
  out.reader = report.io.describe();
  out.measured = unix_now();
  return out;
}

// ------------------------------------------------------------------------------ kernels

// Bytes that any reader sees as small normal numbers, so that no scale is NaN or subnormal.
void fill_weights(Mapping& memory) {
  std::byte pattern[4096];
  uint32_t state = 1;
  for (std::byte& b : pattern) {
    state = state * 1664525 + 1013904223;
    b = static_cast<std::byte>(0x20 + (state >> 27) % 0x1c);
  }
  for (size_t at = 0; at < memory.size(); at += sizeof pattern) {
    std::memcpy(memory.data() + at, pattern, std::min(sizeof pattern, memory.size() - at));
  }
}

// Bytes per second of weights in one product after the other, each matrix read from memory.
double kernel_rate(const TypeWork& work, const Mapping& weights, ThreadPool& pool,
                   quant::Precision precision) {
  const int64_t n_in = work.n_in;
  const uint64_t row_bytes = gguf::row_bytes(work.type, static_cast<uint64_t>(n_in));
  const auto n_out = static_cast<int64_t>(weights.size() / row_bytes);
  const ops::Workspace workspace({.n_in = n_in, .head_dim = 64, .delta_key_dim = 64}, pool.size());
  ops::Context context{pool, workspace, precision};
  const quant::ActKind kind = quant::act_kind(work.type, precision);
  const auto width = static_cast<size_t>(n_in);
  // Two forms of the activation, each in its own 64-byte aligned pages.
  Mapping row(width * sizeof(float), Pages::Small);
  for (size_t i = 0; i < width; ++i)
    row.as<float>()[i] = 0.01f * static_cast<float>(i % 13) - 0.06f;
  Mapping form(std::max<size_t>(64, quant::act_bytes(kind, n_in)), Pages::Small);
  const void* act = row.data();
  if (kind != quant::ActKind::F32) {
    quantize_act(kind, row.as<float>(), form.data(), n_in);
    act = form.data();
  }
  std::vector<float> result(static_cast<size_t>(n_out));
  float* out = result.data();
  const ops::Job job{work.type, weights.data(), row_bytes, n_in, n_out, &act, &out, 1};
  int64_t starts[2];
  run_jobs(context, {&job, 1}, starts);
  uint64_t bytes = 0;
  const int64_t begun = now_ns();
  do {
    run_jobs(context, {&job, 1}, starts);
    bytes += row_bytes * static_cast<uint64_t>(n_out);
  } while (seconds_since(begun) < kKernelSeconds);
  return static_cast<double>(bytes) / seconds_since(begun);
}

void measure_kernels(const OpenedModel& opened, const MemoryPlan& plan, MachineFile* file,
                     const CalibrationProgress& progress, const KeepGoing& keep_going) {
  // Beyond any cache where memory allows it.
  constexpr uint64_t kMost = 256 * kMiB;
  constexpr uint64_t kLeast = 16 * kMiB;
  const uint64_t bytes = std::clamp(plan.outcome.plan.available / 8, kLeast, kMost);
  Mapping weights(round_up(bytes, kPageSize), Pages::Huge);
  fill_weights(weights);
  ThreadPool pool(opened.options.threads);
  const ComputeKey key = compute_key(opened.options);
  const std::vector<TypeWork> types = token_work(opened);
  for (size_t i = 0; i < types.size(); ++i) {
    check(keep_going);
    file->put(key, KernelFigures{gguf::type_name(types[i].type),
                                 kernel_rate(types[i], weights, pool, opened.options.precision),
                                 unix_now()});
    progress("kernels", i + 1, types.size(), "types");
  }
}

// ------------------------------------------------------------------------------ the model

// Notes when the routed experts' turn comes and when it is over.
class TimedStream final : public experts::ForwardingStream {
 public:
  using ForwardingStream::ForwardingStream;

  double shared_s = 0;   // from the router's word to the first expert
  double experts_s = 0;  // from then on to the last

  experts::Routing begin(int index, const float* logits, int rows, const experts::RouteRule& rule,
                         experts::Phase phase) override {
    const experts::Routing routing = ForwardingStream::begin(index, logits, rows, rule, phase);
    begun_ = now_ns();
    first_ = 0;
    return routing;
  }
  std::span<const experts::ReadyExpert> next() override {
    const int64_t now = now_ns();
    if (first_ == 0) {
      first_ = now;
      shared_s += static_cast<double>(first_ - begun_) * 1e-9;
    }
    const auto batch = ForwardingStream::next();
    if (batch.empty()) experts_s += static_cast<double>(now - first_) * 1e-9;
    return batch;
  }
  int look_ahead() const override { return 0; }

 private:
  int64_t begun_ = 0;
  int64_t first_ = 0;
};

// The experts that stand for all: of every layer several times what a token uses, so that their
// weights come from memory and not from a cache, as far as the plan and the disk's speed allow.
uint64_t alias_slots(const OpenedModel& opened, const experts::Plan& plan,
                     const DiskFigures& disk) {
  constexpr uint64_t kCycles = 4;
  const auto readable =
      static_cast<uint64_t>(kFillSeconds * disk.bytes_per_s /
                            static_cast<double>(std::max<uint64_t>(1, plan.shape.largest_slot())));
  const uint64_t least = std::max<uint64_t>(plan.hard_floor, opened.source.geometry.layers.size());
  const uint64_t wanted = std::max({least, plan.cycle, std::min(readable, kCycles * plan.cycle)});
  return std::min(wanted, plan.slots());
}

struct TokenTime {
  double token_s, experts_s, shared_s;
};

// The median token, with its own shares.
TokenTime decode(Runtime& runtime, const CalibrationProgress& progress, const KeepGoing& keep_going,
                 int* n) {
  models::State& state = runtime.state();
  state.reset();
  std::vector<float> logits(static_cast<size_t>(runtime.info().n_vocab));
  std::vector<TokenTime> times;
  const int64_t begun = now_ns();
  for (int i = 0; i < kDropTokens + kDecodeTokens; ++i) {
    check(keep_going);
    if (static_cast<int>(times.size()) >= kLeastTokens && seconds_since(begun) > kDecodeSeconds) {
      break;
    }
    const int32_t token = (i * 7919 + 1) % runtime.info().n_vocab;
    TimedStream stream(runtime.stream());
    const int64_t started = now_ns();
    runtime.model().forward(
        state, stream,
        {.tokens = {&token, 1}, .phase = experts::Phase::Decode, .logits = models::Logits::Last},
        logits.data());
    const TokenTime time{seconds_since(started), stream.experts_s, stream.shared_s};
    if (i >= kDropTokens) times.push_back(time);
    progress("decode", static_cast<uint64_t>(i) + 1, kDropTokens + kDecodeTokens, "tokens");
  }
  *n = static_cast<int>(times.size());
  const auto faster = [](const TokenTime& a, const TokenTime& b) { return a.token_s < b.token_s; };
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end(), faster);
  return *middle;
}

// Seconds per token of one chunk; the second of two where there is time.
double prompt(Runtime& runtime, int n, const KeepGoing& keep_going) {
  std::vector<int32_t> tokens(static_cast<size_t>(n));
  for (int i = 0; i < n; ++i) {
    tokens[static_cast<size_t>(i)] = (i * 7919 + 1) % runtime.info().n_vocab;
  }
  std::vector<float> logits(static_cast<size_t>(runtime.info().n_vocab));
  double seconds = 0;
  for (int round = 0; round < 2 && seconds < kPromptSeconds / 4; ++round) {
    runtime.state().reset();
    WatchedStream stream(runtime.stream(), keep_going);
    const int64_t started = now_ns();
    try {
      runtime.model().forward(
          runtime.state(), stream,
          {.tokens = tokens, .phase = experts::Phase::Prompt, .logits = models::Logits::Last},
          logits.data());
    } catch (const WatchedStream::Stopped&) {
      check(keep_going);
    }
    seconds = seconds_since(started);
  }
  runtime.model().release_prompt_scratch();
  return seconds / n;
}

ModelFigures measure_model(const OpenedModel& opened, const MemoryPlan& plan,
                           const DiskFigures& disk, const CalibrationProgress& progress,
                           const KeepGoing& keep_going) {
  RuntimeOptions options = opened.options;
  options.stream.alias = true;
  options.stream.read_ahead = experts::ReadAhead::Off;
  options.stream.moce = {};
  options.stream.fill = experts::Fill::None;
  options.profile = "none";
  options.stream.huge_seconds = 2;
  options.arena_slots = alias_slots(opened, plan.outcome.plan, disk);
  options.prompt_chunk = plan.prompt_chunk;
  const auto runtime =
      Runtime::open(options, [&](std::string_view phase, uint64_t done, uint64_t total) {
        check(keep_going);
        progress(phase, done, total, "B");
      });
  ModelFigures out;
  out.model = hex(opened.file->header_id());
  out.name = opened.file->metadata().get_string("general.name", opened.options.model_path);
  const TokenTime time = decode(*runtime, progress, keep_going, &out.tokens);
  out.token_s = time.token_s;
  out.experts_s = time.experts_s;
  out.shared_s = time.shared_s;
  const int most = static_cast<int>(std::min<int64_t>(plan.prompt_chunk, options.n_ctx));
  const auto affordable = static_cast<int>(std::min(1e6, kPromptSeconds / time.token_s));
  out.prompt_tokens = std::min(most, std::max(kLeastPrompt, affordable));
  progress("prompt", 0, static_cast<uint64_t>(out.prompt_tokens), "tokens");
  out.prompt_token_s = prompt(*runtime, out.prompt_tokens, keep_going);
  progress("prompt", static_cast<uint64_t>(out.prompt_tokens),
           static_cast<uint64_t>(out.prompt_tokens), "tokens");
  out.measured = unix_now();
  return out;
}

}  // namespace

std::vector<std::string> calibrate_machine(const OpenedModel& opened, const MemoryPlan& plan,
                                           MachineFile* file, const CalibrationProgress& progress,
                                           const KeepGoing& keep_going) {
  std::vector<std::string> notes;
  note_load(&notes);
  const DiskFigures disk = measure_reads(opened, progress, keep_going, &notes);
  file->put(disk_key(opened), disk);
  measure_kernels(opened, plan, file, progress, keep_going);
  if (!plan.outcome.fits()) {
    notes.push_back("computing with this model was not measured: it does not fit");
    return notes;
  }
  try {
    file->put(compute_key(opened.options), measure_model(opened, plan, disk, progress, keep_going));
  } catch (const Error& error) {
    // The plan is one of a moment ago, and few slots may not do for all layers.
    if (error.kind() != ErrorKind::Plan && error.kind() != ErrorKind::Usage) throw;
    notes.push_back(fmt::format("computing with this model was not measured: {}", error.what()));
  }
  return notes;
}

}  // namespace penstock::engine
