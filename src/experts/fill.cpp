#include "experts/fill.h"

#include <algorithm>
#include <utility>

#include "experts/residency.h"

namespace penstock::experts {
namespace {

// How many slots of each class a fill may take.
std::vector<uint64_t> room_of(const Geometry& geometry, const ArenaShape& shape) {
  std::vector<uint64_t> largest_layer(shape.classes.size(), 0);
  for (size_t l = 0; l < geometry.layers.size(); ++l) {
    uint64_t& most = largest_layer[shape.class_of[l]];
    most = std::max(most, static_cast<uint64_t>(geometry.layers[l].n_expert));
  }
  std::vector<uint64_t> room;
  for (size_t c = 0; c < shape.classes.size(); ++c) {
    const uint64_t slots = shape.classes[c].slots;
    const uint64_t hot = Residency::hot_cap(slots, largest_layer[c]);
    room.push_back(hot == 0 || shape.holds_all() ? slots : hot);
  }
  return room;
}

}  // namespace

std::vector<FillItem> fill_list(const Geometry& geometry, const ArenaShape& shape,
                                std::span<const float> shares) {
  std::vector<std::pair<float, FillItem>> ranked;
  size_t at = 0;
  for (size_t l = 0; l < geometry.layers.size(); ++l) {
    for (int32_t e = 0; e < geometry.layers[l].n_expert; ++e, ++at) {
      if (shares[at] > 0) ranked.push_back({shares[at], {static_cast<int32_t>(l), e}});
    }
  }
  std::stable_sort(ranked.begin(), ranked.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<uint64_t> room = room_of(geometry, shape);
  std::vector<FillItem> list;
  for (const auto& [share, item] : ranked) {
    uint64_t& left = room[shape.class_of[static_cast<size_t>(item.layer)]];
    if (left == 0) continue;
    --left;
    list.push_back(item);
  }
  constexpr size_t kBatch = 64;  // the most used come first, but the disk is read forwards
  for (size_t i = 0; i < list.size(); i += kBatch) {
    const auto begin = list.begin() + static_cast<std::ptrdiff_t>(i);
    const auto n = static_cast<std::ptrdiff_t>(std::min(kBatch, list.size() - i));
    std::sort(begin, begin + n, [&](const FillItem& a, const FillItem& b) {
      const auto place = [&](const FillItem& item) {
        const MatrixGeometry& m = geometry.layers[static_cast<size_t>(item.layer)].gate;
        return std::pair(m.shard, m.offset + static_cast<uint64_t>(item.expert) * m.stride);
      };
      return place(a) < place(b);
    });
  }
  return list;
}

}  // namespace penstock::experts
