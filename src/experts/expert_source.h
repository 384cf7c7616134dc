// Where a run's experts are read from: the model's own tensors, or a pack that was made from them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "experts/geometry.h"
#include "experts/io.h"
#include "experts/options.h"
#include "gguf/model.h"

namespace penstock::experts {

// The pack in use; goes into the summary and the run record.
struct PackUse {
  std::string path;
  Sha256 model_id{};    // of the model it was made from
  uint32_t layout = 0;  // of rows in a record; 0: as in GGUF, with the numerics of direct mode
  uint32_t align = 0;
  int n_layers = 0;  // that are read from it
  uint64_t verify_every = 0;
  std::string overridden;  // why the pack is not the model's, if it was taken nevertheless
};

struct ExpertSource {
  Geometry geometry;  // what the stream reads
  std::shared_ptr<const StreamFiles> files;
  std::optional<PackUse> pack;
  std::vector<std::pair<std::string, FileStamp>> model_files;  // as they were when opened

  // Where the experts come from, one line for people.
  std::string describe() const;
  // The first of the model's files or the pack that was written to or cut since it was opened, and
  // how; empty when all are as they were. Replaced files stay readable and are not meant.
  std::string changed() const;
};

// `direct`: the experts' places in the model's files (and perhaps in those of a draft head, which
// stay where they are). Throws Error(Format) when the chosen pack is damaged or of another model,
// or when experts are neither in a pack nor in the file; Error(Usage) for checksums to verify
// without a pack.
ExpertSource open_expert_source(const gguf::Model& model, const Geometry& direct,
                                const StreamOptions& options);

// MODEL.xpk beside MODEL.gguf or beside the shards MODEL-00001-of-00003.gguf: what `pack` writes
// without -o and what a run looks at first.
std::string default_pack_path(const gguf::Model& model);

}  // namespace penstock::experts
