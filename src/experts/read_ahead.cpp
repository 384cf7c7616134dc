#include "experts/read_ahead.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace penstock::experts {
namespace {

bool contains(std::span<const int32_t> list, int32_t value) noexcept {
  return std::find(list.begin(), list.end(), value) != list.end();
}

}  // namespace

int ahead_width(int distance, int n_used) noexcept {
  return distance == 1 ? n_used + 2 : std::max(1, n_used / 2);
}

int ahead_reads(int distance) noexcept {
  return distance == 1 ? 8 : 2;
}

int ahead_at_once(uint64_t expert_bytes, int depth) noexcept {
  constexpr uint64_t kBytes = 4'500'000;
  const auto most = static_cast<uint64_t>(std::max(1, depth / 2));
  return static_cast<int>(
      std::clamp<uint64_t>(kBytes / std::max<uint64_t>(1, expert_bytes), 1, most));
}

void rank_ahead(std::span<const float> logits, int width, std::vector<int32_t>* out) {
  const auto n = static_cast<int>(logits.size());
  width = std::min(width, n);
  out->clear();
  if (width < 1) return;
  const auto value = [&](int32_t e) {
    const float z = logits[static_cast<size_t>(e)];
    return std::isnan(z) ? -std::numeric_limits<float>::infinity() : z;
  };
  // The list stays sorted; an equal later value goes behind.
  for (int32_t e = 0; e < n; ++e) {
    const float v = value(e);
    const bool full = static_cast<int>(out->size()) == width;
    if (full && !(v > value(out->back()))) continue;
    if (!full) out->push_back(e);
    size_t at = out->size() - 1;
    for (; at > 0 && v > value((*out)[at - 1]); --at) (*out)[at] = (*out)[at - 1];
    (*out)[at] = e;
  }
}

AheadMeter::AheadMeter(size_t n_layers, size_t most_used)
    : most_used_(most_used),
      most_ranked_(most_used + 2),
      previous_(n_layers * most_used),
      n_previous_(n_layers, 0) {
  for (size_t d = 0; d < kMostAhead; ++d) {
    measures_[d].resize(n_layers);
    predictions_[d].resize(n_layers);
    ranked_[d].resize(n_layers * most_ranked_);
  }
}

uint64_t AheadMeter::memory_bytes(size_t n_layers, size_t most_used) noexcept {
  return n_layers *
         (kMostAhead * (sizeof(AheadMeasures) + sizeof(Prediction) + (most_used + 2) * 4) +
          (most_used + 1) * sizeof(int32_t));
}

void AheadMeter::predicted(int layer, int distance, std::span<const int32_t> ranked, int width) {
  const auto d = static_cast<size_t>(distance - 1);
  const size_t n = std::min(ranked.size(), most_ranked_);
  predictions_[d][static_cast<size_t>(layer)] = {static_cast<int>(n), width};
  std::copy_n(
      ranked.begin(), n,
      ranked_[d].begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(layer) * most_ranked_));
}

void AheadMeter::routed(int layer, std::span<const int32_t> ids, std::span<const uint8_t> missing) {
  const auto l = static_cast<size_t>(layer);
  const auto k = ids.size();
  for (size_t d = 0; d < kMostAhead; ++d) {
    Prediction& prediction = predictions_[d][l];
    if (prediction.count == 0) continue;
    const std::span<const int32_t> ranked{ranked_[d].data() + l * most_ranked_,
                                          static_cast<size_t>(prediction.count)};
    const auto top = ranked.first(std::min(ranked.size(), k));
    const auto read = ranked.first(std::min(ranked.size(), static_cast<size_t>(prediction.width)));
    AheadMeasures& m = measures_[d][l];
    uint64_t found = 0;
    for (size_t i = 0; i < k; ++i) {
      found += contains(top, ids[i]) ? 1 : 0;
      m.missing += missing[i];
      m.covered += missing[i] != 0 && contains(read, ids[i]) ? 1 : 0;
    }
    m.add(k, found);
    prediction = {};
  }
  if (const auto before = previous(layer); !before.empty()) {
    uint64_t found = 0;
    for (const int32_t id : ids) found += contains(before, id) ? 1 : 0;
    prev_.add(k, found);
  }
  std::copy(ids.begin(), ids.end(), previous_.begin() + static_cast<std::ptrdiff_t>(at(layer)));
  n_previous_[l] = static_cast<int32_t>(k);
}

void AheadMeter::fresh(std::span<const int32_t> ids, std::span<const int32_t> ranked) {
  uint64_t found = 0;
  for (const int32_t id : ids) found += contains(ranked, id) ? 1 : 0;
  fresh_.add(ids.size(), found);
}

void AheadMeter::used(int layer, int distance, bool late) noexcept {
  AheadMeasures& m = of(layer, distance);
  ++m.used;
  m.late += late ? 1 : 0;
}

std::span<const int32_t> AheadMeter::previous(int layer) const noexcept {
  return {previous_.data() + at(layer),
          static_cast<size_t>(n_previous_[static_cast<size_t>(layer)])};
}

AheadMeasures AheadMeter::total(int distance) const noexcept {
  AheadMeasures sum;
  for (const AheadMeasures& m : by_layer(distance)) sum += m;
  return sum;
}

bool AheadGovernor::active() const noexcept {
  switch (stage_) {
    case Stage::WarmUp:
      return true;
    case Stage::Trial:
      return window_is_on();
    case Stage::Term:
      return helps_;
  }
  return true;
}

int AheadGovernor::stage_length() const noexcept {
  switch (stage_) {
    case Stage::WarmUp:
      return kWarmUp;
    case Stage::Trial:
      return (trials_ == 0 ? kFirst : kLater).trial;
    case Stage::Term:
      return (trials_ == 1 ? kFirst : kLater).term;
  }
  return 0;
}

void AheadGovernor::step(int rows, uint64_t wall_ns) noexcept {
  if (stage_ == Stage::Trial) {
    const size_t on = window_is_on() ? 1 : 0;
    ns_[on] += wall_ns;
    rows_[on] += static_cast<uint64_t>(rows);
  }
  tokens_ += rows;
  if (tokens_ < stage_length()) return;
  tokens_ = 0;
  if (stage_ != Stage::Trial) {
    stage_ = Stage::Trial;
    ns_ = {};
    rows_ = {};
    return;
  }
  stage_ = Stage::Term;
  ++trials_;
  with_ns_ = rows_[1] == 0 ? 0 : static_cast<double>(ns_[1]) / static_cast<double>(rows_[1]);
  without_ns_ = rows_[0] == 0 ? 0 : static_cast<double>(ns_[0]) / static_cast<double>(rows_[0]);
  helps_ = with_ns_ < without_ns_;
}

}  // namespace penstock::experts
