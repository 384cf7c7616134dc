// Independent windows of text, evaluated together: for calibration and for measuring quality. The
// runtime was opened with RuntimeOptions::windows.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/runtime.h"

namespace penstock::engine {

struct Window {
  std::span<const int32_t> tokens;  // at most n_ctx
  int64_t first_logits = 0;         // logits are wanted from this row on; tokens.size(): of none
};

class Windows {
 public:
  // Bytes of the buffer for logits, for RuntimeOptions::caller_bytes.
  static uint64_t buffer_bytes(int64_t n_vocab) noexcept;

  // Maps the scratch; it is given back at the end.
  explicit Windows(Runtime& runtime);
  ~Windows();
  Windows(const Windows&) = delete;
  Windows& operator=(const Windows&) = delete;

  size_t at_once() const noexcept { return runtime_.states().size(); }
  // Up to at_once() windows, each from an empty state, layer by layer together. Their logits are
  // handed out window by window, in pieces. Throws Error(Watchdog) when the watchdog says so.
  void run(std::span<const Window> windows, models::LogitRows rows);

 private:
  Runtime& runtime_;
  std::vector<float> buffer_;
  std::vector<models::Sequence> sequences_;
};

}  // namespace penstock::engine
