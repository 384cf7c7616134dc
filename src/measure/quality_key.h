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
// type, aliased experts; with cache-aware routing also what decides which experts are in memory:
// slots, eviction and its half-life, hot share, fill and the profile behind it. Not in it are live
// or epoch residency and read-ahead, which depend on the disk's timing: there the share of slots
// that were replaced tells whether a measurement speaks for a run (quality_verdict.h).
QualityKey quality_key(const engine::Runtime& runtime);

// The key of the same with routing that is exact.
QualityKey exact_key(const QualityKey& key);

// The type of cached keys and values in force: "f16" or "f32".
const char* kv_name(const engine::RuntimeOptions& options) noexcept;

}  // namespace penstock::measure
