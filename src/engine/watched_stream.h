// A stream of experts that asks before every layer whether the computation shall go on.
#pragma once

#include <functional>

#include "experts/forwarding_stream.h"

namespace penstock::engine {

// Asked by the computing thread before every layer of a prompt and before every token; false ends
// the work there. An empty one means: always true.
using KeepGoing = std::function<bool()>;

class WatchedStream final : public experts::ForwardingStream {
 public:
  struct Stopped {};  // thrown by begin() when the answer was no

  WatchedStream(experts::Stream& inner, const KeepGoing& keep_going)
      : ForwardingStream(inner), keep_going_(keep_going) {}

  experts::Routing begin(int index, const float* logits, int rows, const experts::RouteRule& rule,
                         experts::Phase phase) override {
    if (keep_going_ && !keep_going_()) throw Stopped{};
    return ForwardingStream::begin(index, logits, rows, rule, phase);
  }

 private:
  const KeepGoing& keep_going_;
};

}  // namespace penstock::engine
