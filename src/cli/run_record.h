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

// The stream's options in force, beside what was `given`.
nlohmann::json settings_json(const engine::Runtime& runtime, nlohmann::ordered_json given);
// Whatever changes the output: options in force (moce, dense-convert, alias-experts,
// pack-unchecked) and what the model file says was done to it (pruned, requantised).
std::vector<std::string> lossy_options(const engine::Runtime& runtime);
// What is known of a model that was opened: inputs, lossy options, quality key.
void describe(measure::RunRecorder& recorder, const engine::Runtime& runtime);

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
  void begin_turn(engine::Session& session, std::span<const int32_t> prompt, bool chat);
  void prefilled(const engine::Session& session);
  void poll(const engine::Session& session);
  void end_turn(const engine::Session& session, const engine::GenerateResult& result);
  // One token of a run with a timeline.
  void looked_at(const experts::TokenTimeline& token);
  // Everything that is known at the end.
  void measured(engine::Session& session);
  // The same of an evaluation, which has no session, and what it found.
  void evaluated(const engine::Runtime& runtime, nlohmann::ordered_json result);
  // Of a recipe for the model at `source`: its file's text, the commands, what came out.
  void cooked(const std::string& source, const std::string& text, nlohmann::ordered_json steps,
              nlohmann::ordered_json result);
  void finish(const std::string& state, int exit_code, const std::string& error = {});

 private:
  std::unique_ptr<measure::RunRecorder> recorder_;
  bool load_sampled_ = false;
};

// Runs `body` with a record in `folder` (empty: none), which is finished as it ends: with the exit
// code that it returns or with the error that it throws.
int recorded(const std::string& folder, const std::function<int(RunRecord&)>& body);

}  // namespace penstock::cli
