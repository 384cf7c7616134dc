// From logits to a token: penalties, temperature, top-k, top-p, min-p, and a seeded draw.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace penstock::engine {

struct SamplerOptions {
  float temperature = 0.0f;         // 0: greedy, the largest logit (ties: lower id)
  int top_k = 0;                    // keep the k most likely; 0: all
  float top_p = 1.0f;               // keep the smallest set with this much probability; 1: all
  float min_p = 0.0f;               // keep p >= min_p * largest p; 0: all
  float repetition_penalty = 1.0f;  // over prompt and output: divides positive, multiplies negative
  float presence_penalty = 0.0f;    // subtracted once from every token of the output
  float frequency_penalty = 0.0f;   // subtracted per occurrence in the output
  uint64_t seed = 0;
};

struct TokenProbability {
  int32_t id = 0;
  float logprob = 0.0f;
};

struct SampledToken {
  int32_t id = 0;
  float logprob = 0.0f;  // natural log of softmax(logits)[id], before penalties and temperature
};

// The order of the steps is the one of transformers and vLLM: penalties, temperature, top-k, top-p,
// min-p. The same seed, options and logits give the same tokens on every machine.
class Sampler {
 public:
  explicit Sampler(const SamplerOptions& options);  // throws Error(Usage) for values out of range

  // Tokens of the prompt, for the repetition penalty.
  void see_prompt(std::span<const int32_t> tokens);
  // Chooses from logits[n_vocab] and remembers the choice. Throws Error(Numeric) if a logit is NaN
  // or infinite: a broken weight must end the run, not print token 0 for ever.
  SampledToken sample(std::span<const float> logits);
  // The same for a token that was chosen elsewhere.
  SampledToken take(int32_t token, std::span<const float> logits);

  const SamplerOptions& options() const noexcept { return options_; }

 private:
  void accept(int32_t token);
  void apply_penalties(std::span<float> logits) const;
  double uniform() noexcept;  // in [0, 1), 53 bits

  SamplerOptions options_;
  uint64_t random_state_;
  std::unordered_map<int32_t, int> prompt_counts_;
  std::unordered_map<int32_t, int> output_counts_;
  std::vector<float> adjusted_;
  std::vector<int32_t> order_;
  std::vector<double> weights_;
};

// The `n` most likely tokens with their log-probabilities, largest first (ties: lower id).
std::vector<TokenProbability> top_logprobs(std::span<const float> logits, int n);

}  // namespace penstock::engine
