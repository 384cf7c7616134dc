// Which experts a pruned model keeps (spec/streaming.md §H.2, docs/surgery.md): a JSON file with a
// canonical form, whose hash is the map's identity. A kept expert's place in its layer's ascending
// list is its id in the pruned model.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/hash.h"
#include "surgery/moe_layout.h"

namespace penstock::surgery {

struct KeptLayer {
  int layer = 0;               // the model's block index
  uint64_t n_expert = 0;       // before
  std::vector<uint32_t> kept;  // ids before, ascending
  bool operator==(const KeptLayer&) const = default;
};

struct KeepMap {
  Sha256 model_id{};  // of the model that is pruned
  std::string model_name;
  std::string method;             // "reap", ...; "given" for a list made elsewhere
  std::string rule;               // how many, in words: "256 per layer"
  uint64_t seed = 0;              // of method "random"
  Sha256 stats_id{};              // SHA-256 of the statistics file; zeros: none
  uint64_t tokens = 0;            // of the calibration text
  std::vector<KeptLayer> layers;  // by block index
  bool operator==(const KeepMap&) const = default;
};

// The one text of a map: keys sorted, a line per layer. The file holds exactly this.
std::string canonical_text(const KeepMap& map);
// SHA-256 of the canonical text.
Sha256 keep_map_id(const KeepMap& map);

// Throws Error(Io); Error(Format) naming the field and the layer when the file is no keep-map:
// fields missing or unknown, ids not ascending, twice or out of range.
KeepMap read_keep_map(const std::string& path);
void write_keep_map(const std::string& path, const KeepMap& map);

// Throws Error(Format) when the map is of other layers or expert counts, or keeps fewer experts
// than a token uses, or unequal numbers of routing groups. Of the model's identity: only with
// `model_id`.
void check_keep_map(const KeepMap& map, const std::string& path, std::span<const MoeLayer> layers,
                    const Sha256* model_id);

}  // namespace penstock::surgery
