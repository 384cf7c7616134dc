#include "engine/conversation.h"

#include <algorithm>

#include "base/error.h"

namespace penstock::engine {
namespace {

size_t common_prefix(std::span<const int32_t> a, std::span<const int32_t> b) {
  const auto [end, unused] = std::mismatch(
      a.begin(), a.begin() + static_cast<ptrdiff_t>(std::min(a.size(), b.size())), b.begin());
  return static_cast<size_t>(end - a.begin());
}

}  // namespace

// Leaves the session at the longest prefix of the prompt, short of its last token, that the state
// can still be brought to.
void Conversation::go_back(std::span<const int32_t> prompt) {
  const size_t common = std::min(common_prefix(session_.tokens(), prompt), prompt.size() - 1);
  if (session_.intact()) {
    if (common == session_.tokens().size()) return;
    if (session_.truncate(static_cast<int64_t>(common))) return;
  }
  if (checkpoint_ && !checkpoint_->recurrent.empty() && checkpoint_->tokens.size() <= common &&
      common_prefix(checkpoint_->tokens, prompt) == checkpoint_->tokens.size()) {
    session_.rewind(*checkpoint_);
    return;
  }
  session_.reset();
}

bool Conversation::advance(std::span<const int32_t> prompt, size_t n_stable,
                           const KeepGoing& keep_going) {
  if (prompt.empty()) fail(ErrorKind::Usage, "an empty prompt has no next token");
  go_back(prompt);
  auto position = static_cast<size_t>(session_.position());
  reused_ = static_cast<int64_t>(position);
  if (position < n_stable && n_stable < prompt.size()) {
    if (!session_.prefill(prompt.subspan(position, n_stable - position), keep_going)) return false;
    checkpoint_ = session_.checkpoint();
    position = n_stable;
  }
  return session_.prefill(prompt.subspan(position), keep_going);
}

}  // namespace penstock::engine
