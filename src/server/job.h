// One generation, from the thread that answers a client to the engine's thread and back.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/generate.h"
#include "engine/sampler.h"
#include "server/api_error.h"

namespace penstock::server {

enum class CancelReason { None, ClientGone, Timeout, Stopping };

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;  // of them, not evaluated again
  int64_t completion_tokens = 0;
  int64_t reasoning_tokens = 0;  // of them
};

// How a job ended: with a reason or with an error.
struct Outcome {
  engine::StopReason reason = engine::StopReason::Cancelled;
  Usage usage;
  std::optional<ApiError> error;
};

class Job {
 public:
  // What the engine needs; not changed after Scheduler::submit().
  std::string id;      // as in the reply
  std::string client;  // whose turn it is: the remote address
  std::vector<int32_t> prompt;
  size_t n_stable = 0;         // engine::ChatPrompt
  bool chat_template = false;  // the prompt is messages, written out by the model's template
  engine::SamplerOptions sampling;
  engine::GenerateOptions generate;
  int64_t deadline_ns = 0;  // base/clock.h

  // The client's side: what has come since the last call, after waiting at most `patience` for it.
  struct News {
    std::string text;
    std::vector<engine::GeneratedToken> tokens;
    std::optional<Outcome> outcome;  // there will be nothing more
    bool empty() const noexcept { return text.empty() && tokens.empty() && !outcome; }
  };
  News wait(std::chrono::milliseconds patience);

  // The engine's side. What the client has not taken yet is joined, so that it is bounded by the
  // length of the answer.
  void put(const engine::Output& output);
  void finish(Outcome outcome);  // the first one counts
  void cancel(CancelReason reason) noexcept;
  CancelReason cancelled() const noexcept { return cancelled_.load(std::memory_order_relaxed); }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  News news_;
  bool finished_ = false;
  std::atomic<CancelReason> cancelled_{CancelReason::None};
};

// What the client of a job that was cancelled is told.
ApiError cancel_error(CancelReason reason);

}  // namespace penstock::server
