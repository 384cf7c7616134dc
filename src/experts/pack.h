// An expert pack, opened and checked: what it holds, where, and from which model it was made.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "experts/options.h"
#include "experts/pack_format.h"

namespace penstock::experts {

class Pack {
 public:
  // Checks header and layer table (docs/pack.md); reads neither records nor checksums. Throws
  // Error(Io), Error(Format) or Error(Unsupported).
  static Pack open(const std::string& path);

  const std::string& path() const noexcept { return file_.path(); }
  const PackHeader& header() const noexcept { return header_; }
  std::span<const PackLayer> layers() const noexcept { return layers_; }
  const PackLayer* find(int layer) const noexcept;

  // The layer as it is read from the pack, which is file `shard` of the geometry.
  LayerGeometry geometry(const PackLayer& layer, uint32_t shard) const;
  // All layers, the pack being the only file.
  Geometry geometry() const;

  // By layer of layers(), then expert. Both throw Error(Format) when the header's checksum of them
  // differs.
  std::vector<RecordSums> read_sums() const;
  std::string read_metadata() const;  // UTF-8 JSON

 private:
  File file_;
  PackHeader header_;
  std::vector<PackLayer> layers_;
};

using PackProgress = std::function<void(std::string_view phase, uint64_t done, uint64_t total)>;

struct BadRecord {
  int layer = 0;
  int expert = 0;
  uint64_t offset = 0;
  std::string what;  // "its checksum differs", or why it could not be read
};

struct PackCheck {
  uint64_t n_records = 0;
  uint64_t bytes = 0;
  uint64_t n_bad = 0;
  std::vector<BadRecord> bad;  // the first of them
  double seconds = 0;
  std::string io;  // how they were read
};

// Reads every record and compares its checksum; checks the lists as well (throws Error(Format)).
PackCheck verify_pack(const Pack& pack, const StreamOptions& options, const PackProgress& progress);

}  // namespace penstock::experts
