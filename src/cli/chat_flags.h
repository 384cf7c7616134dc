// How a conversation becomes a prompt: the options of `run` and `serve` about templates and
// reasoning.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

#include "engine/chat_prompt.h"

namespace penstock::cli {

class ChatFlags {
 public:
  void add_to(CLI::App& app);

  // Throws Error(Usage) for a reasoning option that the model's template has no switch for.
  engine::ChatFormat open(const engine::Runtime& runtime) const;
  // A request with the options in force.
  text::ChatRequest start(const engine::ChatFormat& format) const;
  const std::string& format() const noexcept { return format_; }
  const std::string& reasoning() const noexcept { return reasoning_; }  // empty: not given
  int64_t reasoning_budget() const noexcept { return reasoning_budget_; }
  bool reasoning_limited() const noexcept { return reasoning_budget_ >= 0 || reasoning_ == "off"; }

 private:
  std::string format_ = "auto", reasoning_;
  int64_t reasoning_budget_ = -1;
};

}  // namespace penstock::cli
