// What calibration measured of every routed expert (spec/streaming.md §H.1, docs/surgery.md). Sums
// are exact (exact_sum.h): they depend on the windows of text that were seen, not on their order,
// on how many ran together, or on how a run was split or resumed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/hash.h"
#include "surgery/exact_sum.h"

namespace penstock::gguf {
class Model;
}

namespace penstock::surgery {

// Over the tokens of all windows. p: router probability; g: the weight applied; f(x): the expert's
// output before weighting; a = ||f(x)||_2.
struct ExpertSums {
  uint64_t n = 0;          // tokens that selected it
  uint64_t n_windows = 0;  // windows in which a token did: what a prompt as long reads it for
  ExactSum p;              // over all tokens, selected or not: the router's mass
  ExactSum p_selected;     // where selected
  ExactSum g;
  ExactSum a;
  ExactSum ga;
  ExactSum ga2;       // (g a)^2
  float max_abs = 0;  // the largest |f(x)_i|

  // REAP saliency (arXiv 2510.13999): the mean of g * a over the tokens routed to it; 0 if none.
  double reap() const noexcept { return n == 0 ? 0 : ga.value() / static_cast<double>(n); }
  bool operator==(const ExpertSums&) const = default;
};

struct LayerStats {
  int layer = 0;  // the model's block index
  int n_used = 0;
  std::vector<ExpertSums> experts;
  bool operator==(const LayerStats&) const = default;
};

// A text file that windows were taken from.
struct CorpusPart {
  std::string name;     // the file's, without its folders
  Sha256 tokens_id{};   // over all its token ids, 32-bit little-endian
  uint64_t tokens = 0;  // of the windows seen
  bool operator==(const CorpusPart&) const = default;
};

struct ExpertStats {
  Sha256 model_id{};
  std::string model_name;
  std::string precision;       // "fast" or "exact"
  uint64_t window_tokens = 0;  // of a full window
  uint64_t windows = 0;
  uint64_t tokens = 0;
  std::vector<CorpusPart> corpus;
  std::vector<LayerStats> layers;
};

// Throws Error(Io); Error(Format) naming the field when the file is no statistics or makes no
// sense.
ExpertStats read_stats(const std::string& path);
// Throws Error(Usage) when the statistics are of another model: another identity, other layers or
// expert counts.
void check_stats(const ExpertStats& stats, const std::string& path, const gguf::Model& model);

}  // namespace penstock::surgery
