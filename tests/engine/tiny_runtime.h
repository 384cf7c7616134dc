// A runtime on a tiny model of closed-form weights, for the tests of the engine.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/runtime.h"
#include "engine/session.h"
#include "models/tiny_models.h"

namespace penstock::engine::test {

struct Variant {
  std::optional<uint64_t> slots;  // none: all experts
  experts::IoMode io = experts::IoMode::Auto;
  int threads = 1;
  int chunk = 512;
  quant::Precision precision = quant::Precision::Fast;
  models::DenseMode dense = models::DenseMode::Copy;
  decltype(experts::StreamOptions::decorate) decorate = nullptr;
  std::string pack = "none";
  uint64_t verify = 0;
  experts::ReadAhead read_ahead = experts::ReadAhead::On;
  experts::Predictor predictor = experts::Predictor::Auto;
  int depth = 1;
};

inline std::unique_ptr<Runtime> open_tiny(const std::string& path, const Variant& variant) {
  RuntimeOptions options;
  options.model_path = path;
  options.precision = variant.precision;
  options.threads = variant.threads;
  options.n_ctx = 96;
  options.prompt_chunk = variant.chunk;
  options.dense = variant.dense;
  options.arena_slots = variant.slots.value_or(4096);
  options.stream.io = variant.io;
  options.stream.depth = variant.depth;
  options.stream.read_ahead = variant.read_ahead;
  options.stream.predictor = variant.predictor;
  options.stream.huge_seconds = 0;
  options.stream.decorate = variant.decorate;
  options.stream.pack.file = variant.pack;
  options.stream.verify_every = variant.verify;
  return Runtime::open(options, nullptr);
}

// The bits of every position's logits: a prompt of n_prompt tokens in chunks, the rest decoded.
inline std::vector<float> all_logits(Runtime& runtime, std::span<const int32_t> tokens,
                                     size_t n_prompt) {
  Session session(runtime);
  std::vector<float> all;
  const auto add = [&](std::span<const float> logits) {
    all.insert(all.end(), logits.begin(), logits.end());
  };
  if (n_prompt > 0) {
    session.prefill_all(tokens.first(n_prompt),
                        [&](int64_t, std::span<const float> logits) { add(logits); });
  }
  for (const int32_t token : tokens.subspan(n_prompt)) {
    session.decode(token);
    add(session.logits());
  }
  return all;
}

}  // namespace penstock::engine::test
