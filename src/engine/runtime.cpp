#include "engine/runtime.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/machine.h"
#include "text/tokenizer_gguf.h"

namespace penstock::engine {
namespace {

constexpr std::array kPromptChunks = {512, 256, 128, 64, 32};
constexpr int64_t kDefaultContext = 4096;
// Workers use a few KiB of stack; what the kernel keeps for each is its guard and first pages.
constexpr uint64_t kStackBytes = 64 * 1024;

experts::RowStoreOptions row_store_options(const experts::StreamOptions& stream) {
  experts::RowStoreOptions options;
  options.io = stream.io;
  options.decorate = stream.decorate;
  return options;
}

}  // namespace

Runtime::~Runtime() = default;

const text::Tokenizer& Runtime::tokenizer() const {
  if (!tokenizer_) {
    fail(ErrorKind::Unsupported,
         "{} has no tokenizer that can be used ({}): give token ids with --ids",
         options_.model_path, tokenizer_error_);
  }
  return *tokenizer_;
}

std::unique_ptr<Runtime> Runtime::open(const RuntimeOptions& options, const Progress& progress) {
  std::unique_ptr<Runtime> runtime(new Runtime(options));
  runtime->load_all(progress);
  return runtime;
}

// The plan for the settings in force; tries smaller prompt chunks while the user did not name one.
experts::Plan Runtime::plan_memory(uint64_t taken) {
  const models::StateOptions state{.n_ctx = options_.n_ctx, .kv = *options_.kv};
  const MemoryFacts machine = memory_facts();
  const bool fixed = options_.prompt_chunk != 0;
  for (const int chunk : kPromptChunks) {
    if (!fixed) options_.prompt_chunk = chunk;
    const models::MemoryNeeds needs = model_->needs(state, options_.prompt_chunk, pool_->size());
    experts::PlanRequest request;
    request.terms.dense = needs.dense;
    request.terms.kv = needs.kv;
    request.terms.state = needs.state;
    request.terms.scratch_decode = needs.scratch_decode;
    request.terms.scratch_prompt = needs.scratch_prompt;
    request.terms.logits = needs.logits;
    request.terms.io = experts::stream_io_bytes(source_.geometry, options_.stream);
    request.terms.threads = static_cast<uint64_t>(pool_->size() - 1) * kStackBytes;
    if (rows_)
      request.terms.ple =
          experts::RowStore::memory_bytes(rows_->table(), row_store_options(options_.stream));
    request.shape = experts::arena_shape(source_.geometry, source_.files->alignment());
    request.terms.tables = experts::stream_table_bytes(source_.geometry, request.shape);
    request.terms.tables += options_.caller_bytes;
    request.machine = machine;
    request.taken = taken;
    request.memory = options_.memory;
    request.arena_slots = options_.arena_slots;
    request.depth = options_.stream.depth;
    request.transit = static_cast<uint64_t>(options_.stream.transit_slots());
    request.evict = options_.stream.evict;
    request.ctx = static_cast<int>(options_.n_ctx);
    request.kv_per_position = needs.kv / static_cast<uint64_t>(options_.n_ctx);
    request.prompt_chunk = options_.prompt_chunk;
    request.scratch_per_token = needs.scratch_prompt / static_cast<uint64_t>(options_.prompt_chunk);
    try {
      return experts::make_plan(request);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::Plan || fixed || chunk == kPromptChunks.back()) throw;
      options_.prompt_chunk = 0;
    }
  }
  fail(ErrorKind::Internal, "no prompt chunk was tried");
}

