// The state of a calibration: exact sums that can be written, read, resumed and merged
// (docs/surgery.md gives the file's layout). expert_stats.h is what is made of it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "surgery/expert_stats.h"
#include "surgery/imatrix.h"

namespace penstock::surgery {

// Sums of squares of a weight's input columns.
struct ColumnSums {
  uint64_t n_in = 0;
  std::vector<uint64_t> counts;  // [n_mat]: tokens
  std::vector<ExactSum> sums;    // [n_mat][n_in]
  bool operator==(const ColumnSums&) const = default;
};

// Windows index, index + of, index + 2 of, ... of the corpus: the first `done` of them were seen.
struct ShardSeen {
  uint32_t index = 0;
  uint32_t of = 1;
  uint64_t done = 0;
  bool operator==(const ShardSeen&) const = default;
};

struct Calibration {
  Sha256 model_id{};
  std::string model_name;
  std::string precision;
  uint64_t window_tokens = 0;
  uint64_t n_windows = 0;  // of the whole corpus
  uint64_t tokens = 0;     // seen; those that begin a window artificially (BOS) are not counted
  Sha256 corpus_id{};      // SHA-256 over all token ids, 32-bit little-endian
  std::vector<CorpusPart> corpus;
  std::vector<ShardSeen> shards;
  // By the parity of the window's index, so that two halves can be compared.
  std::vector<LayerStats> even, odd;
  // By the weight's name; of gate and up, which share their input, by gate's. Empty when importance
  // was not asked for.
  std::map<std::string, ColumnSums, std::less<>> columns;

  uint64_t windows() const noexcept;  // seen
  bool complete() const noexcept { return windows() == n_windows; }
  ExpertStats stats() const;
  // For all weights that share an input; throws Error(Usage) if importance was not collected.
  Imatrix importance() const;
};

Calibration read_calibration(const std::string& path);
void write_calibration(const std::string& path, const Calibration& calibration);

// Adds `more` to `all`: exactly what one run over the windows of both gives. Throws Error(Usage)
// when they are of another model, corpus, window or precision, or saw the same windows.
void merge(Calibration& all, const Calibration& more, const std::string& path);

// The experts that `keep` of a layer's would be by REAP, compared between the two halves: the mean
// over the layers of |A and B| / |A or B|.
double halves_agreement(const Calibration& calibration, double keep_share);

}  // namespace penstock::surgery
