// Keeps a session in step with a growing conversation, evaluating only what is new.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "engine/session.h"

namespace penstock::engine {

class Conversation {
 public:
  explicit Conversation(Session& session) : session_(session) {}

  // Makes the session hold exactly `prompt`, with its last token's logits. What the session already
  // holds of it is reused. `n_stable` is how many of the tokens the next prompt will begin with
  // again (the conversation so far, without the opening of the answer, which templates rewrite):
  // models whose state cannot be truncated keep a checkpoint there. Returns false when `keep_going`
  // ended it; what was evaluated by then is reused as far as the state allows.
  bool advance(std::span<const int32_t> prompt, size_t n_stable, const KeepGoing& keep_going = {});

  int64_t reused() const noexcept { return reused_; }  // tokens of the last prompt not evaluated

 private:
  void go_back(std::span<const int32_t> prompt);

  Session& session_;
  std::optional<Session::Checkpoint> checkpoint_;
  int64_t reused_ = 0;
};

}  // namespace penstock::engine
