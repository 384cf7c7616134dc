// A conversation as token ids, and what a model's template lets one choose about its reasoning.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/runtime.h"
#include "text/chat_template.h"

namespace penstock::engine {

// The variables about reasoning that a template looks at, found by their names in its source.
struct ReasoningSwitches {
  bool thinking = false;  // enable_thinking
  bool effort = false;    // reasoning_effort
  bool xhigh = false;     // the strongest effort is called xhigh
};

struct ChatFormat {
  text::ChatTemplate renderer;
  std::string source;  // of the file's template; empty for the built-in formats
  ReasoningSwitches reasoning;
};

// `choice`: auto (the file's template), chatml, or raw (the text as it is). Throws Error(Usage)
// when the file has no template, Error(Unsupported) when it has no tokenizer.
ChatFormat open_chat_format(const Runtime& runtime, std::string_view choice);

// Sets the request's variables for an effort of off, low, medium or high. Throws Error(Usage) for
// what the format has no switch for.
void set_reasoning(text::ChatRequest* request, const ChatFormat& format, std::string_view effort);

struct ChatPrompt {
  std::vector<int32_t> ids;
  size_t n_stable = 0;        // of them, what the next turn's prompt begins with again
  bool in_reasoning = false;  // the answer begins inside <think>
};

// The request's messages and the opening of the answer. Throws as ChatTemplate::render() does.
ChatPrompt encode_chat(const ChatFormat& format, const text::Tokenizer& tokenizer,
                       text::ChatRequest request);

}  // namespace penstock::engine
