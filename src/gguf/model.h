// A GGUF model on disk: one file or a set of shards, validated (spec/gguf-quants.md §1-3, checks
// R1-R17) and mapped read-only. Nothing in the file is trusted; every failure is an Error(Format)
// that names the file, the key or tensor, the offset and what to do, or an Error(Unsupported) for a
// valid file that this program will not run (a fork's private layout).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/file.h"
#include "base/hash.h"
#include "gguf/metadata.h"
#include "gguf/types.h"

namespace penstock::gguf {

struct Tensor {
  std::string name;
  TypeId type{};
  uint32_t n_dims = 0;
  std::array<uint64_t, 4> ne{1, 1, 1, 1};  // ne[0] is the row length; missing dimensions are 1
  uint32_t shard = 0;                      // index into Model::shards()
  uint64_t offset = 0;                     // from the start of the shard's file
  uint64_t row_bytes = 0;
  uint64_t bytes = 0;
  bool present = true;  // false: the range lies past the end of the file (OpenOptions)

  uint64_t n_elements() const noexcept { return ne[0] * ne[1] * ne[2] * ne[3]; }
  uint64_t rows() const noexcept { return ne[1] * ne[2] * ne[3]; }
  // A bank of experts [n_in, n_out, n_expert] is n_expert such slices, one after the other.
  uint64_t slice_bytes() const noexcept { return ne[1] * row_bytes; }
};

std::string shape_text(const Tensor& tensor);  // "[2560, 640, 512]"

// The routed experts' banks, by name: blk.N.ffn_{gate,up,down,gate_up}_exps.weight.
bool is_expert_bank(std::string_view tensor_name) noexcept;

struct Shard {
  std::string path;
  uint64_t file_bytes = 0;
  uint64_t alignment = 32;
  uint64_t header_bytes = 0;  // from the start to the end of the last tensor descriptor
  uint64_t data_start = 0;
  uint64_t n_tensors = 0;
};

struct OpenOptions {
  // Accept a file cut before or inside its expert banks ("dense-only": the experts come from a
  // pack). Such tensors are listed with present == false and have no data. Other tensors past the
  // end stay an error.
  bool allow_missing_experts = false;
};

class Model {
 public:
  // `path` is the file or any shard of a set; all shards are opened.
  static Model open(const std::string& path, const OpenOptions& options = {});
  // The same checks on bytes in memory, which must outlive the Model: one unsharded file, called
  // `path` in messages.
  static Model from_memory(std::span<const std::byte> bytes, const std::string& path,
                           const OpenOptions& options = {});

  Model(Model&&) noexcept = default;
  Model& operator=(Model&&) noexcept = default;

  const std::string& path() const noexcept { return path_; }  // as given
  std::span<const Shard> shards() const noexcept { return shards_; }
  uint64_t file_bytes() const noexcept;  // of all shards

  // The first shard's key-value section; later shards hold only split.* keys.
  const Metadata& metadata() const noexcept { return metadata_.front(); }
  std::string_view architecture() const { return metadata().get_string("general.architecture"); }
  // "qwen4exp" + "block_count" -> "qwen4exp.block_count"
  std::string arch_key(std::string_view suffix) const;

  std::span<const Tensor> tensors() const noexcept { return tensors_; }
  const Tensor* find(std::string_view name) const noexcept;
  const Tensor& require(std::string_view name) const;

  // The tensor's bytes in the mapping of its shard; throws Error(Format) if it is not present.
  // Starts are aligned to the shard's alignment only.
  const std::byte* data(const Tensor& tensor) const;
  std::span<const std::byte> bytes(const Tensor& tensor) const {
    return {data(tensor), tensor.bytes};
  }
  // madvise on the pages of the tensor (MADV_RANDOM, MADV_WILLNEED, ...).
  void advise(const Tensor& tensor, int advice) const noexcept;

  // SHA-256 over the header sections (start to the end of the last descriptor) of all shards.
  Sha256 header_id() const;
  // The identity used for packs, profiles, saved states and quality records: SHA-256 over the
  // header sections, then the first and last 4 KiB of every tensor. Tells fine-tunes of one shape
  // apart. Reads two pages per tensor.
  Sha256 model_id() const;
  // A dense-only file cannot compute that: the pack that holds its experts says what it is.
  void adopt_model_id(const Sha256& id) { adopted_id_ = id; }

 private:
  friend class Parser;
  Model() = default;

  std::string path_;
  std::optional<Sha256> adopted_id_;
  std::vector<Shard> shards_;
  std::vector<FileMap> maps_;
  std::vector<std::span<const std::byte>> views_;  // per shard: its whole file
  std::vector<Metadata> metadata_;                 // per shard
  std::vector<Tensor> tensors_;
  std::unordered_map<std::string_view, size_t> index_;
};

// R19, optional: reads the tensor's data and throws Error(Numeric) naming tensor and element of
// the first scale or float that is not finite.
void check_finite(const Model& model, const Tensor& tensor);

}  // namespace penstock::gguf
