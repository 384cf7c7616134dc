// A Stream that hands every call on to another: for those that change or watch a few of them.
#pragma once

#include "experts/stream.h"

namespace penstock::experts {

class ForwardingStream : public Stream {
 public:
  explicit ForwardingStream(Stream& inner) : inner_(inner) {}

  Routing begin(int index, const float* logits, int rows, const RouteRule& rule,
                Phase phase) override {
    return inner_.begin(index, logits, rows, rule, phase);
  }
  int look_ahead() const override { return inner_.look_ahead(); }
  Predictor predictor() const override { return inner_.predictor(); }
  void predict(int index, const float* logits, int rows) override {
    inner_.predict(index, logits, rows);
  }
  std::span<const ReadyExpert> next() override { return inner_.next(); }
  void end() override { inner_.end(); }
  void end_step(int rows) override { inner_.end_step(rows); }
  void set_prior(std::span<const float> shares) override { inner_.set_prior(shares); }
  FillReport fill(const FillProgress& progress) override { return inner_.fill(progress); }
  void allow_speculation(bool allowed) override { inner_.allow_speculation(allowed); }
  uint64_t shrink(double share) override { return inner_.shrink(share); }
  void end_turn() override { inner_.end_turn(); }
  const Geometry& geometry() const override { return inner_.geometry(); }
  const Counters& counters() const override { return inner_.counters(); }
  std::span<const uint64_t> layer_stall_ns() const override { return inner_.layer_stall_ns(); }
  const AheadMeter* ahead() const override { return inner_.ahead(); }
  const AheadGovernor* governor() const override { return inner_.governor(); }
  const CacheRouter* moce() const override { return inner_.moce(); }
  void record(Timeline* timeline) override { inner_.record(timeline); }
  const IoReport& io() const override { return inner_.io(); }
  const ArenaShape& shape() const override { return inner_.shape(); }
  uint64_t arena_huge_bytes() const override { return inner_.arena_huge_bytes(); }
  void observe(RouteObserver* observer) override { inner_.observe(observer); }

 private:
  Stream& inner_;
};

}  // namespace penstock::experts
