// What every thread may know about the loaded model. Immutable, so no lock is needed.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/chat_prompt.h"
#include "engine/runtime.h"
#include "engine/sampler.h"
#include "server/options.h"

namespace penstock::server {

struct Model {
  // Throws Error(Usage) for a chat format or an effort that the model does not have.
  Model(const engine::Runtime& runtime, const ServerOptions& options);

  // Is this name one of the model's? Empty is.
  bool is_called(const std::string& name) const;

  std::string id;                  // how it is listed
  std::vector<std::string> names;  // that it answers to
  int64_t created = 0;             // Unix time
  int64_t n_ctx = 0;
  int n_vocab = 0;
  const text::Tokenizer* tokenizer = nullptr;  // null: token ids alone
  std::optional<engine::ChatFormat> chat;      // none: no chat
  std::string no_chat;                         // why
  engine::SamplerOptions sampling;             // where a request says nothing
  std::string reasoning;
  int64_t reasoning_budget = -1;
};

}  // namespace penstock::server
