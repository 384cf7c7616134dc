// What is measured at every scored position of a text (spec/streaming.md §I.1), and the file that
// keeps it: statistics are computed from it again whenever they are wanted.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/thread_pool.h"

namespace penstock::measure {

// p: the model's distribution at a position, p_b the base's, y the token that follows.
struct PositionScore {
  double nll = 0;       // -ln p(y)
  double nll_base = 0;  // -ln p_b(y)
  double kld = 0;       // sum over the vocabulary of p_b (ln p_b - ln p), where ln p_b >= -16
  double dp = 0;        // p(y) - p_b(y)
  double same_top = 0;  // 1: both hold the same token for the most likely
};

// Positions of a window of n tokens that are scored: n / 2 .. n - 2, with what comes before them as
// context. As llama.cpp's perplexity tool has it.
constexpr int64_t first_scored(int64_t window) noexcept {
  return window / 2;
}
constexpr int64_t n_scored(int64_t window) noexcept {
  return window - 1 - window / 2;
}

// Log-probabilities of a vocabulary in 16 bits each, clipped 16 nats below the largest logit: the
// row of llama.cpp's base files. Steps are (largest - smallest) / 65535, at most 2.4e-4.
class CompactRow {
 public:
  static size_t words(int64_t n_vocab) noexcept {  // uint16 of a row
    return 4 + 2 * (static_cast<size_t>(n_vocab + 1) / 2);
  }
  // False: a logit is not finite.
  static bool compress(std::span<const float> logits, uint16_t* row) noexcept;
  static void expand(const uint16_t* row, std::span<float> log_probabilities) noexcept;
};

// Rows of a base distribution for some positions in a row, or none.
struct BaseRows {
  enum class Form { None, Compact, Logits };
  Form form = Form::None;
  const std::byte* data = nullptr;  // uint16 [n][words] or float [n][n_vocab]
};

// A row that cannot be scored: the first one, and whose distribution is not finite.
struct BadRow {
  int64_t row = -1;  // -1: there is none
  bool of_base = false;
};

// Scores n rows of logits, [n][n_vocab]; row i is followed by next[i], which must be a token of the
// vocabulary.
BadRow score_rows(ThreadPool& pool, std::span<const float> logits, std::span<const int32_t> next,
                  const BaseRows& base, PositionScore* out);

// Results of a run over a text, or of a shard of one.
struct ScoreSet {
  struct Part {
    std::string name;
    Sha256 tokens_id{};
  };
  struct Window {
    uint64_t index = 0;
    uint32_t part = 0;  // where it begins
  };
  Sha256 model_id{};
  std::string model_name;
  std::string quality_key;       // of the run that was scored
  std::string quality_settings;  // JSON that the key was made from
  bool has_base = false;
  Sha256 base_id{};  // the model's
  std::string base_name, base_key;
  std::string mode;  // batch or step
  int64_t window_tokens = 0;
  uint64_t n_windows = 0;  // of the whole text
  Sha256 corpus_id{};
  std::vector<Part> parts;
  // JSON of what the run was like beside its scores: members routing, streaming and overlap of the
  // result, as far as there are any. "" where nothing is said.
  std::string circumstances;
  std::vector<Window> windows;        // in ascending order
  std::vector<PositionScore> scores;  // [windows][n_scored]

  int64_t per_window() const noexcept { return n_scored(window_tokens); }
  bool whole() const noexcept { return windows.size() == n_windows; }
  // Whether windows depend on those before them: the key's settings say so.
  bool cache_aware() const;
};

ScoreSet read_scores(const std::string& path);
void write_scores(const std::string& path, const ScoreSet& set);
// Adds the windows of `more`. Throws Error(Usage) when it is of another model, text, base or mode,
// scored a window that is there already, or when routing is cache-aware: what a window was routed
// to depends on the windows before it, so that parts are not one run. Of the circumstances the
// overlap of texts stays; hit rates of parts do not add up to those of a run.
void merge(ScoreSet& all, const ScoreSet& more, const std::string& path);

}  // namespace penstock::measure
