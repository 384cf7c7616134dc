// Where the routed experts of a model lie on disk: read from the tensors, never assumed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gguf/types.h"

namespace penstock::experts {

// One of an expert's matrices, n_out rows of n_in. Expert e starts at offset + e * bytes.
struct MatrixGeometry {
  gguf::TypeId type{};
  int64_t n_in = 0;
  int64_t n_out = 0;
  uint64_t row_bytes = 0;
  uint64_t bytes = 0;   // of one expert's matrix (merged gate_up: see LayerGeometry)
  uint32_t shard = 0;   // index into Geometry::shards
  uint64_t offset = 0;  // of expert 0, in bytes from the start of the shard's file
  uint64_t stride = 0;  // distance between experts: bytes, or twice that in a merged tensor
};

// Checksums of a layer's records, by expert, to compare what was read with.
struct RecordSums {
  uint32_t kind = 0;  // Checksum, in pack_format.h
  std::vector<uint64_t> sums;
};

struct LayerGeometry {
  int layer = 0;  // the model's block index, for messages
  int n_expert = 0;
  int n_used = 0;
  bool merged = false;  // gate and up lie in one tensor: up.offset == gate.offset + gate.bytes
  // In a pack an expert's matrices share a record: this many bytes, padding included, from
  // gate.offset + e * record_bytes, read at once; the strides are equal to it. 0: each matrix lies
  // in its tensor.
  uint64_t record_bytes = 0;
  std::shared_ptr<const RecordSums> sums;  // null: reads are not checked
  MatrixGeometry gate, up, down;
  uint64_t expert_bytes() const noexcept { return gate.bytes + up.bytes + down.bytes; }
};

struct Geometry {
  std::vector<LayerGeometry> layers;  // the MoE layers in the order in which a token meets them
  std::vector<std::string> shards;    // file paths
};

// One expert's weights in memory; pointers may have any alignment.
struct ExpertData {
  const std::byte* gate = nullptr;
  const std::byte* up = nullptr;
  const std::byte* down = nullptr;
};

}  // namespace penstock::experts
