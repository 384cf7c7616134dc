// The stream of experts: routing, residency, reads. A model's MoE block calls, per layer:
//
//   Routing r = stream.begin(l, logits, rows, rule, phase);  // snapshot, select, submit reads
//   for (d = 1; d <= stream.look_ahead(); ++d) stream.predict(l + d, ...);  // read ahead
//   ... compute the shared expert while the reads run ...
//   while (!(batch = stream.next()).empty()) compute(batch);  // resident ones first, then arrivals
//   stream.end();                                             // pins dropped
//   ... sum the outputs in rank order ...
//
// and, per decode step, stream.end_step(rows). All calls come from one thread, the scheduling
// thread, which alone owns residency (law 1).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "experts/counters.h"
#include "experts/geometry.h"
#include "experts/io.h"
#include "experts/moce.h"
#include "experts/observer.h"
#include "experts/options.h"
#include "experts/read_ahead.h"
#include "experts/shape.h"
#include "experts/timeline.h"

namespace penstock::experts {

// How a layer turns router logits into a selection. Softmax over all experts, largest n_used kept
// (ties: lower index), weights renormalised over the selected ones, then scaled.
struct RouteRule {
  int n_used = 0;
  bool renormalise = true;
  float scale = 1.0f;
  bool trunk = true;  // false for a draft block, which is always routed exactly
};

struct Routing {
  std::span<const int32_t> ids;    // [rows][n_used] in rank order
  std::span<const float> weights;  // [rows][n_used]
};

// What a warm fill read.
struct FillReport {
  uint64_t experts = 0;
  uint64_t failed = 0;  // could not be read; whoever needs one of them tries again
  uint64_t bytes = 0;
  double seconds = 0;
};
using FillProgress = std::function<void(uint64_t done, uint64_t total)>;  // experts

struct ReadyExpert {
  int expert = 0;
  ExpertData data;
};

class Stream {
 public:
  virtual ~Stream() = default;

  // logits: [rows][n_expert] of MoE layer `index` (position in Geometry::layers). The routing stays
  // valid until the next begin(). Rows of one call share the snapshot. Prompt: each touched expert
  // is read at most once, in file order, ahead of the compute, and delivered exactly once; experts
  // that have arrived go before resident ones, so that their transit slots can be read into again.
  // Throws Error(Numeric) when the logits give no probabilities (NaN, infinity).
  virtual Routing begin(int index, const float* logits, int rows, const RouteRule& rule,
                        Phase phase) = 0;

  // How many of the MoE layers after the one begun are worth a prediction now: 0 to kMostAhead.
  virtual int look_ahead() const { return 0; }
  // From what the predictions are to be made.
  virtual Predictor predictor() const { return Predictor::Auto; }
  // Between begin() and next(): what the router of layer `index`, one or two after the one begun,
  // is expected to say, [rows][n_expert] logits. Read while there is nothing more urgent to read.
  virtual void predict(int index, const float* logits, int rows) {
    static_cast<void>(index), static_cast<void>(logits), static_cast<void>(rows);
  }

  // The next experts that can be computed now; each touched expert of the layer appears in exactly
  // one batch. Blocks (counted as stall) only when none is ready and some are still being read.
  // Empty when all were delivered. A batch stays valid until the following next() or end().
  // Throws Error(Io) naming layer, expert, offset and errno when a read failed.
  virtual std::span<const ReadyExpert> next() = 0;
  virtual void end() = 0;

  // A decode step of `rows` rows is complete: counters close their identities, frequencies age.
  virtual void end_step(int rows) = 0;

  // What a profile knows: each expert's share of all uses, in the order of the geometry. For the
  // hot set, the eviction policy and fill().
  virtual void set_prior(std::span<const float> shares) { static_cast<void>(shares); }
  // Reads the experts of the largest shares into the empty slots that may be hot, in file order;
  // with Fill::Lazy the same happens bit by bit in decode instead.
  virtual FillReport fill(const FillProgress& progress) {
    static_cast<void>(progress);
    return {};
  }
  // Memory is short: whether anything may be read before it is asked for; and giving that share of
  // the slots back to the system, as far as the fewest with which a token can run stay. Returns the
  // bytes given back. Neither within a step.
  virtual void allow_speculation(bool allowed) { static_cast<void>(allowed); }
  virtual uint64_t shrink(double share) {
    static_cast<void>(share);
    return 0;
  }
  // A turn is over: the hot set is chosen anew. Never called within a step.
  virtual void end_turn() {}

  virtual const Geometry& geometry() const = 0;
  virtual const Counters& counters() const = 0;
  virtual std::span<const uint64_t> layer_stall_ns() const = 0;      // decode, by layer index
  virtual const AheadMeter* ahead() const { return nullptr; }        // null: none is kept
  virtual const AheadGovernor* governor() const { return nullptr; }  // of --read-ahead auto
  virtual const CacheRouter* moce() const { return nullptr; }        // null: routing is exact
  // What the disk and the scheduling thread are at goes there from now on; null ends it.
  virtual void record(Timeline* timeline) { static_cast<void>(timeline); }
  virtual const IoReport& io() const = 0;
  virtual const ArenaShape& shape() const = 0;
  virtual uint64_t arena_huge_bytes() const = 0;  // on huge pages, as measured after faulting in

  // Adds one that sees what is selected from now on; it must live as long as the stream.
  virtual void observe(RouteObserver* observer) = 0;
};

// `files` are geometry.shards, opened; `shape` comes from the plan (or share_slots). Allocates the
// arena. Throws Error(Format) when an expert lies outside its file.
std::unique_ptr<Stream> make_stream(Geometry geometry, std::shared_ptr<const StreamFiles> files,
                                    const ArenaShape& shape, const StreamOptions& options);

// Opens geometry.shards for streaming, probing each where its experts lie.
std::shared_ptr<const StreamFiles> open_expert_files(const Geometry& geometry, IoMode mode);

// What a stream allocates beside the arena, for the plan's terms `io` and `tables`.
uint64_t stream_io_bytes(const Geometry& geometry, const StreamOptions& options);
uint64_t stream_table_bytes(const Geometry& geometry, const ArenaShape& shape);

}  // namespace penstock::experts
