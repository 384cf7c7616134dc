// What the quality of a run depends on, and nothing else (spec/streaming.md §I.4): figures of speed
// and of quality belong together when their keys are equal.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "engine/runtime.h"

namespace penstock::measure {

struct QualityKey {
  nlohmann::json settings;  // canonical: keys sorted
  std::string id;           // SHA-256 of its text, hexadecimal
};

// Model (its identity covers pruning and types), converted dense weights, precision, kernels, KV
// type; with cache-aware routing also what decides which experts are in memory.
QualityKey quality_key(const engine::Runtime& runtime);

// The type of cached keys and values in force: "f16" or "f32".
const char* kv_name(const engine::RuntimeOptions& options) noexcept;

}  // namespace penstock::measure
