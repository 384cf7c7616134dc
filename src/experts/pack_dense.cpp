// The dense-only GGUF: what stays in memory, without the experts that are in the pack
// (spec/streaming.md §B.3).
#include <algorithm>
#include <set>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "experts/pack_writer.h"
#include "gguf/writer.h"

namespace penstock::experts {
namespace {

constexpr uint64_t kPiece = uint64_t{4} << 20;

// The banks of the packed layers go, everything else stays.
std::vector<const gguf::Tensor*> kept_tensors(const gguf::Model& source, const Geometry& geometry) {
  std::set<std::string> packed;
  for (const LayerGeometry& layer : geometry.layers) {
    packed.insert(fmt::format("blk.{}.", layer.layer));
  }
  std::vector<const gguf::Tensor*> kept;
  for (const gguf::Tensor& tensor : source.tensors()) {
    const std::string block = tensor.name.substr(0, tensor.name.find('.', 4) + 1);
    if (!gguf::is_expert_bank(tensor.name) || !packed.contains(block)) kept.push_back(&tensor);
  }
  return kept;
}

}  // namespace

uint64_t dense_only_bytes(const gguf::Model& source, const Geometry& geometry) {
  uint64_t bytes = 0;
  for (const gguf::Shard& shard : source.shards()) bytes += shard.data_start;
  for (const gguf::Tensor* tensor : kept_tensors(source, geometry)) {
    bytes += tensor->bytes + source.shards()[0].alignment;
  }
  return bytes;
}

uint64_t write_dense_only(const gguf::Model& source, const Geometry& geometry,
                          const std::string& out, const PackProgress& progress) {
  gguf::Writer writer(out, {.alignment = source.shards()[0].alignment});
  for (const gguf::Entry& entry : source.metadata().entries()) {
    if (entry.key != "general.alignment" && !entry.key.starts_with("split.")) {
      writer.set_copy(entry);
    }
  }
  const auto dims = [](const gguf::Tensor& t) { return std::span(t.ne).first(t.n_dims); };
  const std::vector<const gguf::Tensor*> kept = kept_tensors(source, geometry);
  uint64_t total = 0;
  for (const gguf::Tensor* tensor : kept) {
    writer.add_tensor(tensor->name, tensor->type, dims(*tensor));
    total += tensor->bytes;
  }
  for (const gguf::Tensor& tensor : source.tensors()) {
    if (std::find(kept.begin(), kept.end(), &tensor) == kept.end()) {
      writer.add_absent_tensor(tensor.name, tensor.type, dims(tensor));
    }
  }
  writer.begin();
  std::vector<File> files;
  for (const gguf::Shard& shard : source.shards()) files.push_back(File::open_read(shard.path));
  std::vector<std::byte> buffer(kPiece);
  uint64_t done = 0;
  for (const gguf::Tensor* tensor : kept) {
    for (uint64_t at = 0; at < tensor->bytes; at += kPiece) {
      const std::span piece(buffer.data(), std::min(kPiece, tensor->bytes - at));
      files[tensor->shard].read_at(tensor->offset + at, piece);
      writer.append(piece);
      done += piece.size();
      if (progress) progress("dense weights", done, total);
    }
  }
  writer.finish();
  return writer.total_bytes();
}

}  // namespace penstock::experts
