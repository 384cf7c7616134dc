#include "experts/stream.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "experts/arena.h"
#include "experts/pack_format.h"
#include "experts/read_ahead.h"
#include "experts/read_queue.h"
#include "experts/record.h"
#include "experts/residency.h"
#include "experts/route.h"
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

class ExpertStream final : public Stream {
 public:
  ExpertStream(Geometry geometry, std::shared_ptr<const StreamFiles> files, const ArenaShape& shape,
               const StreamOptions& options);
  ~ExpertStream() override = default;  // the queue waits for its reads before the arena goes

  Routing begin(int index, const float* logits, int rows, const RouteRule& rule,
                Phase phase) override;
  int look_ahead() const override;
  void predict(int index, const float* logits, int rows) override;
  std::span<const ReadyExpert> next() override;
  void end() override;
  void end_step(int rows) override;

  const Geometry& geometry() const override { return geometry_; }
  const Counters& counters() const override { return counters_; }
  std::span<const uint64_t> layer_stall_ns() const override { return layer_stall_ns_; }
  const AheadMeter* ahead() const override {
    return options_.read_ahead == ReadAhead::Off ? nullptr : &meter_;
  }
  const AheadGovernor* governor() const override {
    return options_.read_ahead == ReadAhead::Auto ? &governor_ : nullptr;
  }
  const IoReport& io() const override { return io_; }
  const ArenaShape& shape() const override { return shape_; }
  uint64_t arena_huge_bytes() const override { return arena_.huge(); }
  void set_trace(Trace trace) override { trace_ = std::move(trace); }

 private:
  // An expert of the current layer whose slot is READY and pinned.
  struct Held {
    int32_t expert;
    int32_t slot;
    uint32_t gen;
    bool admitted;  // came from a read of this layer
  };
  struct Failure {
    int layer = -1;
    int expert = 0;
    uint32_t shard = 0;
    uint64_t offset = 0;
    int error = 0;
  };
  // A decode step in progress; joins the counters when it is complete.
  struct Step {
    UseCounts uses;
    uint64_t expected = 0;      // rows * n_used, summed over the layers begun
    uint64_t experts_read = 0;  // for demand
    int rows = 0;               // the most of any layer
    bool first_layer_begun = false;
    int64_t began_ns = 0;
  };

  void register_arena();
  void fill_alias();
  void open_layer(int index, int rows, const RouteRule& rule, Phase phase);
  void route(const float* logits, int rows, const RouteRule& rule, Phase phase);
  void classify_decode(int rows, int n_used);
  void collect_prompt(int rows, int n_used);
  void start_reads();
  void read_expert(int32_t slot);
  void handle(std::span<const ReadDone> done);
  void wait_for_arrival();
  void release_batch();
  void deliver(std::vector<Held>& from, size_t limit);
  void raise_failure();
  bool record_is_sound(const Slot& slot, int32_t id);
  void copy_io_counters();
  // Read-ahead.
  int last_layer() const noexcept { return static_cast<int>(geometry_.layers.size()) - 1; }
  bool reads_ahead() const noexcept;
  void read_guesses();
  void drop_guesses(int first, int last);  // for these layers
  void keep_ahead(int32_t slot);
  void release_ahead(int upto);
  void settle_ahead();
  void count_spec_use(int32_t slot);
  void measure_ahead(int n_used);
  void guess_first_layer();
  void end_ahead_step(int rows);
  void hold(int expert, int32_t slot, bool admitted);
  // An aliased expert is represented by one of those that were filled in.
  int represent(int expert) const noexcept {
    return alias_.empty() ? expert : expert % alias_[static_cast<size_t>(layer_)];
  }
  bool in_snapshot(int expert) const noexcept {
    return (snapshot_[static_cast<size_t>(expert) / 64] >> (expert % 64) & 1) != 0;
  }

  Geometry geometry_;
  std::shared_ptr<const StreamFiles> files_;
  ArenaShape shape_;
  StreamOptions options_;
  IoReport io_;
  std::vector<RecordLayout> layouts_;
  Arena arena_;
  Residency residency_;
  std::vector<uint8_t> parts_left_;  // by slot: reads still out
  std::vector<Failure> slot_failure_;
  std::vector<uint8_t> awaited_;  // by slot: the current layer waits for its reads
  std::vector<int32_t> alias_;    // by layer: experts filled in; empty without --alias-experts
  ReadQueue queue_;

