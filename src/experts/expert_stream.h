// The Stream that reads through an arena. One class, owned by the scheduling thread, in two files:
// stream.cpp has what a token waits for, stream_ahead.cpp what is read before it is asked for.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "experts/arena.h"
#include "experts/layer_router.h"
#include "experts/moce.h"
#include "experts/read_ahead.h"
#include "experts/read_queue.h"
#include "experts/record.h"
#include "experts/residency.h"
#include "experts/stream.h"

namespace penstock::experts {

class ExpertStream final : public Stream {
 public:
  ExpertStream(Geometry geometry, std::shared_ptr<const StreamFiles> files, const ArenaShape& shape,
               const StreamOptions& options);
  ~ExpertStream() override = default;  // the queue waits for its reads before the arena goes

  Routing begin(int index, const float* logits, int rows, const RouteRule& rule,
                Phase phase) override;
  int look_ahead() const override;
  Predictor predictor() const override { return options_.predictor; }
  void predict(int index, const float* logits, int rows) override;
  std::span<const ReadyExpert> next() override;
  void end() override;
  void end_step(int rows) override;
  void set_prior(std::span<const float> shares) override;
  FillReport fill(const FillProgress& progress) override;
  void end_turn() override;
  void allow_speculation(bool allowed) override { speculation_allowed_ = allowed; }
  uint64_t shrink(double share) override;

  const Geometry& geometry() const override { return geometry_; }
  const Counters& counters() const override { return counters_; }
  std::span<const uint64_t> layer_stall_ns() const override { return layer_stall_ns_; }
  const AheadMeter* ahead() const override {
    return options_.read_ahead == ReadAhead::Off ? nullptr : &meter_;
  }
  const AheadGovernor* governor() const override {
    return options_.read_ahead == ReadAhead::Auto ? &governor_ : nullptr;
  }
  const CacheRouter* moce() const override { return router_ ? &*router_ : nullptr; }
  const IoReport& io() const override { return io_; }
  const ArenaShape& shape() const override { return shape_; }
  uint64_t arena_huge_bytes() const override { return arena_.huge(); }
  void observe(RouteObserver* observer) override { layer_router_.observe(observer); }
  void record(Timeline* timeline) override;

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

  // An expert that nobody has asked for yet.
  struct Guess {
    int32_t layer;
    int32_t expert;
    int32_t distance = 1;  // layers between the prediction and the layer
  };

  void register_arena();
  void fill_alias();
  void open_layer(int index, int rows, const RouteRule& rule, Phase phase);
  Routing route(const float* logits, int rows, const RouteRule& rule, Phase phase);
  void begin_token();
  // What cache-aware routing takes for resident in a layer: of the one that is open the snapshot.
  std::span<const uint64_t> router_sees(int index) const noexcept;
  void classify_decode(const float* logits, int rows, int n_used);
  void await(int32_t slot) noexcept;
  void collect_prompt(int rows, int n_used);
  void admit_most_used();
  void start_reads();
  void read_expert(int32_t slot);
  void handle(std::span<const ReadDone> done);
  void wait_for_arrival();
  void release_batch();
  void deliver(std::vector<Held>& from, size_t limit);
  void raise_failure();
  bool record_is_sound(const Slot& slot, int32_t id);
  void copy_io_counters();
  void note(Work next);  // for the timeline: what was done until now is over, `next` begins
  // Read-ahead.
  int last_layer() const noexcept { return static_cast<int>(geometry_.layers.size()) - 1; }
  bool reads_ahead() const noexcept;
  // The `width` candidates of a layer, n_used at least, into row_ranked_.
  void rank_candidates(int index, std::span<const float> logits, std::span<const uint64_t> resident,
                       int width);
  int at_once(int index) const noexcept;  // experts of a layer that may be being read ahead
  void read_guesses();
  void drop_guesses(int first, int last);  // for these layers
  void keep_ahead(int32_t slot);
  void release_ahead(int upto);
  void settle_ahead();
  void count_spec_use(int32_t slot, bool late);
  void measure_ahead(const float* logits, int n_used);
  void guess_first_layer();
  void end_ahead_step(int rows);
  void start_fills(int most);
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
  std::vector<uint64_t> slots_at_first_;  // by class: shrink() takes some away
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

  LayerRouter layer_router_;
  std::optional<CacheRouter> router_;  // with cache-aware routing
  bool speculation_allowed_ = true;
  // What is still to be read because a profile counts it, in order.
  std::vector<Guess> fill_;
  size_t fill_head_ = 0;
  uint64_t fills_failed_ = 0;

  // The current layer.
  bool open_ = false;
  int layer_ = 0;
  Phase phase_ = Phase::Decode;
  uint64_t clock_ = 0;  // counts begin() calls: the time of last_use
  std::vector<uint64_t> snapshot_;
  std::span<const int32_t> ids_;       // what was selected
  std::vector<uint64_t> seen_;         // by expert: the clock when it was last selected
  std::vector<uint32_t> prompt_uses_;  // by expert: rows of the prompt that selected it
  std::vector<uint8_t> admitted_;      // by expert: may take an empty slot, not a transit one
  std::vector<int32_t> by_use_;
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
  struct Kept {
    int32_t slot;
    int32_t layer;
  };
  std::vector<Guess> guesses_;
  std::vector<Kept> kept_;
  struct ReadAheadFor {
    uint64_t step = 0;
    int32_t distance = 1;
  };
  std::vector<ReadAheadFor> read_for_;  // by slot that was read ahead: when, and how far
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
  Timeline* timeline_ = nullptr;
  Work work_ = Work::Dense;  // what the scheduling thread is at
};

}  // namespace penstock::experts
