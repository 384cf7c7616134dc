// Hyper-parameters of one architecture from a file's metadata, each within bounds (a file is not
// trusted; nothing is allocated by a number that was not checked).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "gguf/model.h"
#include "ops/elementwise.h"

namespace penstock::models {

inline constexpr int kMostLayers = 4096;
inline constexpr int kMostWidth = 1 << 17;  // of any vector of a layer, and of the vocabulary's kin
inline constexpr int kMostVocab = 1 << 24;
inline constexpr int kMostExperts = 1 << 16;

class Params {
 public:
  explicit Params(const gguf::Model& file) : file_(file) {}

  const gguf::Model& file() const noexcept { return file_; }
  bool has(std::string_view key) const;
  // Throws Error(Format) naming file, key, value and bounds.
  int count(std::string_view key, int64_t min, int64_t max) const;
  int count_or(std::string_view key, int fallback, int64_t min, int64_t max) const;
  // One number, or one per block.
  std::vector<int> per_layer(std::string_view key, int n, int64_t min, int64_t max) const;
  double real(std::string_view key, double min, double max) const;
  double real_or(std::string_view key, double fallback, double min, double max) const;
  std::vector<uint64_t> u64_array(std::string_view key, size_t n) const;
  // Which blocks are recurrent: attention.recurrent_layers, or all but every
  // full_attention_interval-th; the blocks from n_trunk on never are.
  std::vector<bool> recurrent_layers(int n_blocks, int n_trunk) const;
  ops::RopeScaling rope_scaling() const;

  [[noreturn]] void refuse(std::string_view key, const std::string& why) const;

 private:
  int checked(const std::string& key, int64_t value, int64_t min, int64_t max) const;
  const gguf::Model& file_;
};

}  // namespace penstock::models
