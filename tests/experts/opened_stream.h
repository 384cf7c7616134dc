// A stream over made-up expert files, opened as the program opens one.
#pragma once

#include <memory>

#include "experts/expert_files.h"
#include "experts/stream.h"

namespace penstock::experts::test {

struct Opened {
  Geometry geometry;
  std::shared_ptr<const StreamFiles> files;
  ArenaShape shape;
  std::unique_ptr<Stream> stream;
};

// With IoMode::Mmap there are no slots to share out.
inline Opened open_stream(const Geometry& geometry, uint64_t n_slots,
                          const StreamOptions& options = {}) {
  Opened s{geometry, open_expert_files(geometry, options.io), {}, nullptr};
  s.shape = arena_shape(geometry, s.files->alignment());
  if (options.io != IoMode::Mmap) {
    share_slots(s.shape, n_slots, options.depth, static_cast<uint64_t>(options.transit_slots()));
  }
  s.stream = make_stream(geometry, s.files, s.shape, options);
  return s;
}

}  // namespace penstock::experts::test
