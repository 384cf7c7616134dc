#include "experts/stream.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "experts/expert_stream.h"
#include "experts/mapped_stream.h"
#include "experts/pack_format.h"
#include "experts/stream_setup.h"

namespace penstock::experts {
namespace {

constexpr int kBadChecksum = -2;  // beside errno and kEndOfFile

// A read's tag: the slot's generation, the part, the slot.
uint64_t make_tag(uint32_t gen, int part, int32_t slot) noexcept {
  return uint64_t{gen} << 32 | static_cast<uint64_t>(part) << kSlotBits |
         static_cast<uint64_t>(slot);
}
uint32_t tag_gen(uint64_t tag) noexcept {
  return static_cast<uint32_t>(tag >> 32);
}
int tag_part(uint64_t tag) noexcept {
  return static_cast<int>(tag >> kSlotBits & 0xf);
}
int32_t tag_slot(uint64_t tag) noexcept {
  return static_cast<int32_t>(tag & ((uint64_t{1} << kSlotBits) - 1));
}

}  // namespace

ExpertStream::ExpertStream(Geometry geometry, std::shared_ptr<const StreamFiles> files,
                           const ArenaShape& shape, const StreamOptions& options)
    : geometry_(std::move(geometry)),
      files_(std::move(files)),
      shape_(shape),
      options_(options),
      layouts_(layouts_of(geometry_, shape.alignment)),
      arena_(shape, options.huge_seconds),
      residency_(geometry_, shape, options.evict),
      parts_left_(residency_.n_slots(), 0),
      slot_failure_(residency_.n_slots()),
      awaited_(residency_.n_slots(), 0),
      queue_(open_backend(*files_, options.io, backend_capacity(geometry_, options.depth),
                          pool_threads(options.depth), options.decorate, &io_),
             shape.alignment, residency_.n_slots() * kMaxParts),
      layer_router_(geometry_),
      read_for_(residency_.n_slots()),
      meter_(geometry_.layers.size(), most_used(geometry_)),
      layer_stall_ns_(geometry_.layers.size(), 0) {
  for (const SlotClass& c : shape.classes) slots_at_first_.push_back(c.slots);
  const size_t n = most_experts(geometry_);
  seen_.assign(n, 0);
  prompt_uses_.assign(n, 0);
  admitted_.assign(n, 0);
  by_use_.reserve(n);
  snapshot_.resize((n + 63) / 64);
  pending_.reserve(n);
  resident_.reserve(n);
  arrived_.reserve(n);
  lent_.reserve(n);
  batch_.reserve(n);
  missing_.resize(most_used(geometry_));
  row_ranked_.reserve(most_used(geometry_) + 2);
  if (options.register_buffers) register_arena();
  if (options.alias) fill_alias();
  if (options.moce.on() && !options.alias && !shape.holds_all()) {
    router_.emplace(options.moce, geometry_);
  }
}

void ExpertStream::register_arena() {
  if (queue_.backend().engine() != Engine::Uring) return;
  const int error = queue_.backend().register_buffers(arena_.ranges());
  if (error == 0) {
    for (const MemoryRange& range : arena_.ranges()) io_.registered_bytes += range.bytes;
    return;
  }
  if (!io_.reason.empty()) io_.reason += "; ";
  io_.reason += fmt::format("arena memory not registered: {}", errno_text(error));
}

// Every layer gets its share of its class's slots, filled with its first experts.
void ExpertStream::fill_alias() {
  std::vector<uint32_t> layers_left(shape_.classes.size(), 0);
  std::vector<uint64_t> slots_left;
  for (const uint32_t c : shape_.class_of) ++layers_left[c];
  for (const SlotClass& c : shape_.classes) slots_left.push_back(c.slots);
  for (size_t l = 0; l < geometry_.layers.size(); ++l) {
    const uint32_t c = shape_.class_of[l];
    const auto share = std::min<uint64_t>(slots_left[c] / layers_left[c],
                                          static_cast<uint64_t>(geometry_.layers[l].n_expert));
    if (share == 0) {
      fail(ErrorKind::Usage, "--alias-experts needs at least one slot for each of {} layers",
           geometry_.layers.size());
    }
    --layers_left[c];
    slots_left[c] -= share;
    layer_ = static_cast<int>(l);
    for (int e = 0; e < static_cast<int>(share); ++e) {
      const int32_t slot = residency_.acquire(layer_, e, ReadReason::Fill, false);
      awaited_[static_cast<size_t>(slot)] = 1;
      read_expert(slot);
    }
    queue_.submit();
    while (queue_.outstanding() > 0) handle(queue_.wait());
    raise_failure();
    for (const Held& held : arrived_) residency_.unpin(held.slot, 0);
    arrived_.clear();
    alias_.push_back(static_cast<int32_t>(share));
  }
  copy_io_counters();
}

Routing ExpertStream::begin(int index, const float* logits, int rows, const RouteRule& rule,
                            Phase phase) {
  layer_router_.check(index, rows, rule);
  note(Work::Route);
  open_layer(index, rows, rule, phase);
  const Routing routing = route(logits, rows, rule, phase);
  ids_ = routing.ids;
  if (phase == Phase::Decode) {
    classify_decode(logits, rows, rule.n_used);
  } else {
    collect_prompt(rows, rule.n_used);
  }
  start_reads();
  note(Work::Ahead);
  return routing;
}

void ExpertStream::open_layer(int index, int rows, const RouteRule& rule, Phase phase) {
  if (open_) end();
  if (phase == Phase::Decode) {
    // A step that meets the first layer again was abandoned half-way (an error, a cancelled
    // request) and is not counted. Later layers may recur: a draft block runs once per draft.
    if (index == 0 && step_.first_layer_begun) step_ = {};
    if (index == 0) begin_token();
    residency_.set_position(index);
    step_.rows = std::max(step_.rows, rows);
    step_.expected += static_cast<uint64_t>(rows) * static_cast<uint64_t>(rule.n_used);
  }
  open_ = true;
  layer_ = index;
  phase_ = phase;
  ++clock_;
  settle_ahead();
  // The one look at the live map: what follows sees this copy (law 1).
  const std::span<const uint64_t> ready = residency_.ready_bits(index);
  std::fill(std::copy(ready.begin(), ready.end(), snapshot_.begin()), snapshot_.end(), uint64_t{0});
}

void ExpertStream::begin_token() {
  step_.first_layer_begun = true;
  step_.began_ns = now_ns();
  last_step_clock_ = std::exchange(step_clock_, clock_ + 1);
  if (!options_.moce.epoch()) return;
  while (queue_.outstanding() > 0) handle(queue_.wait());
  residency_.begin_epoch();
}

std::span<const uint64_t> ExpertStream::router_sees(int index) const noexcept {
  if (options_.moce.epoch()) return residency_.epoch_bits(index);
  return index == layer_ ? std::span<const uint64_t>(snapshot_) : residency_.ready_bits(index);
}

Routing ExpertStream::route(const float* logits, int rows, const RouteRule& rule, Phase phase) {
  const bool cache_aware = router_ && phase == Phase::Decode && rule.trunk;
  try {
    return layer_router_.route(layer_, logits, rows, rule, phase, cache_aware ? &*router_ : nullptr,
                               router_sees(layer_));
  } catch (const Error&) {
    step_ = {};
    throw;
  }
}

void ExpertStream::classify_decode(const float* logits, int rows, int n_used) {
  const size_t n = static_cast<size_t>(rows) * static_cast<size_t>(n_used);
  for (size_t i = 0; i < n; ++i) {
    const int32_t e = ids_[i];
    const bool first = std::exchange(seen_[static_cast<size_t>(e)], clock_) != clock_;
    const int representative = represent(e);
    const int32_t slot = residency_.find(layer_, representative);
    bool missing = true;
    if (in_snapshot(representative)) {
      missing = residency_.take_unused(slot);
      if (missing) count_spec_use(slot, false);
      ++(missing ? step_.uses.ra_timely : step_.uses.arena);
      if (first) hold(e, slot, false);
    } else if (slot != kNoSlot) {  // a guess or a lazy fill that is still being read
      ++step_.uses.ra_late;
      if (residency_.take_unused(slot)) count_spec_use(slot, true);
      await(slot);
    } else if (first) {
      ++step_.uses.miss_issued;
      pending_.push_back(e);
    } else {
      ++step_.uses.miss_joined;
    }
    if (rows == 1) missing_[i] = missing ? 1 : 0;
    residency_.count_use(layer_, e);
  }
  std::sort(pending_.begin(), pending_.end());
  if (rows == 1) measure_ahead(logits, n_used);
  // What was kept for this layer is held now if it was selected; the rest may go.
  drop_guesses(0, layer_);
  release_ahead(layer_);
}

// What was being read for nobody in particular is now waited for.
void ExpertStream::await(int32_t slot) noexcept {
  if (std::exchange(awaited_[static_cast<size_t>(slot)], 1) != 0) return;
  --speculating_;
  ++reading_;
}

void ExpertStream::collect_prompt(int rows, int n_used) {
  const size_t n = static_cast<size_t>(rows) * static_cast<size_t>(n_used);
  std::fill(prompt_uses_.begin(), prompt_uses_.end(), 0u);
  for (size_t i = 0; i < n; ++i) {
    seen_[static_cast<size_t>(ids_[i])] = clock_;
    ++prompt_uses_[static_cast<size_t>(ids_[i])];
  }
  const int n_expert = geometry_.layers[static_cast<size_t>(layer_)].n_expert;
  for (int e = 0; e < n_expert; ++e) {
    if (seen_[static_cast<size_t>(e)] != clock_) continue;
    ++counters_.prompt_experts_touched;
    const int representative = represent(e);
    if (in_snapshot(representative)) {
      ++counters_.prompt_arena_used;
      const int32_t slot = residency_.find(layer_, representative);
      if (residency_.take_unused(slot)) count_spec_use(slot, false);
      hold(e, slot, false);
    } else {
      pending_.push_back(e);
    }
  }
  admit_most_used();
}

// A prompt touches most experts of a layer. What it leaves in empty slots is each layer's share of
// them, the most used ones: else the first layers would fill the arena and decode begin with the
// others' misses.
void ExpertStream::admit_most_used() {
  const uint32_t c = shape_.class_of[static_cast<size_t>(layer_)];
  const auto n_layers =
      static_cast<uint64_t>(std::count(shape_.class_of.begin(), shape_.class_of.end(), c));
  const uint64_t share = (shape_.classes[c].slots + n_layers - 1) / n_layers;
  uint64_t resident = 0;
  for (const uint64_t word : snapshot_) resident += static_cast<uint64_t>(std::popcount(word));
  by_use_.assign(pending_.begin(), pending_.end());
  const size_t n = std::min<size_t>(by_use_.size(), share > resident ? share - resident : 0);
  std::partial_sort(by_use_.begin(), by_use_.begin() + static_cast<std::ptrdiff_t>(n),
                    by_use_.end(), [&](int32_t a, int32_t b) {
                      const uint32_t x = prompt_uses_[static_cast<size_t>(a)];
                      const uint32_t y = prompt_uses_[static_cast<size_t>(b)];
                      return x != y ? x > y : a < b;
                    });
  std::fill(admitted_.begin(), admitted_.end(), uint8_t{0});
  for (size_t i = 0; i < n; ++i) admitted_[static_cast<size_t>(by_use_[i])] = 1;
}

void ExpertStream::hold(int expert, int32_t slot, bool admitted) {
  residency_.pin(slot);
  (admitted ? arrived_ : resident_).push_back({expert, slot, residency_.slot(slot).gen, admitted});
}

// Gives slots to pending experts as far as there are any and the depth allows, and reads into them.
void ExpertStream::start_reads() {
  const bool prompt = phase_ == Phase::Prompt;
  // A prompt leaves the arena as it is, unless an arena for all experts was made smaller since.
  const bool may_evict = !prompt || shape_.transit == 0;
  while (pending_head_ < pending_.size() && !(prompt && reading_ >= options_.depth)) {
    const int32_t e = pending_[pending_head_];
    int32_t slot = kNoSlot;
    if (!prompt || admitted_[static_cast<size_t>(e)] != 0 || shape_.transit == 0) {
      slot = residency_.acquire(layer_, e, prompt ? ReadReason::Prompt : ReadReason::Demand,
                                may_evict);
    }
    if (slot == kNoSlot && prompt) slot = residency_.acquire_transit(layer_, e);
    if (slot == kNoSlot && !kept_.empty()) {  // what is wanted comes before what may be
      release_ahead(last_layer());
      continue;
    }
    // A step of many rows can select more experts than there are slots: the others follow when
    // slots have been computed on.
    if (slot == kNoSlot) break;
    awaited_[static_cast<size_t>(slot)] = 1;
    read_expert(slot);
    ++pending_head_;
  }
  queue_.submit();
}

void ExpertStream::read_expert(int32_t slot) {
  const auto s = static_cast<size_t>(slot);
  const Slot& state = residency_.slot(slot);
  const RecordLayout& layout = layouts_[static_cast<size_t>(state.layer)];
  std::byte* base = arena_.slot(slot);
  // Whoever still computes on it shall notice.
  if (kPoison) std::memset(base, 0xFF, arena_.slot_bytes(slot));
  for (int p = 0; p < layout.n_parts; ++p) {
    Read read = expert_read(*files_, layout, p, state.expert, base);
    if (io_.registered_bytes != 0) read.buffer = arena_.range_of(slot);
    read.reason = state.reason;
    read.tag = make_tag(state.gen, p, slot);
    queue_.push(read);
  }
  parts_left_[s] = static_cast<uint8_t>(layout.n_parts);
  slot_failure_[s] = {};
  ++(awaited_[s] != 0 ? reading_ : speculating_);
  ++counters_.experts_read;
  if (state.reason == ReadReason::Demand) ++step_.experts_read;
}

void ExpertStream::handle(std::span<const ReadDone> done) {
  for (const ReadDone& d : done) {
    const int32_t slot = tag_slot(d.tag);
    const auto s = static_cast<size_t>(slot);
    const Slot& state = residency_.slot(slot);
    if (state.gen != tag_gen(d.tag) || parts_left_[s] == 0) {
      fail(ErrorKind::Internal, "stream: a read ended for slot {} that nobody waits for", slot);
    }
    const RecordLayout& layout = layouts_[static_cast<size_t>(state.layer)];
    Failure& failure = slot_failure_[s];
    if (d.error != 0 && failure.error == 0) {
      failure = {state.layer, state.expert, layout.parts[tag_part(d.tag)].shard, d.offset, d.error};
    }
    if (--parts_left_[s] > 0) continue;
    if (failure.error == 0 && !record_is_sound(state, slot)) {
      const LayerGeometry& layer = geometry_.layers[static_cast<size_t>(state.layer)];
      failure = {state.layer, state.expert, layer.gate.shard,
                 layer.gate.offset + static_cast<uint64_t>(state.expert) * layer.record_bytes,
                 kBadChecksum};
    }
    const bool awaited = std::exchange(awaited_[s], 0) != 0;
    --(awaited ? reading_ : speculating_);
    residency_.complete(slot, failure.error == 0);
    if (failure.error != 0) {
      // What nobody asked for may fail: whoever needs the expert reads it again.
      if (awaited && failure_.error == 0) failure_ = failure;
      if (state.reason == ReadReason::Fill) ++fills_failed_;
    } else if (awaited) {
      hold(state.expert, slot, true);
    } else if (state.reason == ReadReason::Spec) {
      keep_ahead(slot);
    }
  }
}

// Compares the checksum of every n-th record that was read, as far as there are any to compare
// with.
bool ExpertStream::record_is_sound(const Slot& slot, int32_t id) {
  const LayerGeometry& layer = geometry_.layers[static_cast<size_t>(slot.layer)];
  if (layer.sums == nullptr || options_.verify_every == 0) return true;
  if (++since_verified_ < options_.verify_every) return true;
  since_verified_ = 0;
  ++counters_.records_verified;
  return checksum(static_cast<Checksum>(layer.sums->kind), {arena_.slot(id), layer.record_bytes}) ==
         layer.sums->sums[static_cast<size_t>(slot.expert)];
}

std::span<const ReadyExpert> ExpertStream::next() {
  if (!open_) fail(ErrorKind::Internal, "stream: next() without begin()");
  note(Work::Experts);
  release_batch();
  handle(queue_.poll());
  raise_failure();
  start_reads();
  read_guesses();
  if (arrived_.empty() && resident_.empty()) {
    if (reading_ == 0 && pending_head_ < pending_.size()) {
      fail(ErrorKind::Internal, "stream: no slot for expert {} of layer {}",
           pending_[pending_head_], layer_);
    }
    if (reading_ > 0) wait_for_arrival();
  }
  if (phase_ == Phase::Decode) {
    deliver(resident_, resident_.size());
    deliver(arrived_, arrived_.size());
    return batch_;
  }
  // While there is more to read, batches stay small: the next reads start when a batch is handed
  // back, and half of the transit slots must stay free for them.
  const bool reads_left = reading_ > 0 || pending_head_ < pending_.size();
  const size_t limit = reads_left ? static_cast<size_t>(options_.depth) : SIZE_MAX;
  deliver(arrived_.empty() ? resident_ : arrived_, limit);
  return batch_;
}

void ExpertStream::wait_for_arrival() {
  note(Work::Stall);
  const int64_t start = now_ns();
  while (arrived_.empty() && reading_ > 0 && failure_.error == 0) {
    handle(queue_.wait());
    start_reads();
    read_guesses();
  }
  const auto blocked = static_cast<uint64_t>(now_ns() - start);
  if (phase_ == Phase::Decode) {
    counters_.stall_ns += blocked;
    ++counters_.stall_events;
    layer_stall_ns_[static_cast<size_t>(layer_)] += blocked;
  } else {
    counters_.prompt_stall_ns += blocked;
  }
  note(Work::Experts);
  raise_failure();
}

void ExpertStream::deliver(std::vector<Held>& from, size_t limit) {
  const size_t n = std::min(limit, from.size());
  const RecordLayout& layout = layouts_[static_cast<size_t>(layer_)];
  for (size_t i = 0; i < n; ++i) {
    const Held& held = from[i];
    // The bytes lie where they do in the file of the expert that was read.
    const int read = residency_.slot(held.slot).expert;
    batch_.push_back({held.expert, locate(layout, read, arena_.slot(held.slot))});
    lent_.push_back(held);
  }
  from.erase(from.begin(), from.begin() + static_cast<std::ptrdiff_t>(n));
}

void ExpertStream::release_batch() {
  for (const Held& held : lent_) {
    if (residency_.slot(held.slot).gen != held.gen) {
      fail(ErrorKind::Internal, "stream: slot {} was reused while computed on", held.slot);
    }
    // A prompt leaves no trace in the choice of victims but for what it brought.
    residency_.unpin(held.slot, phase_ == Phase::Decode || held.admitted ? clock_ : 0);
    if (residency_.is_transit(held.slot)) residency_.release_transit(held.slot);
  }
  lent_.clear();
  batch_.clear();
}

// Sticky until end(): a layer with a failed expert never looks complete.
void ExpertStream::raise_failure() {
  if (failure_.error == 0) return;
  step_ = {};
  const LayerGeometry& layer = geometry_.layers[static_cast<size_t>(failure_.layer)];
  if (failure_.error == kBadChecksum) {
    fail(ErrorKind::Format,
         "expert {} of layer {} at offset {} of {} is damaged: its checksum differs; the step was "
         "given up. `penstock pack verify` tells how much is damaged, `penstock pack` makes it "
         "again",
         failure_.expert, layer.layer, failure_.offset, files_->path(failure_.shard));
  }
  fail(ErrorKind::Io,
       "reading expert {} of layer {} failed at offset {} of {}: {}; the step was given up, check "
       "the file and the disk",
       failure_.expert, layer.layer, failure_.offset, files_->path(failure_.shard),
       read_error_text(failure_.error));
}

void ExpertStream::end() {
  if (!open_) return;
  note(Work::Dense);
  open_ = false;
  release_batch();
  // Only after an error is anything left that the layer waited for.
  while (reading_ > 0) handle(queue_.wait());
  for (std::vector<Held>* list : {&resident_, &arrived_}) {
    lent_.insert(lent_.end(), list->begin(), list->end());
    list->clear();
  }
  release_batch();
  residency_.recycle_failed();
  pending_.clear();
  pending_head_ = 0;
  failure_ = {};
  read_guesses();
  copy_io_counters();
}

void ExpertStream::record(Timeline* timeline) {
  timeline_ = timeline;
  queue_.record(timeline);
  if (timeline != nullptr) timeline->start(now_ns());
}

void ExpertStream::note(Work next) {
  const Work past = std::exchange(work_, next);
  if (timeline_ == nullptr) return;
  const int layer = geometry_.layers[static_cast<size_t>(layer_)].layer;
  timeline_->work(past, layer, static_cast<uint32_t>(batch_.size()), now_ns());
}

void ExpertStream::copy_io_counters() {
  counters_.demand = queue_.counts(ReadReason::Demand);
  counters_.prompt = queue_.counts(ReadReason::Prompt);
  counters_.fill = queue_.counts(ReadReason::Fill);
  counters_.spec = queue_.counts(ReadReason::Spec);
  counters_.ahead.pending = residency_.unused_spec();
  counters_.ahead.wasted = residency_.wasted_spec();
  counters_.demand_latency = queue_.latencies(ReadReason::Demand);
  counters_.prompt_latency = queue_.latencies(ReadReason::Prompt);
  counters_.fill_latency = queue_.latencies(ReadReason::Fill);
  counters_.spec_latency = queue_.latencies(ReadReason::Spec);
  counters_.io_busy_ns = queue_.busy_ns();
  counters_.io_latency_ns = queue_.latency_ns();
  counters_.read_errors_retried = queue_.retried();
  counters_.evict_total = residency_.evictions();
  counters_.evict_hot = residency_.evictions_hot();
  counters_.hot = residency_.n_hot();
  counters_.hot_resident = residency_.n_hot_resident();
}

void ExpertStream::end_step(int rows) {
  end();
  if (step_.uses.total() != step_.expected || step_.experts_read != step_.uses.miss_issued ||
      step_.rows > rows) {
    fail(
        ErrorKind::Internal,
        "counters do not close: step of {} rows, layers of up to {}; {} uses of {} expected (arena "
        "{}, missed {} + {}), {} experts read",
        rows, step_.rows, step_.uses.total(), step_.expected, step_.uses.arena,
        step_.uses.miss_issued, step_.uses.miss_joined, step_.experts_read);
  }
  (counters_.steps == 0 ? counters_.first : counters_.steady) += step_.uses;
  counters_.uses_expected += step_.expected;
  ++counters_.steps;
  counters_.tokens += static_cast<uint64_t>(rows);
  if (counters_.first.total() + counters_.steady.total() != counters_.uses_expected) {
    fail(ErrorKind::Internal, "counters do not close: {} + {} uses of {} expected",
         counters_.first.total(), counters_.steady.total(), counters_.uses_expected);
  }
  const SpecCounts& ahead = counters_.ahead;
  if (ahead.issued != ahead.used() + ahead.wasted + ahead.pending) {
    fail(ErrorKind::Internal,
         "counters do not close: {} read ahead; {} + {} used, {} wasted, {} pending", ahead.issued,
         ahead.used_same_token, ahead.used_later, ahead.wasted, ahead.pending);
  }
  if (options_.read_ahead != ReadAhead::Off) end_ahead_step(rows);
  step_ = {};
  for (RouteObserver* observer : layer_router_.observers()) observer->step_ended(rows);
  if (timeline_ != nullptr) timeline_->token(now_ns());
  for (since_halving_ += rows; since_halving_ >= options_.half_life;
       since_halving_ -= options_.half_life) {
    residency_.halve_frequencies();
  }
  residency_.age(rows);
  if (router_) router_->end_step(rows);
}

std::unique_ptr<Stream> make_stream(Geometry geometry, std::shared_ptr<const StreamFiles> files,
                                    const ArenaShape& shape, const StreamOptions& options) {
  check_moce(options.moce);
  if (options.io == IoMode::Mmap) {
    if (options.moce.on() || options.alias || options.verify_every != 0) {
      fail(ErrorKind::Usage,
           "--io mmap leaves to the kernel what is in memory: it does not go with --moce, "
           "--alias-experts or --verify");
    }
    return std::make_unique<MappedStream>(std::move(geometry), options);
  }
  check_inputs(geometry, *files, shape);
  StreamOptions used = options;
  if (used.moce.epoch()) {
    // What is read when nobody asked for it depends on the disk's timing.
    if (used.read_ahead == ReadAhead::On || used.fill == Fill::Lazy) {
      fail(ErrorKind::Usage,
           "--moce-residency epoch makes the output independent of timing: it goes with "
           "--read-ahead off or probe and --fill warm or none only");
    }
    if (used.read_ahead == ReadAhead::Auto) used.read_ahead = ReadAhead::Off;
  }
  return std::make_unique<ExpertStream>(std::move(geometry), std::move(files), shape, used);
}

}  // namespace penstock::experts
