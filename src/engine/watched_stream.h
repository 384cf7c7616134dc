// A stream of experts that asks before every layer whether the computation shall go on.
#pragma once

#include <functional>

#include "experts/stream.h"

namespace penstock::engine {

// Asked by the computing thread before every layer of a prompt and before every token; false ends
// the work there. An empty one means: always true.
using KeepGoing = std::function<bool()>;

class WatchedStream final : public experts::Stream {
 public:
  struct Stopped {};  // thrown by begin() when the answer was no

  WatchedStream(experts::Stream& inner, const KeepGoing& keep_going)
      : inner_(inner), keep_going_(keep_going) {}

  experts::Routing begin(int index, const float* logits, int rows, const experts::RouteRule& rule,
                         experts::Phase phase) override {
    if (keep_going_ && !keep_going_()) throw Stopped{};
    return inner_.begin(index, logits, rows, rule, phase);
  }
  int look_ahead() const override { return inner_.look_ahead(); }
  void predict(int index, const float* logits, int rows) override {
    inner_.predict(index, logits, rows);
  }
  std::span<const experts::ReadyExpert> next() override { return inner_.next(); }
  void end() override { inner_.end(); }
  void end_step(int rows) override { inner_.end_step(rows); }
  const experts::Geometry& geometry() const override { return inner_.geometry(); }
  const experts::Counters& counters() const override { return inner_.counters(); }
  std::span<const uint64_t> layer_stall_ns() const override { return inner_.layer_stall_ns(); }
  const experts::AheadMeter* ahead() const override { return inner_.ahead(); }
  const experts::AheadGovernor* governor() const override { return inner_.governor(); }
  const experts::IoReport& io() const override { return inner_.io(); }
  const experts::ArenaShape& shape() const override { return inner_.shape(); }
  uint64_t arena_huge_bytes() const override { return inner_.arena_huge_bytes(); }
  void set_trace(Trace trace) override { inner_.set_trace(std::move(trace)); }

 private:
  experts::Stream& inner_;
  const KeepGoing& keep_going_;
};

}  // namespace penstock::engine
