// How a conversation becomes a prompt: the options of `run` about templates and reasoning.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace penstock::cli {

class ChatFlags {
 public:
  void add_to(CLI::App& app);

  // The template to use. `source` is the file's tokenizer.chat_template, empty if it has none.
  // Throws Error(Usage) for a reasoning option that the template has no switch for.
  text::ChatTemplate make_template(const std::string& source,
                                   const text::Tokenizer& tokenizer) const;
  // A request with the options in force, the system message if one was given.
  text::ChatRequest start(const std::string& source) const;
  int64_t reasoning_budget() const noexcept { return reasoning_budget_; }
  bool reasoning_limited() const noexcept { return reasoning_budget_ >= 0 || reasoning_ == "off"; }

 private:
  std::string format_ = "auto", system_, reasoning_;
  int64_t reasoning_budget_ = -1;
};

struct ChatPrompt {
  std::vector<int32_t> ids;
  size_t n_stable = 0;        // of them, what the next turn's prompt begins with again
  bool in_reasoning = false;  // the answer begins inside <think>
};

ChatPrompt encode_chat(const text::ChatTemplate& format, const text::Tokenizer& tokenizer,
                       text::ChatRequest request);

}  // namespace penstock::cli
