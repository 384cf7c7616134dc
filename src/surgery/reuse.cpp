#include "surgery/reuse.h"

#include <algorithm>

namespace penstock::surgery {

ReuseMeter::ReuseMeter(int n_layer, int n_expert)
    : layers_(static_cast<size_t>(n_layer)),
      hits_at_(static_cast<size_t>(n_expert)),
      depth_(static_cast<size_t>(n_expert), -1) {}

void ReuseMeter::add(int layer, std::span<const int32_t> ids) {
  Layer& l = layers_[static_cast<size_t>(layer)];
  for (size_t i = 0; i < l.recent.size(); ++i) {
    depth_[static_cast<size_t>(l.recent[i])] = static_cast<int32_t>(i);
  }
  for (const int32_t id : ids) {
    const int32_t depth = depth_[static_cast<size_t>(id)];
    if (depth >= 0) ++hits_at_[static_cast<size_t>(depth)];
    if (!l.previous.empty()) {
      ++repeat_uses_;
      repeats_ += std::find(l.previous.begin(), l.previous.end(), id) != l.previous.end() ? 1 : 0;
    }
  }
  uses_ += ids.size();
  std::vector<int32_t> next(ids.begin(), ids.end());
  for (const int32_t id : l.recent) {
    depth_[static_cast<size_t>(id)] = -1;
    if (std::find(ids.begin(), ids.end(), id) == ids.end()) next.push_back(id);
  }
  l.recent = std::move(next);
  l.previous.assign(ids.begin(), ids.end());
}

double ReuseMeter::hit_rate(int slots) const noexcept {
  if (uses_ == 0) return 0;
  uint64_t hits = 0;
  for (size_t depth = 0; depth < hits_at_.size() && static_cast<int>(depth) < slots; ++depth) {
    hits += hits_at_[depth];
  }
  return static_cast<double>(hits) / static_cast<double>(uses_);
}

double ReuseMeter::repeat_rate() const noexcept {
  return repeat_uses_ == 0 ? 0 : static_cast<double>(repeats_) / static_cast<double>(repeat_uses_);
}

double ReuseMeter::mean_distinct() const noexcept {
  if (layers_.empty()) return 0;
  size_t touched = 0;
  for (const Layer& l : layers_) touched += l.recent.size();
  return static_cast<double>(touched) / static_cast<double>(layers_.size());
}

std::span<const PublishedCurve> published_curves() {
  static const std::vector<PublishedCurve> curves = {
      {"Qwen3.8-Flash-Next",
       512,
       10,
       300,
       0,
       {{93, 0.435}, {186, 0.620}, {279, 0.720}, {372, 0.789}, {512, 0.850}},
       "kekzl/imp pull request 2061: replay of a 300-token generation on real text"},
      {"Qwen3-30B-A3B", 128, 8, 0, 0.45, {{11, 0.56}}, "53 to 59 % at 11 slots"},
  };
  return curves;
}

}  // namespace penstock::surgery
