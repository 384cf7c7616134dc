// When what happened, for looking at: compute, waiting and reads of each layer, as Chrome trace
// events (chrome://tracing, ui.perfetto.dev). Recording takes some memory and a clock call per
// event; runs with a timeline are no speed runs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "experts/counters.h"

namespace penstock::experts {

// What the scheduling thread was at.
enum class Work : uint8_t { Dense, Route, Ahead, Experts, Stall };
const char* work_name(Work work) noexcept;

const char* reason_name(ReadReason reason) noexcept;

// One token of a run, to be looked at closely.
struct TokenTimeline {
  struct Span {
    bool read;      // a read, else what the scheduling thread was at
    uint8_t what;   // a ReadReason, else a Work
    int32_t layer;  // -1: not known
    uint64_t bytes;
    int64_t from_ns, ns;  // since the token began
  };
  size_t token = 0;  // of those with both ends in the timeline, from 1
  int64_t ns = 0;
  std::vector<Span> spans;  // as they began; cut at the token's ends
};

class Timeline {
 public:
  // Keeps at most so many events; what comes later is counted only.
  explicit Timeline(size_t most_events = size_t{1} << 20);

  // The scheduling thread has been at `work` since the last call of this or start().
  void start(int64_t now) noexcept { since_ns_ = now; }
  void work(Work work, int layer, uint32_t experts, int64_t now);
  // A read of `bytes` for an expert of a layer; -1: not known.
  void read(ReadReason reason, uint64_t bytes, int64_t from, int64_t to);
  void token(int64_t now);  // ends here

  uint64_t lost() const noexcept { return lost_; }
  size_t events() const noexcept { return events_.size(); }
  // The token of median duration; none before three of them.
  std::optional<TokenTimeline> typical_token() const;
  // Chrome trace-event JSON. Throws Error(Io).
  void write(const std::string& path) const;

 private:
  enum class Kind : uint8_t { Work, Read, Token };
  struct Event {
    int64_t from, to;
    uint64_t bytes;
    int32_t layer;
    uint32_t experts;
    Kind kind;
    uint8_t what;
  };
  void add(const Event& event);

  size_t most_;
  std::vector<Event> events_;
  uint64_t lost_ = 0;
  int64_t since_ns_ = 0;
  int64_t token_ns_ = 0;
};

}  // namespace penstock::experts