  // The current layer.
  bool open_ = false;
  int layer_ = 0;
  Phase phase_ = Phase::Decode;
  uint64_t clock_ = 0;  // counts begin() calls: the time of last_use
  std::vector<uint64_t> snapshot_;
  std::vector<float> probabilities_;
  std::vector<int32_t> ids_;
  std::vector<float> weights_;
  std::vector<uint64_t> seen_;    // by expert: the clock when it was last selected
  std::vector<int32_t> pending_;  // experts without a slot yet, in file order
  size_t pending_head_ = 0;
  int reading_ = 0;             // experts that the current layer waits for
  std::vector<Held> resident_;  // not yet delivered
  std::vector<Held> arrived_;   // not yet delivered
  std::vector<Held> lent_;      // what the current batch points to
  std::vector<ReadyExpert> batch_;

  Failure failure_;  // of an expert that the current layer waits for

  // Read-ahead. A guess becomes a read when nothing more urgent is queued; what has been read for a
  // layer that is still to come is pinned until that layer's router has spoken.
  struct Guess {
    int32_t layer;
    int32_t expert;
  };
  struct Kept {
    int32_t slot;
    int32_t layer;
  };
  std::vector<Guess> guesses_;
  std::vector<Kept> kept_;
  std::vector<uint64_t> read_for_step_;  // by slot: the step in which it was read ahead
  std::vector<int32_t> row_ranked_, ranked_;
  std::vector<uint8_t> missing_;  // by rank of a step's only row
  int speculating_ = 0;           // experts being read that nobody waits for
  uint64_t step_clock_ = 0;       // clock_ when this step began, and the one before
  uint64_t last_step_clock_ = 0;
  AheadMeter meter_;
  AheadGovernor governor_;
  bool disk_idle_ = false;  // reads kept the disk busy for less than 60 % of the last 32 tokens
  int idle_rows_ = 0;
  uint64_t idle_wall_ns_ = 0;
  uint64_t idle_busy_ns_ = 0;

  Step step_;
  int since_halving_ = 0;
  uint64_t since_verified_ = 0;  // records read
  Counters counters_;
  std::vector<uint64_t> layer_stall_ns_;
  Trace trace_;
};

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
      read_for_step_(residency_.n_slots(), 0),
      meter_(geometry_.layers.size(), most_used(geometry_)),
      layer_stall_ns_(geometry_.layers.size(), 0) {
  int most_experts = 0;
  for (const LayerGeometry& layer : geometry_.layers) {
    most_experts = std::max(most_experts, layer.n_expert);
  }
  const auto n = static_cast<size_t>(most_experts);
  probabilities_.resize(n);
  seen_.assign(n, 0);
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
}

