#include "engine/windows.h"

#include <algorithm>

#include "base/error.h"

namespace penstock::engine {
namespace {

// Floats of logits that are held at once.
constexpr int64_t kLogits = int64_t{4} << 20;

int64_t buffer_rows(int64_t n_vocab) noexcept {
  return std::max<int64_t>(1, kLogits / n_vocab);
}

}  // namespace

uint64_t Windows::buffer_bytes(int64_t n_vocab) noexcept {
  return static_cast<uint64_t>(buffer_rows(n_vocab) * n_vocab) * sizeof(float);
}

Windows::Windows(Runtime& runtime) : runtime_(runtime) {
  if (!runtime.options().windows) {
    fail(ErrorKind::Internal, "the runtime was opened for a conversation, not for windows");
  }
  const int64_t n_vocab = runtime.info().n_vocab;
  buffer_.resize(static_cast<size_t>(buffer_rows(n_vocab) * n_vocab));
  runtime.model().map_prompt_scratch(static_cast<int64_t>(at_once()) * runtime.options().n_ctx,
                                     runtime.state());
}

Windows::~Windows() {
  runtime_.model().release_prompt_scratch();
}

void Windows::run(std::span<const Window> windows, models::LogitRows rows) {
  if (windows.size() > at_once()) {
    fail(ErrorKind::Internal, "{} windows; {} run together", windows.size(), at_once());
  }
  runtime_.heed_watchdog();
  if (runtime_.out_of_memory()) {
    fail(ErrorKind::Watchdog, "memory has run out: start again with a smaller --memory");
  }
  sequences_.clear();
  for (size_t i = 0; i < windows.size(); ++i) {
    models::State& state = *runtime_.states()[i];
    state.reset();
    sequences_.push_back({&state, windows[i].tokens, windows[i].first_logits});
  }
  runtime_.model().forward_together(sequences_, runtime_.stream(), buffer_, rows);
}

}  // namespace penstock::engine
