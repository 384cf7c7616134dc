// What `run --record` writes down, from the runtime and the session.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

#include "engine/generate.h"
#include "engine/runtime.h"
#include "engine/session.h"
#include "measure/record.h"

namespace penstock::cli {

// A recorder, or none: every call on none does nothing.
class RunRecord {
 public:
  RunRecord() = default;
  explicit RunRecord(const std::string& folder);  // empty: none

  explicit operator bool() const noexcept { return recorder_ != nullptr; }
  // Passes progress on and samples memory between loading and filling.
  engine::Runtime::Progress watch(engine::Runtime::Progress inner);
  void opened(const engine::Runtime& runtime);
  // What was asked for: `given` and the stream's options.
  void settings(const engine::Runtime& runtime, nlohmann::ordered_json given);
  void begin_turn(const engine::Session& session, std::span<const int32_t> prompt, bool chat);
  void prefilled(const engine::Session& session);
  void poll(const engine::Session& session);
  void end_turn(const engine::Session& session, const engine::GenerateResult& result);
  // Everything that is known at the end.
  void measured(engine::Session& session);
  void finish(const std::string& state, int exit_code, const std::string& error = {});

 private:
  std::unique_ptr<measure::RunRecorder> recorder_;
  bool load_sampled_ = false;
};

}  // namespace penstock::cli
