// Routed experts through the stream, and the shared expert, which is computed while the routed ones
// are being read (spec/qwen4exp.md §5, spec/moe-architectures.md §1.4-1.5).
#pragma once

#include <utility>
#include <vector>

#include "models/binder.h"
#include "models/run.h"

namespace penstock::models {

class Mixer;

class MoeBlock {
 public:
  // `geometry`: the block's expert banks go to its end, at index().
  MoeBlock(Binder& binder, const Config& config, int block, uint32_t first_shard,
           experts::Geometry* geometry);
  MoeBlock(const MoeBlock&) = delete;
  MoeBlock& operator=(const MoeBlock&) = delete;

  int index() const noexcept { return index_; }
  // A block that follows, and what reads its input from the residual.
  struct Follower {
    const MoeBlock* moe;
    const Mixer* mixer;
  };
  // The next ones, whose selections are predicted while this block's experts are read. They live
  // as long as this block.
  void foresee(std::vector<Follower> followers) { followers_ = std::move(followers); }
  void extend(Extents* extents) const noexcept;
  // x: the block's input, y: its output, [rows][n_embd]; `position` is the first row's, for taps.
  void forward(Run& run, const ops::Rows& x, const ops::Rows& y, int64_t position) const;

 private:
  experts::Predictor predictor(const Run& run) const;
  void predict(Run& run, experts::Predictor from, int64_t n_rows) const;
  void shared(Run& run, int64_t n_rows) const;
  void add_shared(Run& run, const ops::Rows& y) const;  // after shared()
  void sort_pairs(Run& run, const experts::Routing& routing, int64_t n_rows) const;
  void compute(Run& run, std::span<const experts::ReadyExpert> batch) const;

  int block_, index_ = 0;
  experts::LayerGeometry bank_;
  experts::RouteRule rule_;
  ops::Matrix router_;
  bool several_streams_ = false;
  std::vector<Follower> followers_;
  ops::Matrix shared_gate_, shared_up_, shared_down_, shared_scale_;
};

}  // namespace penstock::models
