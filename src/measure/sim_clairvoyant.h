// The policy that knows the future: of what lies in memory, it evicts what is used again last
// (L. A. Belady, "A study of replacement algorithms for virtual-storage computer", 1966). A bound
// for policies that select the same experts and read nothing ahead, not something to run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "measure/sim_setting.h"
#include "measure/sim_trace.h"

namespace penstock::measure {

// When each use's expert is used again. Times count the decode events of the trace from 1.
class NextUses {
 public:
  static constexpr uint32_t kNever = UINT32_MAX;

  // Goes through the trace. Throws as read_trace() does, and Error(Unsupported) for more decode
  // events than 32 bits can number.
  explicit NextUses(const TraceModel& model);

  // Of the i-th id of all decode events, and the i-th expert that a prompt event touched, both in
  // the order of the trace; of the expert `key` before everything.
  uint32_t of_use(uint64_t i) const noexcept { return uses_[i]; }
  uint32_t of_prompt(uint64_t i) const noexcept { return prompts_[i]; }
  uint32_t first(size_t key) const noexcept { return first_[key]; }
  uint64_t memory_bytes() const noexcept {
    return (uses_.size() + prompts_.size() + first_.size()) * sizeof(uint32_t);
  }

 private:
  std::vector<uint32_t> uses_, prompts_, first_;
};

class ClairvoyantReplay {
 public:
  // `admits`: everything that a token reads has to be kept, as the engine keeps it. Warm: the arena
  // starts with what is used first.
  ClairvoyantReplay(const TraceModel& model, const experts::ArenaShape& shape, bool admits,
                    bool warm, const NextUses& next, const SimCost* cost);
  void run(const TraceChunk& chunk);
  SimCounts counts() const;

 private:
  struct Entry {
    uint32_t next;
    uint32_t key;
    bool operator<(const Entry& other) const noexcept {
      return next != other.next ? next < other.next : key < other.key;
    }
  };
  struct Pool {
    uint64_t slots = 0, used = 0;
    std::vector<Entry> heap;  // the latest on top; some entries are out of date
  };

  void decode(const TraceEvent& event, const TraceChunk& chunk);
  void prompt(const TraceEvent& event, const TraceChunk& chunk);
  void step_end(int rows);
  void place(Pool& pool, uint32_t key, uint32_t next);
  void insert(Pool& pool, uint32_t key, uint32_t next, bool must);
  void drop_stale(Pool& pool);
  bool is_stale(const Entry& entry) const noexcept {
    return !resident_[entry.key] || next_[entry.key] != entry.next;
  }

  const TraceModel& model_;
  const bool admits_;
  const NextUses& uses_;
  std::vector<uint32_t> class_of_;
  std::vector<uint32_t> base_;  // first key of each layer
  std::vector<Pool> pools_;
  std::vector<uint8_t> resident_;  // by key
  std::vector<uint32_t> next_;     // by key, of what is resident
  std::vector<uint32_t> seen_;     // by key: the event that selected it last
  std::vector<Entry> aside_;
  std::vector<std::vector<double>> stall_s_;  // by layer and missing experts of one row
  std::vector<uint64_t> reads_;
  uint64_t use_ = 0, touched_ = 0;  // ids and touched experts gone by
  uint32_t event_ = 0;
  uint64_t turn_tokens_ = 0;
  bool begun_ = false;
  experts::UseCounts step_;
  SimCounts counts_;
};

}  // namespace penstock::measure
