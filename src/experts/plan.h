// The memory plan: every byte is named before anything large is allocated (spec/streaming.md
// §C.1-3). A pure function of its request.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/machine.h"
#include "experts/options.h"
#include "experts/shape.h"

namespace penstock::experts {

struct PlanTerms {
  uint64_t dense = 0;           // resident dense weights, page-rounded
  uint64_t kv = 0;              // for the whole context
  uint64_t state = 0;           // recurrent and convolution state
  uint64_t scratch_decode = 0;  // all threads
  uint64_t scratch_prompt = 0;  // peak of one prompt chunk, all threads
  uint64_t logits = 0;
  uint64_t io = 0;       // rings and buffers of the readers: io_bytes()
  uint64_t tables = 0;   // vocabulary, residency, use counts: table_bytes() and the caller's own
  uint64_t threads = 0;  // stacks
  uint64_t ple = 0;      // the row store
};

struct PlanRequest {
  PlanTerms terms;
  ArenaShape shape;  // from arena_shape(); slots are decided here
  MemoryFacts machine;
  uint64_t taken = 0;              // bytes of `terms` already allocated when `machine` was read
  std::optional<uint64_t> memory;  // --memory
  std::optional<uint64_t> arena_slots;  // --arena-slots, transit slots not counted
  int depth = 8;
  uint64_t transit = 16;
  bool mapped = false;  // no arena: experts are used in the mapped file
  Evict evict = Evict::Lfu;
  // For the remedies in a refusal: the settings in force and what one unit of each costs.
  int ctx = 0;
  uint64_t kv_per_position = 0;
  int prompt_chunk = 0;
  bool chunk_shrunk = false;  // smaller than it would be if there were more memory
  uint64_t scratch_per_token = 0;
};

struct Plan {
  PlanTerms terms;
  uint64_t slack = 0;
  uint64_t arena = 0;
  ArenaShape shape;  // with slots and transit
  uint64_t hard_floor = 0;
  uint64_t cycle = 0;      // token cycle C
  uint64_t budget = 0;     // --memory, or available - fuse - margin
  uint64_t available = 0;  // as if nothing of the plan were allocated yet
  std::string available_source;
  bool memory_chosen = false;  // the budget is --memory
  uint64_t fuse = 0;           // left to the rest of the machine
  uint64_t margin = 0;         // kept between predicted minimum availability and the fuse
  uint64_t peak_decode = 0;
  uint64_t peak_prefill = 0;
  // Where the slots for one token do not fit: how many would, which must be asked for by number.
  uint64_t fewer_slots = 0;
  std::vector<std::string> warnings;

  uint64_t slots() const noexcept { return shape.slots(); }
  // Every term by name, in the order of the table, for tables and run records.
  std::vector<std::pair<const char*, uint64_t>> rows() const;
};

// Why a plan is refused.
struct PlanRefusal {
  std::string why;         // one sentence without a full stop
  uint64_t shortfall = 0;  // bytes; 0 where memory is not what lacks
  // What would help, each with the flag to type and whether it is enough on its own.
  std::vector<std::string> remedies;
};

// The plan for a request: when it is refused, the one that would have been the least, to be shown.
struct PlanOutcome {
  Plan plan;
  std::optional<PlanRefusal> refusal;
  bool fits() const noexcept { return !refusal.has_value(); }
};
PlanOutcome try_plan(const PlanRequest& request);

// Throws Error(Plan) with every term, the available memory and its source, the fuse, the shortfall
// and the remedies when the plan is refused.
Plan make_plan(const PlanRequest& request);
[[noreturn]] void refuse(const PlanOutcome& outcome);  // the same for a refused outcome

// What --memory must be to hold so many slots (with experts of several sizes: about so many), or
// all experts where there are fewer.
uint64_t memory_for_slots(const PlanRequest& request, uint64_t slots);

// The plan as a table for people: bytes and MiB per term, slots, n_slots / C, peaks, budget.
std::string format_plan(const Plan& plan);
// Shortfall and remedies, as they stand in the error.
std::string format_refusal(const PlanRefusal& refusal);

}  // namespace penstock::experts
