#include "engine/opened_model.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "experts/io_choice.h"
#include "experts/mapped_stream.h"

namespace penstock::engine {
namespace {

constexpr std::array kPromptChunks = {512, 256, 128, 64, 32};
// Longer chunks read a missing expert fewer times. Their scratch may take this share of the arena's
// memory where nearly all experts are missing, less where fewer are.
constexpr std::array kLongChunks = {4096, 2048, 1024};
constexpr uint64_t kScratchShare = 8;
constexpr int64_t kDefaultContext = 4096;
// Workers use a few KiB of stack; what the kernel keeps for each is its guard and first pages.
constexpr uint64_t kStackBytes = 64 * 1024;

void decide_defaults(RuntimeOptions& options, const models::Info& info) {
  if (options.n_ctx == 0) {
    const int64_t trained = info.n_context_trained;
    options.n_ctx = trained > 0 ? std::min(trained, kDefaultContext) : kDefaultContext;
  }
  if (!options.kv) {
    options.kv =
        options.precision == quant::Precision::Exact ? models::KvType::F32 : models::KvType::F16;
  }
  if (options.threads == 0) {
    options.threads = std::max(1, static_cast<int>(cpu_facts().performance.size()));
  }
}

void check_predictor(const RuntimeOptions& options, const models::Info& info) {
  if (options.stream.predictor != experts::Predictor::ResidualShared) return;
  if (info.n_streams == 1 && info.has_shared_expert) return;
  fail(ErrorKind::Usage,
       "--predictor residual+shared needs a shared expert and one residual stream; {} has {}: use "
       "residual, gate-input or auto",
       info.architecture, info.has_shared_expert ? "several streams" : "no shared expert");
}

experts::PlanRequest request_for(const OpenedModel& opened, int prompt_chunk,
                                 const MemoryFacts& machine, uint64_t taken) {
  const RuntimeOptions& options = opened.options;
  const models::StateOptions state{.n_ctx = options.n_ctx, .kv = *options.kv};
  // No chunk is longer than the context.
  const int64_t n_states = opened.n_states(prompt_chunk);
  const int64_t rows = std::min<int64_t>(prompt_chunk, n_states * options.n_ctx);
  const models::MemoryNeeds needs = opened.model->needs(state, rows, options.threads);
  experts::PlanRequest request;
  request.terms.dense = options.dense == models::DenseMode::Map ? needs.dense_mapped : needs.dense;
  const auto states = static_cast<uint64_t>(n_states);
  request.terms.kv = needs.kv * states;
  request.terms.state = needs.state * states;
  request.terms.scratch_decode = needs.scratch_decode;
  request.terms.scratch_prompt = needs.scratch_prompt;
  request.terms.logits = needs.logits;
  request.terms.io = experts::stream_io_bytes(opened.source.geometry, options.stream);
  request.terms.threads = static_cast<uint64_t>(options.threads - 1) * kStackBytes;
  if (const auto table = opened.row_table()) {
    request.terms.ple = experts::RowStore::memory_bytes(*table, opened.row_store_options());
  }
  request.shape = experts::arena_shape(opened.source.geometry, opened.source.files->alignment());
  request.terms.tables = experts::stream_table_bytes(opened.source.geometry, request.shape);
  request.terms.tables += options.caller_bytes;
  if (opened.profile) request.terms.tables += opened.profile->memory_bytes();
  request.machine = machine;
  request.taken = taken;
  request.memory = options.memory;
  request.arena_slots = options.arena_slots;
  request.depth = options.stream.depth;
  request.transit = static_cast<uint64_t>(options.stream.transit_slots());
  request.evict = options.stream.evict;
  request.mapped = options.stream.io == experts::IoMode::Mmap;
  if (request.mapped) request.terms.io = 0;
  request.ctx = static_cast<int>(options.n_ctx);
  request.kv_per_position = request.terms.kv / static_cast<uint64_t>(options.n_ctx);
  request.prompt_chunk = prompt_chunk;
  request.scratch_per_token = needs.scratch_prompt / static_cast<uint64_t>(prompt_chunk);
  return request;
}

void find_profile(OpenedModel& opened) {
  const RuntimeOptions& options = opened.options;
  const bool by_itself = options.profile == "auto";
  std::error_code error;
  const std::string path = by_itself ? default_profile_path(*opened.file) : options.profile;
  if (path != "none" && (!by_itself || std::filesystem::exists(path, error))) {
    try {
      experts::Profile profile = experts::read_profile(path);
      experts::check_profile(profile, path, opened.source.geometry, opened.file->model_id());
      opened.profile = std::move(profile);
      opened.profile_path = path;
    } catch (const Error& e) {
      if (!by_itself) throw;
      log::warn("this profile is not used: {}", e.what());
    }
  }
  if (opened.profile) return;
  if (options.stream.evict == experts::Evict::Profile) {
    fail(ErrorKind::Usage, "--evict profile needs a profile: --profile FILE");
  }
  if (options.stream.fill == experts::Fill::Lazy) {
    fail(ErrorKind::Usage, "--fill lazy needs a profile: --profile FILE");
  }
}

}  // namespace

bool long_chunk_pays(const experts::Plan& plan) noexcept {
  const uint64_t missing = plan.shape.n_experts() - plan.shape.slots();
  return plan.terms.scratch_prompt <= plan.arena / kScratchShare / plan.shape.n_experts() * missing;
}

std::string default_profile_path(const gguf::Model& model) {
  return std::filesystem::path(experts::default_pack_path(model))
      .replace_extension(".profile.json")
      .string();
}

std::optional<experts::RowTable> OpenedModel::row_table() const {
  const models::TableGeometry* table = model->table();
  if (table == nullptr) return std::nullopt;
  return experts::RowTable{
      .file = 0, .offset = table->offset, .row_bytes = table->row_bytes, .n_rows = table->n_rows};
}

experts::RowStoreOptions OpenedModel::row_store_options() const {
  experts::RowStoreOptions rows;
  // Rows of the n-gram table are read, whatever is done with experts.
  rows.io = options.stream.io == experts::IoMode::Mmap ? experts::IoMode::Auto : options.stream.io;
  rows.decorate = options.stream.decorate;
  return rows;
}

bool OpenedModel::choose_mapping(const MemoryPlan& plan) {
  const experts::StreamOptions& stream = options.stream;
  if (stream.io != experts::IoMode::Auto || options.memory || options.arena_slots || profile ||
      stream.moce.on() || stream.alias || stream.verify_every != 0 || stream.decorate ||
      stream.read_ahead != experts::ReadAhead::Auto) {
    return false;
  }
  experts::IoFacts facts{.holds_all = plan.outcome.plan.shape.holds_all(),
                         .max_tokens = options.max_tokens};
  for (const experts::LayerGeometry& layer : source.geometry.layers) {
    facts.expert_bytes += static_cast<uint64_t>(layer.n_expert) * layer.expert_bytes();
  }
  facts.cached_bytes = facts.expert_bytes;
  if (!experts::mapping_pays(facts)) return false;  // before anything is mapped to look at
  facts.cached_bytes = experts::cached_expert_bytes(source.geometry);
  if (!experts::mapping_pays(facts)) return false;
  options.stream.io = experts::IoMode::Mmap;
  source = experts::open_expert_source(*file, model->experts(), options.stream);
  return io_automatic = true;
}

int64_t OpenedModel::n_states(int prompt_chunk) const noexcept {
  return options.windows ? std::max<int64_t>(1, prompt_chunk / options.n_ctx) : 1;
}

MemoryPlan OpenedModel::plan(const MemoryFacts& machine, uint64_t taken) const {
  const auto with = [&](int chunk) {
    MemoryPlan plan;
    plan.request = request_for(*this, chunk, machine, taken);
    plan.outcome = experts::try_plan(plan.request);
    plan.prompt_chunk = chunk;
    return plan;
  };
  if (options.prompt_chunk != 0) return with(options.prompt_chunk);
  MemoryPlan plan;
  if (options.windows) {
    // Whole windows: the more run together, the fewer times an expert is read.
    const auto window = static_cast<int>(options.n_ctx);
    for (int n = std::max(1, kLongChunks.front() / window); n >= 1; n /= 2) {
      plan = with(n * window);
      const bool long_one = n > 1 && n * window > kPromptChunks.front();
      if (plan.outcome.fits() && (!long_one || (!plan.outcome.plan.shape.holds_all() &&
                                                long_chunk_pays(plan.outcome.plan)))) {
        break;
      }
    }
    return plan;
  }
  for (const int chunk : kPromptChunks) {
    plan = with(chunk);
    plan.request.chunk_shrunk = chunk != kPromptChunks.front();
    if (plan.outcome.fits()) break;
  }
  if (!plan.outcome.fits() || plan.prompt_chunk != kPromptChunks.front() ||
      plan.outcome.plan.shape.holds_all()) {
    return plan;
  }
  for (const int chunk : kLongChunks) {
    if (chunk > options.n_ctx) continue;
    MemoryPlan longer = with(chunk);
    if (longer.outcome.fits() && long_chunk_pays(longer.outcome.plan)) return longer;
  }
  return plan;
}

OpenedModel open_model(const RuntimeOptions& options) {
  OpenedModel opened;
  opened.options = options;
  // Experts that the file lacks may be in a pack; open_expert_source() decides.
  const auto file = std::make_shared<gguf::Model>(
      gguf::Model::open(options.model_path, {.allow_missing_experts = true}));
  opened.file = file;
  if (!options.ple_path.empty()) {
    opened.table_file = std::make_shared<const gguf::Model>(gguf::Model::open(options.ple_path));
  }
  opened.model = models::open({.trunk = file, .draft = nullptr, .table = opened.table_file},
                              {.precision = options.precision, .convert = options.dense_convert});
  decide_defaults(opened.options, opened.model->info());
  check_predictor(opened.options, opened.model->info());
  opened.source =
      experts::open_expert_source(*file, opened.model->experts(), opened.options.stream);
  if (opened.source.pack && opened.source.pack->overridden.empty()) {
    file->adopt_model_id(opened.source.pack->model_id);
  }
  find_profile(opened);
  return opened;
}

}  // namespace penstock::engine
