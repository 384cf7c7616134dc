// How well routing decisions could be served from memory: hits of a least-recently-used cache per
// layer, as published for real models, to set a synthetic router or a benchmark beside them.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace penstock::surgery {

// Collects the selections of decoded tokens. A use is a hit if the expert was among the `slots`
// most recently used ones of its layer when the token came to the layer; all caches start empty.
class ReuseMeter {
 public:
  ReuseMeter(int n_layer, int n_expert);

  // One token's selection at a layer, in rank order.
  void add(int layer, std::span<const int32_t> ids);

  double hit_rate(int slots) const noexcept;  // of all uses so far, 0..1
  // Uses that repeat a selection of the same layer's previous token, 0..1.
  double repeat_rate() const noexcept;
  double mean_distinct() const noexcept;  // experts touched per layer
  uint64_t uses() const noexcept { return uses_; }

 private:
  struct Layer {
    std::vector<int32_t> recent;    // most recently used first
    std::vector<int32_t> previous;  // the last token's selection
  };
  std::vector<Layer> layers_;
  std::vector<uint64_t> hits_at_;  // [depth]: uses found at that depth of the recency list
  std::vector<int32_t> depth_;     // scratch: place of each expert in `recent`, -1 if absent
  uint64_t uses_ = 0;
  uint64_t repeats_ = 0;
  uint64_t repeat_uses_ = 0;  // uses that had a previous token
};

struct PublishedPoint {
  int slots = 0;
  double hit_rate = 0;
};
struct PublishedCurve {
  std::string_view model;
  int n_expert = 0;
  int n_used = 0;
  int n_tokens = 0;        // decoded from empty caches; 0: not told
  double repeat_rate = 0;  // 0: not told
  std::vector<PublishedPoint> points;
  std::string_view source;
};

std::span<const PublishedCurve> published_curves();

}  // namespace penstock::surgery
