// Runs text through a model and sums up what its experts do (spec/streaming.md §H.1): windows in
// groups, layer by layer, so that an expert is read once per group. Routing is exact.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "engine/windows.h"
#include "models/observer.h"
#include "surgery/calibration.h"
#include "surgery/corpus.h"

namespace penstock::surgery {

// Adds what it sees of windows to a Calibration, bit for bit the same in whatever groups they run.
class Collector final : public models::ComputeObserver {
 public:
  // `importance`: sums of the input columns too. `calibration` may hold sums of other windows.
  // `stop`: asked at every layer; true ends the group by Error(Cancelled), half added.
  Collector(const experts::Geometry& geometry, bool importance, Calibration* calibration,
            std::function<bool()> stop = {});
  ~Collector() override;

  // These windows come next, together; the first row of each is left out if it is a BOS.
  struct Next {
    uint64_t index;
    int64_t rows;
  };
  void begin(std::span<const Next> windows, bool skip_first);
  void product(const ops::Matrix& matrix, const ops::Rows& input) override;
  void experts(const models::ExpertsSeen& seen, ThreadPool& pool) override;

  // Bytes that the sums of a model's input columns take, experts' and dense.
  static uint64_t importance_bytes(const gguf::Model& model);

 private:
  struct Group {
    uint64_t index = 0;          // of the window
    int64_t first = 0, end = 0;  // rows
  };
  ColumnSums& columns(const std::string& name, int64_t n_in, int64_t n_mat);
  void add_scores(const models::ExpertsSeen& seen, ThreadPool& pool, size_t layer);
  void add_pairs(const models::ExpertsSeen& seen, ThreadPool& pool, size_t layer);
  void sort_pairs(const models::ExpertsSeen& seen);
  // Throws Error(Numeric) naming the window and the position of a row in it.
  [[noreturn]] void refuse(int block, const Group& group, int64_t row, std::string_view what) const;
  int64_t largest_row(const models::ExpertsSeen& seen, const Group& group, size_t expert) const;

  Calibration& calibration_;
  bool importance_;
  std::function<bool()> stop_;
  std::vector<size_t> layer_of_block_;
  std::vector<Group> groups_;
  int64_t total_rows_ = 0;
  bool skip_first_ = false;
  std::vector<float> probabilities_;      // [rows][n_expert]
  std::vector<double> norms_;             // by pair
  std::vector<float> largest_;            // by pair
  std::vector<int32_t> sorted_, starts_;  // pairs by expert
};

struct CalibrateOptions {
  bool importance = false;
  uint32_t shard = 0, n_shards = 1;
  std::optional<double> until_stable = {};  // share of experts to keep: stop when both halves agree
  double agreement = 0.95;
  std::string checkpoint = {};  // written now and then, and read at the start; empty: none
  bool restart = false;         // a checkpoint that is there is not read
};

struct CalibrateProgress {
  uint64_t windows = 0, n_windows = 0;  // of the shard
  uint64_t resumed = 0;                 // windows that a checkpoint held
  uint64_t tokens = 0;                  // of this run
  double seconds = 0;
  uint64_t bytes_read = 0;
  double agreement = 0;  // of the two halves, when looked at
};

uint64_t windows_of_shard(const Corpus& corpus, const CalibrateOptions& options);

// Throws Error(Numeric) naming layer, window and position when a value is not finite or too large
// for a sum (then the position of the largest); Usage
// when the checkpoint is of something else. `stop` is asked at every layer and ends it early: what
// the group of windows at hand has added is dropped, and what is returned is what the checkpoint
// holds then. With importance, whose sums are too many to be kept twice, that is the last one that
// was written; without, all windows before the group.
Calibration calibrate(engine::Runtime& runtime, const Corpus& corpus,
                      const CalibrateOptions& options,
                      const std::function<void(const CalibrateProgress&)>& progress,
                      const std::function<bool()>& stop);

}  // namespace penstock::surgery
