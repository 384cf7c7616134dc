#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"

namespace penstock::engine {
namespace {

void check(bool ok, const char* name, double value, const char* range) {
  if (!ok) fail(ErrorKind::Usage, "{} = {} is out of range: it must be {}", name, value, range);
}

// Index of the largest value; throws on the first value that is not finite.
size_t checked_argmax(std::span<const float> logits) {
  size_t best = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!std::isfinite(logits[i])) {
      fail(ErrorKind::Numeric,
           "the logit of token {} is {}: the model's weights or its file are damaged", i,
           logits[i]);
    }
    if (logits[i] > logits[best]) best = i;
  }
  return best;
}

// log(sum(exp(logits))), summed in double in index order.
double log_sum_exp(std::span<const float> logits, float largest) {
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit - largest));
  return static_cast<double>(largest) + std::log(sum);
}

}  // namespace

Sampler::Sampler(const SamplerOptions& options) : options_(options), random_state_(options.seed) {
  check(options.temperature >= 0 && std::isfinite(options.temperature), "temperature",
        static_cast<double>(options.temperature), "0 or more");
  check(options.top_k >= 0, "top-k", options.top_k, "0 (all) or more");
  check(options.top_p > 0 && options.top_p <= 1, "top-p", static_cast<double>(options.top_p),
        "above 0 and at most 1");
  check(options.min_p >= 0 && options.min_p <= 1, "min-p", static_cast<double>(options.min_p),
        "between 0 and 1");
  check(options.repetition_penalty > 0 && std::isfinite(options.repetition_penalty),
        "repetition penalty", static_cast<double>(options.repetition_penalty), "above 0");
  check(std::isfinite(options.presence_penalty), "presence penalty",
        static_cast<double>(options.presence_penalty), "a number");
  check(std::isfinite(options.frequency_penalty), "frequency penalty",
        static_cast<double>(options.frequency_penalty), "a number");
}

void Sampler::see_prompt(std::span<const int32_t> tokens) {
  for (const int32_t token : tokens) ++prompt_counts_[token];
}

void Sampler::accept(int32_t token) {
  ++output_counts_[token];
}

// splitmix64: small, seedable with any value, and the same everywhere.
double Sampler::uniform() noexcept {
  uint64_t z = random_state_ += 0x9E3779B97F4A7C15ULL;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  z ^= z >> 31;
  return static_cast<double>(z >> 11) * 0x1.0p-53;
}

void Sampler::apply_penalties(std::span<float> logits) const {
  const float repetition = options_.repetition_penalty;
  const auto repeat = [&](int32_t token) {
    float& logit = logits[static_cast<size_t>(token)];
    logit = logit > 0 ? logit / repetition : logit * repetition;
  };
  const auto in_range = [&](int32_t token) {
    return token >= 0 && static_cast<size_t>(token) < logits.size();
  };
  if (repetition != 1.0f) {
    for (const auto& [token, count] : prompt_counts_) {
      if (in_range(token)) repeat(token);
    }
    for (const auto& [token, count] : output_counts_) {
      if (in_range(token) && !prompt_counts_.contains(token)) repeat(token);
    }
  }
  for (const auto& [token, count] : output_counts_) {
    if (!in_range(token)) continue;
    logits[static_cast<size_t>(token)] -=
        options_.presence_penalty + options_.frequency_penalty * static_cast<float>(count);
  }
}

SampledToken Sampler::sample(std::span<const float> logits) {
  const size_t raw_best = checked_argmax(logits);
  const double log_total = log_sum_exp(logits, logits[raw_best]);

  adjusted_.assign(logits.begin(), logits.end());
  apply_penalties(adjusted_);
  const size_t best = checked_argmax(adjusted_);
  size_t chosen = best;
  if (options_.temperature > 0) {
    // Candidates, most likely first; equal logits keep the order of their ids.
    order_.resize(adjusted_.size());
    std::iota(order_.begin(), order_.end(), 0);
    const auto more_likely = [&](int32_t a, int32_t b) {
      const float x = adjusted_[static_cast<size_t>(a)];
      const float y = adjusted_[static_cast<size_t>(b)];
      return x != y ? x > y : a < b;
    };
    size_t kept = order_.size();
    if (options_.top_k > 0 && static_cast<size_t>(options_.top_k) < kept) {
      kept = static_cast<size_t>(options_.top_k);
      std::partial_sort(order_.begin(), order_.begin() + static_cast<ptrdiff_t>(kept), order_.end(),
                        more_likely);
    } else {
      std::sort(order_.begin(), order_.end(), more_likely);
    }
    weights_.resize(kept);
    double total = 0;
    for (size_t i = 0; i < kept; ++i) {
      const double logit = static_cast<double>(adjusted_[static_cast<size_t>(order_[i])]);
      weights_[i] = std::exp((logit - static_cast<double>(adjusted_[best])) /
                             static_cast<double>(options_.temperature));
      total += weights_[i];
    }
    if (options_.top_p < 1) {
      double mass = 0;
      size_t n = 0;
      while (n < kept && mass < static_cast<double>(options_.top_p) * total) mass += weights_[n++];
      kept = std::max<size_t>(1, n);
    }
    while (kept > 1 && weights_[kept - 1] < static_cast<double>(options_.min_p) * weights_[0]) {
      --kept;
    }
    total = std::accumulate(weights_.begin(), weights_.begin() + static_cast<ptrdiff_t>(kept), 0.0);
    double target = uniform() * total;
    size_t pick = 0;
    while (pick + 1 < kept && target >= weights_[pick]) target -= weights_[pick++];
    chosen = static_cast<size_t>(order_[pick]);
  }
  accept(static_cast<int32_t>(chosen));
  return {static_cast<int32_t>(chosen),
          static_cast<float>(static_cast<double>(logits[chosen]) - log_total)};
}

SampledToken Sampler::take(int32_t token, std::span<const float> logits) {
  const double log_total = log_sum_exp(logits, logits[checked_argmax(logits)]);
  accept(token);
  return {token,
          static_cast<float>(static_cast<double>(logits[static_cast<size_t>(token)]) - log_total)};
}

std::vector<TokenProbability> top_logprobs(std::span<const float> logits, int n) {
  const size_t best = checked_argmax(logits);
  const double log_total = log_sum_exp(logits, logits[best]);
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const size_t kept = std::min(order.size(), static_cast<size_t>(std::max(0, n)));
  std::partial_sort(order.begin(), order.begin() + static_cast<ptrdiff_t>(kept), order.end(),
                    [&](int32_t a, int32_t b) {
                      const float x = logits[static_cast<size_t>(a)];
                      const float y = logits[static_cast<size_t>(b)];
                      return x != y ? x > y : a < b;
                    });
  std::vector<TokenProbability> top(kept);
  for (size_t i = 0; i < kept; ++i) {
    top[i] = {
        order[i],
        static_cast<float>(static_cast<double>(logits[static_cast<size_t>(order[i])]) - log_total)};
  }
  return top;
}

}  // namespace penstock::engine
