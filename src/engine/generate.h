// The loop that turns logits into text: sampling, stops, limits, cancellation.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/sampler.h"
#include "engine/session.h"

namespace penstock::engine {

enum class StopReason {
  EndToken,     // the model ended its turn
  StopString,   // one of GenerateOptions::stop
  StopToken,    // one of GenerateOptions::stop_tokens
  Length,       // max_tokens
  ContextFull,  // no room for another token
  Cancelled,
  Watchdog,  // memory ran out
};
// Why a prefill that returned false was ended.
StopReason prefill_stop(const Session& session) noexcept;
const char* stop_reason_text(StopReason reason) noexcept;

struct GenerateOptions {
  int64_t max_tokens = -1;  // -1: until the end token or the context is full
  std::vector<std::string> stop;
  std::vector<int32_t> stop_tokens;
  bool ignore_end = false;      // goes on past the model's end tokens
  bool render_control = false;  // shows control tokens by name
  // A thinking model that was opened inside its reasoning is made to close it after this many
  // tokens; -1: never.
  int64_t reasoning_budget = -1;
  bool starts_in_reasoning = false;
  // Alternatives to hand out with every token; 0: the token's own log-probability alone; -1: none
  // of it is computed or handed out.
  int n_logprobs = -1;
};

struct GeneratedToken {
  int32_t id = 0;
  float logprob = 0;                  // of softmax(logits), before penalties and temperature
  std::vector<TokenProbability> top;  // the most likely ones, largest first
  size_t end = 0;                     // bytes of text up to and with this token
};

// Whole characters as they become certain, and the tokens whose text has been shown completely by
// then (GenerateOptions::n_logprobs). Of a stop string neither the text nor the tokens appear.
struct Output {
  std::string_view text;
  std::span<const GeneratedToken> tokens;
};

struct GenerateResult {
  std::vector<int32_t> tokens;  // without the end token
  std::string text;
  StopReason reason = StopReason::Length;
  std::string stop_string;       // which one
  int64_t reasoning_tokens = 0;  // of `tokens`, inside <think>
};

// Continues from the session's logits (after a prefill or decode). The last token sampled is
// decoded too unless it ended the generation, so that a conversation can go on from the session.
GenerateResult generate(Session& session, Sampler& sampler, const GenerateOptions& options,
                        FunctionRef<void(const Output&)> on_output,
                        const KeepGoing& keep_going = {});

}  // namespace penstock::engine
