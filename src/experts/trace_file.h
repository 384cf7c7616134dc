// Routing traces (`--trace-routing`, docs/traces.md): which experts every token selected, for
// replaying other policies without the model.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "experts/geometry.h"
#include "experts/observer.h"

namespace penstock::experts {

struct TraceLayer {
  int layer = 0;  // the model's block index
  int n_expert = 0;
  int n_used = 0;
};

struct TraceHeader {
  std::vector<TraceLayer> layers;
  bool logits = false;   // of every decode row, and the predictions made
  std::string settings;  // JSON: model, text, sampling, arena, policy; whatever explains the trace
};

// Writes a trace while the model runs; the file appears, complete, with finish().
class TraceWriter final : public RouteObserver {
 public:
  TraceWriter(const std::string& path, const Geometry& geometry, bool logits,
              const std::string& settings);

  void selected(int index, int row, Phase phase, std::span<const int32_t> ids,
                std::span<const float> logits) override;
  void predicted(int index, int distance, int row, std::span<const float> logits) override;
  void step_ended(int rows) override;
  void turn_ended() override;
  void token(int32_t id);  // the text, as it is evaluated
  void finish();
  uint64_t bytes() const noexcept { return file_.position() + buffer_.size(); }

 private:
  void end_prompt_layer();
  template <typename T>
  void put(T value);
  void put_half(std::span<const float> values);
  void flush_if_full();

  AtomicFile file_;
  std::vector<TraceLayer> layers_;
  bool logits_;
  std::vector<std::byte> buffer_;
  uint64_t records_ = 0;
  // The prompt layer that is being seen.
  int prompt_layer_ = -1;
  uint32_t prompt_rows_ = 0;
  std::vector<uint32_t> prompt_uses_;  // by expert
};

// Receives a trace, record by record, in the order in which it was written.
class TraceVisitor {
 public:
  virtual ~TraceVisitor() = default;
  virtual void decode(int index, int row, std::span<const uint16_t> ids,
                      std::span<const float> logits) = 0;  // logits: empty without them
  virtual void predicted(int index, int distance, int row, std::span<const float> logits) = 0;
  // uses: by expert, how many rows of the chunk selected it
  virtual void prompt(int index, uint32_t rows, std::span<const uint32_t> uses) = 0;
  virtual void step_ended(int rows) = 0;
  virtual void turn_ended() = 0;
  virtual void token(int32_t id) = 0;
};

// Throws Error(Io), Error(Format) for a file that is no trace, damaged or cut short.
TraceHeader read_trace_header(const std::string& path);
void read_trace(const std::string& path, TraceVisitor& visitor);

}  // namespace penstock::experts
