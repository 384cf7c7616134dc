#include "experts/pack_identity.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/file.h"

namespace penstock::experts {
namespace {

constexpr uint64_t kPiece = 4096;
constexpr Sha256 kNone{};

class Canonical {
 public:
  template <typename T>
  void number(T value) {
    hash_.update(&value, sizeof value);
  }
  void bytes(std::span<const std::byte> bytes) { hash_.update(bytes.data(), bytes.size()); }
  void text(std::string_view text) {
    number<uint64_t>(text.size());
    hash_.update(text.data(), text.size());
  }
  Sha256 finish() { return hash_.finish(); }

 private:
  Sha256Stream hash_;
};

// Where a tensor lies and in how many files is no property of the model.
bool belongs_to_layout(std::string_view key) {
  return key == "general.alignment" || key.starts_with("split.");
}

Sha256 dense_id(const gguf::Model& model) {
  Canonical hash;
  std::vector<const gguf::Entry*> entries;
  for (const gguf::Entry& entry : model.metadata().entries()) {
    if (!belongs_to_layout(entry.key)) entries.push_back(&entry);
  }
  std::sort(entries.begin(), entries.end(), [](auto* a, auto* b) { return a->key < b->key; });
  hash.number<uint64_t>(entries.size());
  for (const gguf::Entry* entry : entries) {
    hash.text(entry->key);
    hash.number(static_cast<uint32_t>(entry->type));
    hash.number(static_cast<uint32_t>(entry->element));
    hash.number<uint64_t>(entry->count);
    hash.number<uint64_t>(entry->bytes.size());
    hash.bytes(entry->bytes);
  }
  std::vector<const gguf::Tensor*> tensors;
  for (const gguf::Tensor& tensor : model.tensors()) tensors.push_back(&tensor);
  std::sort(tensors.begin(), tensors.end(), [](auto* a, auto* b) { return a->name < b->name; });
  hash.number<uint64_t>(tensors.size());
  for (const gguf::Tensor* tensor : tensors) {
    hash.text(tensor->name);
    hash.number(static_cast<uint32_t>(tensor->type));
    hash.number(tensor->n_dims);
    for (uint32_t d = 0; d < tensor->n_dims; ++d) hash.number<uint64_t>(tensor->ne[d]);
    if (gguf::is_expert_bank(tensor->name)) continue;
    const std::span<const std::byte> bytes = model.bytes(*tensor);
    const uint64_t piece = std::min(kPiece, tensor->bytes);
    hash.bytes(bytes.first(piece));
    hash.bytes(bytes.last(piece));
  }
  return hash.finish();
}

std::string short_id(const Sha256& id) {
  return hex(id).substr(0, 16);
}

}  // namespace

ModelIdentity identify(const gguf::Model& model) {
  ModelIdentity identity;
  for (const gguf::Tensor& tensor : model.tensors()) identity.whole &= tensor.present;
  // Two pages of each tensor are looked at: without this advice the kernel reads megabytes around.
  for (const gguf::Tensor& tensor : model.tensors()) model.advise(tensor, MADV_RANDOM);
  identity.header_id = model.header_id();
  if (identity.whole) identity.model_id = model.model_id();
  identity.dense_id = dense_id(model);
  for (const gguf::Tensor& tensor : model.tensors()) model.advise(tensor, MADV_NORMAL);
  return identity;
}

std::string pack_mismatch(const PackHeader& header, const ModelIdentity& identity) {
  if (!identity.whole) {
    if (header.dense_id == identity.dense_id) return {};
    if (header.dense_id == kNone) {
      return fmt::format(
          "the pack of version {}.{} does not say which dense-only file belongs to it, so only the "
          "whole model can be run with it",
          header.major, header.minor);
    }
    return fmt::format(
        "it was made from another model: the dense weights it belongs to have id {}, these have {}",
        short_id(header.dense_id), short_id(identity.dense_id));
  }
  if (header.source_header_id != identity.header_id) {
    return fmt::format(
        "it was made from another file: the metadata and tensor list have id {} there and {} here",
        short_id(header.source_header_id), short_id(identity.header_id));
  }
  if (header.model_id != identity.model_id) {
    return fmt::format(
        "it was made from another model of the same shape: the weights have id {} there and {} "
        "here",
        short_id(header.model_id), short_id(identity.model_id));
  }
  return {};
}

Sha256 quant_recipe_id(const gguf::Metadata& metadata) {
  if (!metadata.has("penstock.requantise.steps")) return {};
  Sha256Stream recipe;
  for (const std::string_view step : metadata.get_string_array("penstock.requantise.steps")) {
    recipe.update(step.data(), step.size());
  }
  return recipe.finish();
}

Sha256 content_id(const gguf::Model& model) {
  constexpr size_t kBuffer = size_t{4} << 20;
  Sha256Stream hash;
  std::vector<std::byte> buffer(kBuffer);
  for (const gguf::Shard& shard : model.shards()) {
    const File file = File::open_read(shard.path);
    ::posix_fadvise(file.fd(), 0, 0, POSIX_FADV_SEQUENTIAL);
    for (uint64_t at = 0; at < shard.file_bytes; at += kBuffer) {
      const size_t n = std::min<uint64_t>(kBuffer, shard.file_bytes - at);
      file.read_at(at, {buffer.data(), n});
      hash.update(buffer.data(), n);
      ::posix_fadvise(file.fd(), static_cast<off_t>(at), static_cast<off_t>(n),
                      POSIX_FADV_DONTNEED);
    }
  }
  return hash.finish();
}

}  // namespace penstock::experts
