// What a rewritten model will be, before a byte is written: its tensors, each made from one of the
// source's by leaving experts out, by encoding to another type, by both or by neither, and how its
// metadata differs. Pruning and requantising are edits of such a plan; rewrite.h carries it out.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "gguf/model.h"

namespace penstock::surgery {

struct OutputTensor {
  const gguf::Tensor* source = nullptr;
  gguf::TypeId type{};         // the source's: its bytes are copied
  std::vector<uint32_t> kept;  // places along the last dimension, ascending; empty: all

  bool encoded() const noexcept { return type != source->type; }
  uint64_t n_places() const noexcept;  // along the last dimension, after
  std::vector<uint64_t> dims() const;
  uint64_t n_elements() const noexcept;
  uint64_t bytes() const noexcept;
  uint64_t source_bytes() const noexcept;  // of what is kept, as it is in the source
};

using MetadataValue =
    std::variant<uint32_t, std::string, std::vector<uint32_t>, std::vector<std::string>>;

struct RewritePlan {
  const gguf::Model* source = nullptr;
  std::vector<OutputTensor> tensors;  // in the order of the source's
  // Keys with another value than in the source or none there, and keys that are left out.
  std::map<std::string, MetadataValue, std::less<>> set;
  std::vector<std::string> removed;

  void set_key(const std::string& key, MetadataValue value);
  void remove_key(const std::string& key);
  // As the finished file will have them: strings of a string array, or none.
  std::vector<std::string> strings(std::string_view key) const;

  uint64_t data_bytes() const noexcept;  // of all tensors, without padding
  uint64_t n_elements() const noexcept;
};

// The model as it is.
RewritePlan copy_plan(const gguf::Model& model);

}  // namespace penstock::surgery
