// Run records (spec/streaming.md §J.1, docs/records.md): what a run was, wrote down by the run
// itself. One file per run, named by the SHA-256 of its text, which is canonical JSON; what belongs
// to it lies beside it in files/, by hash. A record that is begun and not finished stays as
// RUN.unfinished.json: runs that are killed leave a trace.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "experts/counters.h"
#include "measure/output_tee.h"
#include "measure/record_facts.h"

namespace penstock::measure {

inline constexpr const char* kRecordSchema = "penstock-run-record";
inline constexpr int kRecordVersion = 1;

// Keys sorted, no white space, invalid UTF-8 replaced: the text that is hashed and written.
std::string canonical_text(const nlohmann::json& record);

// Columns of `tokens`: one row per decode step.
const std::vector<std::string>& token_columns();

class RunRecorder {
 public:
  enum class Output { Kept, NotKept };
  // Makes the folder, writes the unfinished record and begins to keep what is printed, if wanted.
  // Throws Error(Io).
  RunRecorder(const std::string& folder, const Producer& producer, Output output = Output::Kept);
  ~RunRecorder();  // a run that ends without finish() leaves its unfinished record
  RunRecorder(const RunRecorder&) = delete;
  RunRecorder& operator=(const RunRecorder&) = delete;

  void set(const std::string& name, nlohmann::json value) { record_[name] = std::move(value); }
  // Keeps text that belongs to the record in files/; returns its hash. Throws Error(Io).
  std::string archive(const std::string& text);
  // The disk that matters is that of this file; known once a model is named.
  void set_machine(const std::string& path) { record_["machine"] = machine_json(path); }
  void memory(const std::string& at);  // a sample, named by when it was taken
  // The sample "end", to be taken while what was run still lives; the first call counts. finish()
  // takes it where there was nothing to run.
  void end_memory();
  void boundary(const std::string& at, nlohmann::json counters);  // counters where a phase ends

  // A prompt is about to be evaluated: its token ids are archived. `before`: counters as they are.
  // It counts as truncated until prompt_evaluated() finds all of it.
  void begin_turn(std::span<const int32_t> prompt, bool chat_template,
                  const experts::Counters& before);
  // The prompt was evaluated; `context`: the tokens before what will be generated.
  void prompt_evaluated(std::span<const int32_t> context);
  // Called often while tokens are generated; notes a row when a decode step was added.
  // decode_s: the time of all decode steps so far.
  void poll(const experts::Counters& now, double decode_s);
  void end_turn(std::span<const int32_t> tokens, const std::string& text, const std::string& stop);

  // Writes the record; returns its path. `state`: finished, interrupted, watchdog, error.
  std::string finish(const std::string& state, int exit_code, const std::string& error = {});
  bool finished() const noexcept { return finished_; }

 private:
  void stop_tees();

  std::string folder_;
  std::string unfinished_;
  nlohmann::json record_;
  std::unique_ptr<OutputTee> out_, err_;
  int64_t started_ns_;
  bool finished_ = false;
  experts::Counters last_;
  double last_decode_s_ = 0;
  std::vector<int32_t> prompt_;  // of the turn
  bool end_sampled_ = false;
};

}  // namespace penstock::measure
