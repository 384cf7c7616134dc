// A conversation with a loaded model: prompts in chunks, tokens one by one or several at once, its
// state to a file and back. The only way in for the programs and the server.
#pragma once

#include <cstdint>
#include <functional>
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
  double scratch_s = 0;  // mapping the prompts' scratch, before prefill
  double prefill_s = 0;
  int64_t first_tokens = 0;  // 0 or 1
  double first_s = 0;
  int64_t decode_tokens = 0;  // after the first
  double decode_s = 0;

  double prefill_rate() const noexcept;  // tokens per second, 0 where nothing was measured
  double decode_rate() const noexcept;   // of the tokens after the first
};

// What a prompt's scratch did to the footprint, in bytes (spec/streaming.md §G.4): measured before
// it was mapped, at its largest and after it was given back.
struct PromptMemory {
  uint64_t scratch = 0;  // as planned; 0: the prompt needed none
  uint64_t before = 0, peak = 0, after = 0;
  uint64_t state = 0;  // what the state of the context grew by meanwhile
  // What is left of the scratch after its release, beyond 5 % of it.
  bool kept() const noexcept { return after > before + state + scratch / 20 + kNoise; }

 private:
  static constexpr uint64_t kNoise = uint64_t{2} << 20;  // heaps and page tables
};

class Session {
 public:
  explicit Session(Runtime& runtime);
  virtual ~Session() = default;
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
  // The same with every position's logits, [tokens][n_vocab], handed out in pieces.
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

  // Memory has run out (Watchdog): what is running ends after its token, nothing new begins.
  bool out_of_memory() const noexcept;

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
  // Called at the end of every prefill, while its scratch is still mapped: the most that a prompt
  // occupies is seen there. May be empty.
  void at_prompt_peak(std::function<void()> look) { at_prompt_peak_ = std::move(look); }
  // Of the last prompt that took scratch, and how many kept some.
  const PromptMemory& prompt_memory() const noexcept { return prompt_memory_; }
  int prompts_that_kept_scratch() const noexcept { return kept_scratch_; }
  uint64_t last_peak_footprint() const noexcept { return peak_footprint_; }  // without a new look

 protected:
  virtual void release_scratch() { runtime_.model().release_prompt_scratch(); }

 private:
  void check_room(size_t n_tokens) const;
  void begin_prefill(size_t n_tokens);
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
  std::function<void()> at_prompt_peak_;
  PromptMemory prompt_memory_;
  int kept_scratch_ = 0;
};

}  // namespace penstock::engine
