// What the tests of plans ask for.
#pragma once

#include "experts/plan.h"

namespace penstock::experts::test {

// The shape of 4 layers of 32 experts, 4 used, slots of about 1 MiB.
inline ArenaShape four_layers() {
  Geometry geometry;
  for (int l = 0; l < 4; ++l) {
    LayerGeometry layer;
    layer.n_expert = 32;
    layer.n_used = 4;
    for (MatrixGeometry* m : {&layer.gate, &layer.up, &layer.down}) m->bytes = m->stride = 344064;
    geometry.layers.push_back(layer);
  }
  return arena_shape(geometry, 512);
}

}  // namespace penstock::experts::test
