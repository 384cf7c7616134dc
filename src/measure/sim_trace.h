// A routing trace as the simulator goes through it (docs/simulator.md): its header as the shape of
// an arena, its records in chunks that many replays read side by side.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "experts/geometry.h"
#include "experts/shape.h"
#include "experts/trace_file.h"

namespace penstock::measure {

// What a trace's header says about the model and the run.
struct TraceModel {
  std::string path;
  bool logits = false;
  // The layers' expert counts alone: a replay reads no file.
  experts::Geometry geometry;
  // Slot classes with the slots of the run; without any where the header does not have them.
  experts::ArenaShape shape;
  int depth = 8;                   // --io-depth of the run
  std::vector<double> read_bytes;  // by layer, of one expert; empty where the header has none
  std::string settings;            // the header's own, as JSON

  uint64_t uses_per_token() const noexcept;
  // The run's shape with so many slots. Throws Error(Usage) below the hard floor.
  experts::ArenaShape with_slots(uint64_t n_slots) const;
};
// Throws Error(Io), Error(Format) as read_trace_header() does, and Error(Format) when the settings
// contradict the layers.
TraceModel read_trace_model(const std::string& path);

enum class TraceEventKind : uint8_t { Decode, Predicted, Prompt, StepEnd, TurnEnd };

// One layer of a decode step with all its rows, one prediction with all its rows, one layer of a
// prompt, or an end.
struct TraceEvent {
  uint64_t at = 0;      // Decode: first of ids; Predicted: of logits; Prompt: of uses
  uint64_t logits = 0;  // Decode: first of logits, where the trace has them
  uint32_t rows = 0;
  uint16_t index = 0;  // of the layer
  TraceEventKind kind = TraceEventKind::Decode;
  uint8_t distance = 0;  // Predicted: layers ahead
};

// Consecutive events. Row r of a Decode event has ids[at + r * n_used .. + n_used) by rank and
// logits[logits + r * n_expert .. + n_expert); a Prompt event has uses[at .. at + n_expert).
struct TraceChunk {
  std::vector<TraceEvent> events;
  std::vector<uint16_t> ids;
  std::vector<float> logits;
  std::vector<uint32_t> uses;
  uint64_t tokens = 0;      // decode rows whose step ends here
  uint64_t file_bytes = 0;  // of the records, for progress
};

// Hands the trace out in chunks of a few megabytes. Throws as read_trace() does. `with_logits`
// false leaves logits and predictions away.
void read_chunks(const std::string& path, bool with_logits,
                 FunctionRef<void(const TraceChunk&)> take);

}  // namespace penstock::measure
