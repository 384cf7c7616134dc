// A conversation with a loaded model: prompts in chunks, tokens one by one or several at once, its
// state to a file and back. The only way in for the programs and the server.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/runtime.h"
#include "engine/watched_stream.h"

namespace penstock::engine {

// Time and tokens by phase (spec/streaming.md §G.5). Prefill ends when the last prompt position's
// logits exist; the first decode step is counted apart from the others.
struct Timings {
  int64_t prefill_tokens = 0;
  double prefill_s = 0;
  int64_t first_tokens = 0;  // 0 or 1
  double first_s = 0;
  int64_t decode_tokens = 0;  // after the first
  double decode_s = 0;

  double prefill_rate() const noexcept;  // tokens per second, 0 where nothing was measured
  double decode_rate() const noexcept;   // of the tokens after the first
};

class Session {
 public:
  explicit Session(Runtime& runtime);
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  int64_t position() const noexcept { return state_.position(); }
  int64_t n_ctx() const noexcept { return state_.capacity(); }
  int64_t room() const noexcept { return n_ctx() - position(); }
  std::span<const int32_t> tokens() const noexcept { return state_.tokens(); }
  Runtime& runtime() noexcept { return runtime_; }
  const Runtime& runtime() const noexcept { return runtime_; }

  // Evaluates a prompt from position() on, in chunks; afterwards logits() are those of its last
  // token. When `keep_going` ends it, false is returned and the chunks done so far stay; between
  // two layers of a chunk the session is not intact() then. Throws Error(Usage) when the tokens do
  // not fit into the context or are no tokens.
  bool prefill(std::span<const int32_t> tokens, const KeepGoing& keep_going = {});
  // The same with every position's logits, [tokens][n_vocab], handed out chunk by chunk.
  using Rows = FunctionRef<void(int64_t first_position, std::span<const float> logits)>;
  void prefill_all(std::span<const int32_t> tokens, Rows rows);

  // Evaluates one token.
  void decode(int32_t token);
  // The token that will be decoded next is known: what depends on it alone can be fetched.
  void expect(int32_t token) { runtime_.model().prefetch(state_, token); }
  std::span<const float> logits() const noexcept { return logits_; }  // of the last position

  // Evaluates up to models::kMaxStepRows tokens of which only the first n of commit(n) will count;
  // returns [tokens][n_vocab]. After commit, logits() are those of the last token kept.
  std::span<const float> step(std::span<const int32_t> tokens);
  void commit(int n);

  // False after a step that failed or was ended half-way: only reset(), rewind() and restore() make
  // the session usable again.
  bool intact() const noexcept { return intact_; }
  // The answer is complete: what is protected in memory until the next one is chosen.
  void end_turn() { runtime_.stream().end_turn(); }
  void reset();
  bool truncate(int64_t position);  // false: this model's state cannot go back there

  // What is needed to come back to this position while the tokens before it stay the same: the
  // recurrent part of the state (keys and values before the position do not change).
  struct Checkpoint {
    std::vector<int32_t> tokens;
    std::vector<std::byte> recurrent;
  };
  Checkpoint checkpoint() const;
  // Precondition: tokens() begins with the checkpoint's. logits() mean nothing afterwards.
  void rewind(const Checkpoint& checkpoint);

  // The whole state in one file; restore() throws Error(Format) for a file of another model,
  // another version or a damaged one, and leaves the session empty then.
  void save(const std::string& path) const;
  void restore(const std::string& path);

  const Timings& timings() const noexcept { return timings_; }
  // The largest footprint seen (spec/streaming.md §C.4), in bytes: sampled at the end of every
  // prefill, before its scratch is given back, and by this call.
  uint64_t peak_footprint();
  uint64_t last_peak_footprint() const noexcept { return peak_footprint_; }  // without a new look

 private:
  void check_room(size_t n_tokens) const;
  void end_prefill();
  void forward(experts::Stream& stream, const models::Batch& batch, float* logits);

  Runtime& runtime_;
  models::State& state_;
  size_t n_vocab_;
  std::vector<float> logits_;
  std::vector<float> step_logits_;
  bool intact_ = true;
  Timings timings_;
  uint64_t peak_footprint_ = 0;
};

}  // namespace penstock::engine