void ExpertStream::register_arena() {
  if (queue_.backend().engine() != Engine::Uring) return;
  const int error = queue_.backend().register_buffers(arena_.ranges());
  if (error == 0) {
    io_.registered_bytes = arena_.bytes();
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
  open_layer(index, rows, rule, phase);
  route(logits, rows, rule, phase);
  const auto n = static_cast<size_t>(rows) * static_cast<size_t>(rule.n_used);
  if (phase == Phase::Decode) {
    classify_decode(rows, rule.n_used);
  } else {
    collect_prompt(rows, rule.n_used);
  }
  start_reads();
  return {{ids_.data(), n}, {weights_.data(), n}};
}

void ExpertStream::open_layer(int index, int rows, const RouteRule& rule, Phase phase) {
  if (open_) end();
  if (index < 0 || static_cast<size_t>(index) >= geometry_.layers.size() || rows < 1 ||
      rows >= 65536 || rule.n_used != geometry_.layers[static_cast<size_t>(index)].n_used) {
    fail(ErrorKind::Internal, "stream: layer {} begun with {} rows, {} experts used", index, rows,
         rule.n_used);
  }
  if (phase == Phase::Decode) {
    // A step that meets the first layer again was abandoned half-way (an error, a cancelled
    // request) and is not counted. Later layers may recur: a draft block runs once per draft.
    if (index == 0 && step_.first_layer_begun) step_ = {};
    if (index == 0) {
      step_.first_layer_begun = true;
      step_.began_ns = now_ns();
      last_step_clock_ = std::exchange(step_clock_, clock_ + 1);
    }
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
  std::copy(ready.begin(), ready.end(), snapshot_.begin());
}

void ExpertStream::route(const float* logits, int rows, const RouteRule& rule, Phase phase) {
  const auto n_used = static_cast<size_t>(rule.n_used);
  const auto n_expert = static_cast<size_t>(geometry_.layers[static_cast<size_t>(layer_)].n_expert);
  const size_t n = static_cast<size_t>(rows) * n_used;
  if (ids_.size() < n) {
    ids_.resize(n);
    weights_.resize(n);
  }
  for (size_t row = 0; row < static_cast<size_t>(rows); ++row) {
    int32_t* ids = ids_.data() + row * n_used;
    if (!route_row({logits + row * n_expert, n_expert}, rule, probabilities_.data(), ids,
                   weights_.data() + row * n_used)) {
      step_ = {};
      fail(ErrorKind::Numeric, "the router of layer {} gave values that are not finite",
           geometry_.layers[static_cast<size_t>(layer_)].layer);
    }
    if (trace_) trace_(layer_, static_cast<int>(row), phase, {ids, n_used});
  }
}

void ExpertStream::classify_decode(int rows, int n_used) {
  const size_t n = static_cast<size_t>(rows) * static_cast<size_t>(n_used);
  for (size_t i = 0; i < n; ++i) {
    const int32_t e = ids_[i];
    const bool first = std::exchange(seen_[static_cast<size_t>(e)], clock_) != clock_;
    const int representative = represent(e);
    const int32_t slot = residency_.find(layer_, representative);
    bool missing = true;
    if (in_snapshot(representative)) {
      missing = residency_.take_unused(slot);
      if (missing) count_spec_use(slot);
      ++(missing ? step_.uses.ra_timely : step_.uses.arena);
      if (first) hold(e, slot, false);
    } else if (slot != kNoSlot) {  // being read ahead
      ++step_.uses.ra_late;
      if (residency_.take_unused(slot)) {
        count_spec_use(slot);
        awaited_[static_cast<size_t>(slot)] = 1;
        --speculating_;
        ++reading_;
      }
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
  if (rows == 1) measure_ahead(n_used);
  // What was kept for this layer is held now if it was selected; the rest may go.
  drop_guesses(0, layer_);
  release_ahead(layer_);
}

void ExpertStream::collect_prompt(int rows, int n_used) {
  const size_t n = static_cast<size_t>(rows) * static_cast<size_t>(n_used);
  for (size_t i = 0; i < n; ++i) seen_[static_cast<size_t>(ids_[i])] = clock_;
  const int n_expert = geometry_.layers[static_cast<size_t>(layer_)].n_expert;
  for (int e = 0; e < n_expert; ++e) {
    if (seen_[static_cast<size_t>(e)] != clock_) continue;
    ++counters_.prompt_experts_touched;
    const int representative = represent(e);
    if (in_snapshot(representative)) {
      ++counters_.prompt_arena_used;
      const int32_t slot = residency_.find(layer_, representative);
      if (residency_.take_unused(slot)) ++counters_.ahead.used_later;
      hold(e, slot, false);
    } else {
      pending_.push_back(e);
    }
  }
}

void ExpertStream::hold(int expert, int32_t slot, bool admitted) {
  residency_.pin(slot);
  (admitted ? arrived_ : resident_).push_back({expert, slot, residency_.slot(slot).gen, admitted});
}

// Gives slots to pending experts as far as there are any and the depth allows, and reads into them.
void ExpertStream::start_reads() {
  const bool prompt = phase_ == Phase::Prompt;
  while (pending_head_ < pending_.size() && !(prompt && reading_ >= options_.depth)) {
    const int32_t e = pending_[pending_head_];
    int32_t slot =
        residency_.acquire(layer_, e, prompt ? ReadReason::Prompt : ReadReason::Demand, !prompt);
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
#ifndef NDEBUG
  std::memset(base, 0xFF, arena_.slot_bytes(slot));  // whoever still computes on it shall notice
#endif
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
      // A failed guess is no failure: whoever needs the expert reads it again.
      if (awaited && failure_.error == 0) failure_ = failure;
    } else if (awaited) {
      hold(state.expert, slot, true);
    } else {
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

void ExpertStream::copy_io_counters() {
  counters_.demand = queue_.counts(ReadReason::Demand);
  counters_.prompt = queue_.counts(ReadReason::Prompt);
  counters_.fill = queue_.counts(ReadReason::Fill);
  counters_.spec = queue_.counts(ReadReason::Spec);
  counters_.spec_latency = queue_.latencies(ReadReason::Spec);
  counters_.ahead.pending = residency_.unused_spec();
  counters_.ahead.wasted = residency_.wasted_spec();
  counters_.demand_latency = queue_.latencies(ReadReason::Demand);
  counters_.prompt_latency = queue_.latencies(ReadReason::Prompt);
  counters_.io_busy_ns = queue_.busy_ns();
  counters_.io_latency_ns = queue_.latency_ns();
  counters_.read_errors_retried = queue_.retried();
  counters_.evict_total = residency_.evictions();
}

// ------------------------------------------------------------------------------- read-ahead

bool ExpertStream::reads_ahead() const noexcept {
  if (!alias_.empty()) return false;
  if (options_.read_ahead == ReadAhead::Auto) return governor_.active();
  return options_.read_ahead == ReadAhead::On;
}

int ExpertStream::look_ahead() const {
  if (phase_ != Phase::Decode) return 0;
  if (options_.read_ahead == ReadAhead::Probe) return kMostAhead;
  if (!reads_ahead()) return 0;
  return disk_idle_ ? kMostAhead : 1;
}

void ExpertStream::predict(int index, const float* logits, int rows) {
  const int distance = index - layer_;
  if (!open_ || phase_ != Phase::Decode || distance < 1 || distance > kMostAhead ||
      static_cast<size_t>(index) >= geometry_.layers.size()) {
    fail(ErrorKind::Internal, "stream: layer {} predicted at layer {}", index, layer_);
  }
  const LayerGeometry& layer = geometry_.layers[static_cast<size_t>(index)];
  const auto n_expert = static_cast<size_t>(layer.n_expert);
  const int width = ahead_width(distance, layer.n_used);
  ranked_.clear();
  for (size_t row = 0; row < static_cast<size_t>(rows); ++row) {
    rank_ahead({logits + row * n_expert, n_expert}, residency_.ready_bits(index), kProtectedRanks,
               0.0f, std::max(width, layer.n_used), &row_ranked_);
    if (rows == 1) meter_.predicted(index, distance, row_ranked_, width);
    row_ranked_.resize(std::min(row_ranked_.size(), static_cast<size_t>(width)));
    for (const int32_t e : row_ranked_) {
      if (std::find(ranked_.begin(), ranked_.end(), e) == ranked_.end()) ranked_.push_back(e);
    }
  }
  if (options_.read_ahead == ReadAhead::Probe) return;
  // The nearer prediction is the better one: it replaces what was guessed from further away.
  drop_guesses(index, index);
  int left = ahead_reads(distance);
  for (const int32_t e : ranked_) {
    const int32_t slot = residency_.find(index, e);
    if (slot == kNoSlot) {
      if (left-- > 0) guesses_.push_back({index, e});
    } else if (residency_.slot(slot).state == SlotState::Ready) {
      residency_.pin(slot);
      kept_.push_back({slot, index});
    }
  }
  read_guesses();
}

// Demand goes first: guesses are read only while no demand is waiting or being read. A disk serves
// what it was given side by side, so that even a later guess would slow an earlier demand.
void ExpertStream::read_guesses() {
  if (guesses_.empty()) return;
  const bool demand = reading_ > 0 || pending_head_ < pending_.size();
  size_t n = 0;
  while (n < guesses_.size() && !demand && speculating_ < std::max(1, options_.depth / 2)) {
    const Guess g = guesses_[n++];
    if (residency_.find(g.layer, g.expert) != kNoSlot) {
      ++counters_.ahead.cancelled;
      continue;
    }
    const int32_t slot = residency_.acquire_ahead(g.layer, g.expert, step_clock_, last_step_clock_);
    if (slot == kNoSlot) {  // nothing here is worth less than a guess
      counters_.ahead.cancelled += guesses_.size() - n + 1;
      n = guesses_.size();
      break;
    }
    ++counters_.ahead.issued;
    read_for_step_[static_cast<size_t>(slot)] = counters_.steps;
    read_expert(slot);
    queue_.submit();
  }
  guesses_.erase(guesses_.begin(), guesses_.begin() + static_cast<std::ptrdiff_t>(n));
}

void ExpertStream::drop_guesses(int first, int last) {
  counters_.ahead.cancelled +=
      std::erase_if(guesses_, [&](const Guess& g) { return g.layer >= first && g.layer <= last; });
}

// An expert read ahead has arrived; it stays at least until its layer's router has spoken.
void ExpertStream::keep_ahead(int32_t slot) {
  residency_.pin(slot);
  const int32_t layer = residency_.slot(slot).layer;
  const bool to_come = !step_.first_layer_begun || layer > layer_;
  if (to_come) {
    kept_.push_back({slot, layer});
  } else {
    residency_.unpin(slot, clock_);
  }
}

void ExpertStream::release_ahead(int upto) {
  size_t n = 0;
  for (const Kept& kept : kept_) {
    if (kept.layer > upto) {
      kept_[n++] = kept;
    } else {
      // Not a use, but what came as a guess must not look older than it is.
      residency_.unpin(kept.slot, residency_.slot(kept.slot).unused_spec ? clock_ : 0);
    }
  }
  kept_.resize(n);
}

// Before a snapshot: what has arrived joins the map. A prompt waits for what is still being read
// and starts without guesses.
void ExpertStream::settle_ahead() {
  handle(queue_.poll());
  if (phase_ == Phase::Decode) return;
  drop_guesses(0, last_layer());
  while (speculating_ > 0) handle(queue_.wait());
  release_ahead(last_layer());
  residency_.recycle_failed();
}

void ExpertStream::count_spec_use(int32_t slot) {
  const bool same = read_for_step_[static_cast<size_t>(slot)] == counters_.steps;
  ++(same ? counters_.ahead.used_same_token : counters_.ahead.used_later);
}

void ExpertStream::measure_ahead(int n_used) {
  if (options_.read_ahead == ReadAhead::Off) return;
  const auto k = static_cast<size_t>(n_used);
  meter_.routed(layer_, {ids_.data(), k}, {missing_.data(), k});
  if (options_.read_ahead != ReadAhead::Probe) return;
  const auto n = static_cast<size_t>(geometry_.layers[static_cast<size_t>(layer_)].n_expert);
  rank_ahead({probabilities_.data(), n}, snapshot_, kProtectedRanks, 0.0f, n_used, &row_ranked_);
  meter_.fresh({ids_.data(), k}, row_ranked_);
}

// The first layer has no predecessor: what the last token selected there is likely again
// (pred=prev).
void ExpertStream::guess_first_layer() {
  int left = ahead_reads(1);
  for (const int32_t e : meter_.previous(0)) {
    if (residency_.find(0, e) == kNoSlot && left-- > 0) guesses_.push_back({0, e});
  }
  read_guesses();
}

void ExpertStream::end_ahead_step(int rows) {
  if (!step_.first_layer_begun) return;  // a draft alone
  const auto wall = static_cast<uint64_t>(now_ns() - step_.began_ns);
  idle_rows_ += rows;
  idle_wall_ns_ += wall;
  if (idle_rows_ >= AheadGovernor::kWindow) {
    const uint64_t busy = queue_.busy_ns() - std::exchange(idle_busy_ns_, queue_.busy_ns());
    disk_idle_ = 5 * busy < 3 * idle_wall_ns_;
    idle_rows_ = 0;
    idle_wall_ns_ = 0;
  }
  governor_.step(rows, wall);
  step_.first_layer_begun = false;
  drop_guesses(0, last_layer());
  if (!reads_ahead()) return;
  residency_.note_median();
  guess_first_layer();
  copy_io_counters();
}

// ------------------------------------------------------------------------------------------------

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
  for (since_halving_ += rows; since_halving_ >= options_.half_life;
       since_halving_ -= options_.half_life) {
    residency_.halve_frequencies();
  }
}

}  // namespace

std::unique_ptr<Stream> make_stream(Geometry geometry, std::shared_ptr<const StreamFiles> files,
                                    const ArenaShape& shape, const StreamOptions& options) {
  check_inputs(geometry, *files, shape);
  return std::make_unique<ExpertStream>(std::move(geometry), std::move(files), shape, options);
}

}  // namespace penstock::experts
