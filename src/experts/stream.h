// The stream of experts: routing, residency, reads. A model's MoE block calls, per layer:
//
//   Routing r = stream.begin(l, logits, rows, phase);   // snapshot, select, classify, submit reads
//   ... compute the shared expert while the reads run ...
//   while (!(batch = stream.next()).empty()) compute(batch);   // resident ones first, then
//   arrivals stream.end();                                       // pins dropped
//   ... sum the outputs in rank order ...
//
// and, per decode step, stream.end_step(rows). All calls come from one thread, the scheduling
// thread, which alone owns residency (law 1).
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "experts/counters.h"
#include "experts/geometry.h"

namespace penstock::experts {

enum class Phase { Decode, Prompt };

// How a layer turns router logits into a selection. Softmax over all experts, largest n_used kept
// (ties: lower index), weights renormalised over the selected ones, then scaled.
struct RouteRule {
  int n_used = 0;
  bool renormalise = true;
  float scale = 1.0f;
};

struct Routing {
  std::span<const int32_t> ids;    // [rows][n_used] in rank order
  std::span<const float> weights;  // [rows][n_used]
};

struct ReadyExpert {
  int expert = 0;
  ExpertData data;
};

class Stream {
 public:
  virtual ~Stream() = default;

  // logits: [rows][n_expert] of MoE layer `index` (position in Geometry::layers). The routing stays
  // valid until the next begin(). Rows of one call share the snapshot. Prompt: each touched expert
  // is delivered exactly once, in file order, read ahead of the compute through transit slots.
  virtual Routing begin(int index, const float* logits, int rows, const RouteRule& rule,
                        Phase phase) = 0;

  // The next experts that can be computed now; each touched expert of the layer appears in exactly
  // one batch. Blocks (counted as stall) only when none is ready and some are still being read.
  // Empty when all were delivered. A batch stays valid until the following next() or end().
  // Throws Error(Io) naming layer, expert, offset and errno when a read failed.
  virtual std::span<const ReadyExpert> next() = 0;
  virtual void end() = 0;

  // A decode step of `rows` rows is complete: counters close their identities, frequencies age.
  virtual void end_step(int rows) = 0;

  virtual const Geometry& geometry() const = 0;
  virtual const Counters& counters() const = 0;
};

}  // namespace penstock::experts
