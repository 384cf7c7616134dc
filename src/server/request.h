// What a request asks for, checked: every field has a type, a range, and an effect or a refusal.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat_template.h"

namespace penstock::server {

enum class Endpoint { Chat, Completions };

struct GenerationRequest {
  Endpoint endpoint = Endpoint::Chat;
  std::string model;  // empty: not named

  text::ChatRequest chat;                      // Chat
  std::optional<std::string> effort;           // Chat: reasoning_effort as the API spells it
  std::vector<std::string> variables;          // Chat: names in chat.variables_json
  std::string prompt;                          // Completions
  std::optional<std::vector<int32_t>> tokens;  // Completions: a prompt of token ids

  bool stream = false;
  bool include_usage = false;
  std::optional<double> temperature, top_p, min_p;
  std::optional<int64_t> top_k;
  std::optional<double> repetition_penalty, presence_penalty, frequency_penalty;
  std::optional<uint64_t> seed;
  int64_t max_tokens = -1;
  std::vector<std::string> stop;
  bool ignore_end = false;
  int n_logprobs = -1;  // alternatives per token; -1: no log-probabilities
};

// Throws ApiError(400) naming the field.
GenerationRequest parse_request(Endpoint endpoint, std::string_view body);

}  // namespace penstock::server