void Runtime::load_all(const Progress& progress) {
  const auto report = [&](std::string_view phase, uint64_t done, uint64_t total) {
    if (progress) progress(phase, done, total);
  };
  int64_t started = now_ns();
  // Experts that the file lacks may be in a pack; open_expert_source() decides.
  const auto file = std::make_shared<gguf::Model>(
      gguf::Model::open(options_.model_path, {.allow_missing_experts = true}));
  file_ = file;
  if (!options_.ple_path.empty()) {
    table_file_ = std::make_shared<const gguf::Model>(gguf::Model::open(options_.ple_path));
  }
  model_ = models::open({.trunk = file_, .draft = nullptr, .table = table_file_},
                        {.precision = options_.precision});
  try {
    tokenizer_ = std::make_unique<text::Tokenizer>(text::load_tokenizer(file_->metadata()));
  } catch (const Error& error) {
    tokenizer_error_ = error.what();  // token ids can still be run
  }

  if (options_.n_ctx == 0) {
    const int64_t trained = info().n_context_trained;
    options_.n_ctx = trained > 0 ? std::min(trained, kDefaultContext) : kDefaultContext;
  }
  if (!options_.kv) {
    options_.kv =
        options_.precision == quant::Precision::Exact ? models::KvType::F32 : models::KvType::F16;
  }
  if (options_.threads == 0) {
    options_.threads = std::max(1, static_cast<int>(cpu_facts().performance.size()));
  }
  pool_ = std::make_unique<ThreadPool>(options_.threads);

  source_ = experts::open_expert_source(*file_, model_->experts(), options_.stream);
  if (source_.pack && source_.pack->overridden.empty()) {
    file->adopt_model_id(source_.pack->model_id);
  }
  if (const models::TableGeometry* table = model_->table()) {
    const std::array<uint64_t, 1> probe = {table->offset};
    rows_ = std::make_unique<experts::RowStore>(
        experts::StreamFiles::open({table->path}, options_.stream.io, probe),
        experts::RowTable{.file = 0,
                          .offset = table->offset,
                          .row_bytes = table->row_bytes,
                          .n_rows = table->n_rows},
        row_store_options(options_.stream));
    model_->attach_table(rows_.get());
  }
  const bool chunk_was_given = options_.prompt_chunk != 0;
  plan_ = plan_memory(0);  // refuses before anything large is taken
  load_.open_s = seconds_since(started);

  started = now_ns();
  const uint64_t before = footprint().total();
  model_->load(*pool_, options_.dense,
               [&](uint64_t done, uint64_t total) { report("dense weights", done, total); });
  if (options_.dense == models::DenseMode::Copy) {
    // Rows of the embedding are gathered from the mapping one by one: without this advice the
    // kernel reads megabytes around each.
    if (const gguf::Tensor* rows = file_->find("token_embd.weight")) {
      file_->advise(*rows, MADV_RANDOM);
    }
  }
  state_ = model_->new_state({.n_ctx = options_.n_ctx, .kv = *options_.kv});
  load_.dense_s = seconds_since(started);
  load_.dense_bytes = plan_.terms.dense;

  // The arena is sized once more from what is available now that the rest has its memory: sizing it
  // from the first look alone over-asks (spec/streaming.md §C.1).
  started = now_ns();
  const uint64_t after = footprint().total();
  if (!chunk_was_given) options_.prompt_chunk = 0;
  plan_ = plan_memory(after > before ? after - before : 0);
  stream_ = experts::make_stream(source_.geometry, source_.files, plan_.shape, options_.stream);
  load_.arena_s = seconds_since(started);
  load_.arena_huge_bytes = stream_->arena_huge_bytes();
}

SamplerOptions Runtime::default_sampling() const {
  constexpr double kTemperature = 0.7;
  constexpr int64_t kTopK = 20;
  constexpr double kTopP = 0.95;
  const gguf::Metadata& metadata = file_->metadata();
  SamplerOptions options;
  options.temperature = static_cast<float>(metadata.get_f64("general.sampling.temp", kTemperature));
  options.top_k = static_cast<int>(metadata.get_i64("general.sampling.top_k", kTopK));
  options.top_p = static_cast<float>(metadata.get_f64("general.sampling.top_p", kTopP));
  return options;
}

experts::Counters Runtime::counters() const {
  experts::Counters counters = stream_->counters();
  if (rows_) counters.ple = rows_->counts();
  return counters;
}

}  // namespace penstock::engine
