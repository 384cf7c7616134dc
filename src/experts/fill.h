// Which experts are read before they are asked for because a profile counts them most
// (spec/streaming.md §D.5).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "experts/geometry.h"
#include "experts/shape.h"

namespace penstock::experts {

struct FillItem {
  int32_t layer = 0;  // index of the layer
  int32_t expert = 0;
};

// The experts of the largest shares, in the order in which they are read: the most used first, in
// file order within groups. As many of each class as may be hot, the other slots stay free for what
// is asked for; as many as there are slots where none can be hot or every expert has one. Experts
// without a share are left out. `shares`: by layer and expert, in the order of the geometry.
std::vector<FillItem> fill_list(const Geometry& geometry, const ArenaShape& shape,
                                std::span<const float> shares);

}  // namespace penstock::experts
