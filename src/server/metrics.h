// The server's counters, and their text for Prometheus.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "engine/session.h"
#include "experts/counters.h"
#include "server/job.h"

namespace penstock::server {

// What only the engine's thread may look at, copied for the others.
struct EngineFacts {
  experts::Counters counters;
  engine::Timings timings;
  uint64_t footprint_peak = 0;  // bytes
};

// What does not change while the model is loaded.
struct ModelFacts {
  std::string model, version, io, experts_from, isa, precision, kv;
  int threads = 0;
  int64_t n_ctx = 0;
  uint64_t arena_slots = 0, experts = 0, arena_bytes = 0, arena_huge_bytes = 0;
  uint64_t budget = 0, peak_planned = 0;
  std::vector<std::pair<std::string, uint64_t>> plan;  // terms, bytes
  std::vector<std::pair<std::string, bool>> lossy;     // options, in force?
  double load_seconds = 0;
};

// What the caller knows at the moment of asking.
struct Gauges {
  bool ready = false;
  size_t waiting = 0;
  size_t running = 0;
};

class Metrics {
 public:
  void count_response(const std::string& endpoint, int status);
  void count_job(const Outcome& outcome, CancelReason cancelled, double waited_s);
  // Of the last finished request, in tokens per second; 0 leaves the last figure.
  void note_speeds(double prompt, double decode);
  void set_model(ModelFacts facts);
  void publish(const EngineFacts& facts);

  // Prometheus text exposition format 0.0.4.
  std::string text(const Gauges& gauges) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, int>, uint64_t> responses_;
  std::map<std::string, uint64_t> outcomes_;
  Usage tokens_;
  double waited_s_ = 0;
  double prompt_speed_ = 0, decode_speed_ = 0;
  ModelFacts model_;
  EngineFacts engine_;
};

}  // namespace penstock::server
