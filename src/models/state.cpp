#include "models/state.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/resident_pages.h"
#include "ops/rows.h"

namespace penstock::models {
namespace {

constexpr char kMagic[8] = {'P', 'S', 'T', 'K', 'S', 'T', 'A', 'T'};
constexpr uint32_t kVersion = 1;

struct Header {
  char magic[8];
  uint32_t version;
  uint32_t parts;
  uint8_t model_id[32];
  uint32_t kv;
  uint32_t precision;
  uint64_t shape;  // hash of the layers' shapes: what the payload's sizes follow from
  uint64_t n_tokens;
  uint64_t n_draft;
};
static_assert(sizeof(Header) == 80);

uint64_t shape_hash(const StateShape& shape) {
  std::vector<int> numbers{shape.n_trunk, shape.ple_rows, shape.ple_width, shape.n_vocab};
  for (const LayerShape& layer : shape.layers) {
    numbers.insert(numbers.end(), {layer.kv_width, layer.indexer_width, layer.indexer_block,
                                   layer.conv_rows, layer.conv_width, layer.recurrent});
  }
  return xxh64(std::as_bytes(std::span(numbers)));
}

State::Layer place_kv(ops::Layout& layout, const LayerShape& shape, const StateOptions& options) {
  State::Layer layer;
  const auto bytes = static_cast<int64_t>(ops::kv_bytes(options.kv)) * options.n_ctx;
  layer.k = layout.take<std::byte>(bytes * shape.kv_width);
  layer.v = layout.take<std::byte>(bytes * shape.kv_width);
  if (shape.indexer_block > 0) {
    layer.indexer = layout.take<float>(options.n_ctx / shape.indexer_block * shape.indexer_width);
  }
  return layer;
}

void place_fixed(ops::Layout& layout, const LayerShape& shape, State::Layer* layer) {
  if (shape.indexer_block > 0) {
    layer->indexer_raw = layout.take<float>(int64_t{shape.indexer_block - 1} * shape.indexer_width);
    layer->indexer_held = layout.take<float>(int64_t{kMaxStepRows} * shape.indexer_width);
  }
  layer->conv = layout.take<float>(int64_t{shape.conv_rows} * shape.conv_width);
  layer->conv_held =
      layout.take<float>(shape.conv_rows > 0 ? int64_t{kMaxStepRows} * shape.conv_width : 0);
  layer->recurrent = layout.take<float>(shape.recurrent);
  layer->replay_held = layout.take<float>(int64_t{kMaxStepRows} * shape.replay_width);
}

}  // namespace

bool StateShape::recurrent() const noexcept {
  return ple_rows > 0 || std::any_of(layers.begin(), layers.end(), [](const LayerShape& layer) {
           return layer.recurrent > 0 || layer.indexer_block > 0;
         });
}

uint64_t State::kv_bytes(const StateShape& shape, const StateOptions& options) noexcept {
  ops::Layout layout;
  for (const LayerShape& layer : shape.layers) place_kv(layout, layer, options);
  return layout.bytes();
}

uint64_t State::fixed_bytes(const StateShape& shape) noexcept {
  ops::Layout layout;
  Layer layer;
  for (const LayerShape& each : shape.layers) place_fixed(layout, each, &layer);
  layout.take<float>(int64_t{shape.ple_rows} * shape.ple_width);
  layout.take<float>(shape.ple_rows > 0 ? int64_t{kMaxStepRows} * shape.ple_width : 0);
  return layout.bytes();
}

State::State(const StateShape& shape, const StateOptions& options)
    : shape_(shape), options_(options) {
  constexpr int64_t kMostContext = int64_t{1} << 24;
  if (options.n_ctx < 1 || options.n_ctx > kMostContext) {
    fail(ErrorKind::Usage, "a context of {} tokens is not possible (1 to {})", options.n_ctx,
         kMostContext);
  }
  kv_ = Mapping(std::max<uint64_t>(kPageSize, kv_bytes(shape, options)), Pages::Huge);
  fixed_ = Mapping(std::max<uint64_t>(kPageSize, fixed_bytes(shape)), Pages::Huge);
  ops::Layout kv(kv_.data());
  ops::Layout fixed(fixed_.data());
  for (const LayerShape& layer : shape.layers) {
    layers_.push_back(place_kv(kv, layer, options));
    place_fixed(fixed, layer, &layers_.back());
  }
  ple_ = fixed.take<float>(int64_t{shape.ple_rows} * shape.ple_width);
  ple_held_ = fixed.take<float>(shape.ple_rows > 0 ? int64_t{kMaxStepRows} * shape.ple_width : 0);
  tokens_.reserve(static_cast<size_t>(options.n_ctx));
  held_tokens_.reserve(kMaxStepRows);
}

ops::KvCache State::cache(int index) const noexcept {
  const auto i = static_cast<size_t>(index);
  return {options_.kv, layers_[i].k, layers_[i].v, shape_.layers[i].kv_width};
}

void State::reset() noexcept {
  std::memset(fixed_.data(), 0, fixed_.size());  // zero is the empty value of every part
  tokens_.clear();
  held_tokens_.clear();
  draft_position_ = 0;
  pending_ = 0;
  broken_ = false;
}

bool State::truncate(int64_t position) noexcept {
  if (position < 0 || position > this->position() || broken_) return false;
  if (position == 0) {
    reset();
    return true;
  }
  if (position < this->position() && shape_.recurrent()) return false;
  tokens_.resize(static_cast<size_t>(position));
  held_tokens_.clear();
  pending_ = 0;
  draft_position_ = std::min(draft_position_, position);
  return true;
}

void State::truncate_draft(int64_t position) noexcept {
  draft_position_ = std::clamp<int64_t>(position, 0, draft_position_);
}

// The payload after the header and the token ids: recurrent parts first.
template <typename Visit>
void State::each_part(Parts parts, int64_t position, int64_t draft_position, Visit visit) const {
  const auto floats = [&](float* data, int64_t n) {
    if (n > 0) visit(std::span(reinterpret_cast<std::byte*>(data), static_cast<size_t>(n) * 4));
  };
  for (size_t l = 0; l < layers_.size(); ++l) {
    const LayerShape& shape = shape_.layers[l];
    if (is_draft(l)) continue;
    floats(layers_[l].recurrent, shape.recurrent);
    floats(layers_[l].conv, int64_t{shape.conv_rows} * shape.conv_width);
    if (shape.indexer_block > 0) {
      floats(layers_[l].indexer_raw, int64_t{shape.indexer_block - 1} * shape.indexer_width);
    }
  }
  floats(ple_, int64_t{shape_.ple_rows} * shape_.ple_width);
  if (parts == Parts::Recurrent) return;
  for (size_t l = 0; l < layers_.size(); ++l) {
    const LayerShape& shape = shape_.layers[l];
    const int64_t n = is_draft(l) ? draft_position : position;
    const auto bytes = static_cast<size_t>(n * shape.kv_width) * ops::kv_bytes(options_.kv);
    if (bytes > 0) {
      visit(std::span(layers_[l].k, bytes));
      visit(std::span(layers_[l].v, bytes));
    }
    if (shape.indexer_block > 0) {
      floats(layers_[l].indexer, n / shape.indexer_block * shape.indexer_width);
    }
  }
}

uint64_t State::resident_bytes() const {
  uint64_t pages = 0;
  for (const Mapping* mapping : {&kv_, &fixed_}) {
    pages += resident_pages(mapping->data(), mapping->size()).value_or(0);
  }
  return pages * kPageSize;
}

uint64_t State::saved_bytes(Parts parts) const noexcept {
  uint64_t bytes = sizeof(Header) + tokens_.size() * sizeof(int32_t);
  each_part(parts, position(), draft_position_,
            [&](std::span<std::byte> part) { bytes += part.size(); });
  return bytes;
}

void State::save(Parts parts, FunctionRef<void(std::span<const std::byte>)> sink) const {
  if (broken_ || pending_ > 0) {
    fail(ErrorKind::Internal, "a state with {} can not be saved",
         broken_ ? "a failed step" : "uncommitted rows");
  }
  Header header{};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.version = kVersion;
  header.parts = static_cast<uint32_t>(parts);
  const Sha256 id = shape_.model_id();
  std::memcpy(header.model_id, id.data(), id.size());
  header.kv = static_cast<uint32_t>(options_.kv);
  header.precision = static_cast<uint32_t>(shape_.precision);
  header.shape = shape_hash(shape_);
  header.n_tokens = tokens_.size();
  header.n_draft = static_cast<uint64_t>(draft_position_);
  sink(std::as_bytes(std::span(&header, 1)));
  sink(std::as_bytes(std::span(tokens_)));
  each_part(parts, position(), draft_position_, [&](std::span<std::byte> part) { sink(part); });
}

void State::restore(FunctionRef<void(std::span<std::byte>)> source, const std::string& name) {
  Header header{};
  source(std::as_writable_bytes(std::span(&header, 1)));
  const auto refuse = [&](const char* what) {
    reset();
    fail(ErrorKind::Format,
         "{}: this saved state {}; remove it, or run with what it was saved under", name, what);
  };
  const Sha256 id = shape_.model_id();
  if (std::memcmp(header.magic, kMagic, sizeof kMagic) != 0 || header.version != kVersion) {
    refuse("is not one of this version of penstock");
  }
  if (std::memcmp(header.model_id, id.data(), id.size()) != 0) refuse("belongs to another model");
  if (header.kv != static_cast<uint32_t>(options_.kv)) refuse("has another KV type");
  if (header.precision != static_cast<uint32_t>(shape_.precision)) refuse("has another precision");
  if (header.shape != shape_hash(shape_) || header.parts > 1) refuse("has another layout");
  if (header.n_tokens > static_cast<uint64_t>(options_.n_ctx) ||
      header.n_draft > static_cast<uint64_t>(options_.n_ctx)) {
    refuse("is longer than the context");
  }
  const auto parts = static_cast<Parts>(header.parts);
  std::vector<int32_t> tokens(header.n_tokens);
  source(std::as_writable_bytes(std::span(tokens)));
  if (std::any_of(tokens.begin(), tokens.end(),
                  [&](int32_t t) { return t < 0 || t >= shape_.n_vocab; })) {
    refuse("has a token id outside the vocabulary");
  }
  if (parts == Parts::Recurrent && (tokens.size() > tokens_.size() ||
                                    !std::equal(tokens.begin(), tokens.end(), tokens_.begin()))) {
    refuse("continues another text than the one whose keys and values are in memory");
  }
  const int64_t draft = parts == Parts::All
                            ? static_cast<int64_t>(header.n_draft)
                            : std::min(draft_position_, static_cast<int64_t>(header.n_draft));
  begin_change();
  pending_ = 0;
  held_tokens_.clear();
  each_part(parts, static_cast<int64_t>(header.n_tokens), draft, source);
  tokens_.assign(tokens.begin(), tokens.end());
  draft_position_ = draft;
  broken_ = false;
}

void State::check_ready(std::span<const int32_t> tokens) const {
  if (broken_) {
    fail(ErrorKind::Internal,
         "the conversation's state is half-way through a step that failed; reset or restore it");
  }
  if (pending_ > 0) {
    fail(ErrorKind::Internal, "{} evaluated rows were neither kept nor dropped", pending_);
  }
  if (tokens.empty()) fail(ErrorKind::Internal, "a step without tokens");
  if (static_cast<int64_t>(tokens.size()) > capacity() - position()) {
    fail(ErrorKind::Usage,
         "{} more tokens do not fit into the context of {} tokens, {} of which are in use; raise "
         "--ctx",
         tokens.size(), capacity(), position());
  }
  for (const int32_t token : tokens) {
    if (token < 0 || token >= shape_.n_vocab) {
      fail(ErrorKind::Usage, "token id {} is outside the vocabulary of {}", token, shape_.n_vocab);
    }
  }
}

void State::append(std::span<const int32_t> tokens) {
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  broken_ = false;
}

void State::hold(std::span<const int32_t> tokens) {
  held_tokens_.assign(tokens.begin(), tokens.end());
  pending_ = static_cast<int>(tokens.size());
  broken_ = false;
}

void State::settle(int n) {
  tokens_.insert(tokens_.end(), held_tokens_.begin(), held_tokens_.begin() + n);
  held_tokens_.clear();
  pending_ = 0;
  broken_ = false;
}

}  // namespace penstock::models
