// Dense matrices held in another type than the file's (--dense-convert). Lossy, hence only where
// asked for and always reported.
//
// What can be converted is a matrix that is used as it stands in the file. Not token_embd.weight,
// whose rows are read from the file one by one (tied to the output too); not the routers, which are
// held as F32 since a small error selects other experts; not fused tensors that are taken apart by
// rows; not vectors, convolutions or experts.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "gguf/model.h"
#include "models/dense_report.h"

namespace penstock::models {

struct ConvertRule {
  std::string pattern;  // of a tensor's whole name; * and ? as in file names
  gguf::TypeId type{};
};

// "blk.*.attn_*=Q8_0"; the type in any case. Throws Error(Usage) when it is not of that form or the
// type cannot be written or computed with.
ConvertRule parse_convert_rule(std::string_view text);

// `*`: any characters, none included; `?`: exactly one.
bool glob_matches(std::string_view pattern, std::string_view name) noexcept;

class Conversions {
 public:
  Conversions() = default;
  explicit Conversions(const std::vector<ConvertRule>& rules);

  // The type a matrix is to be held in, by the last rule that matches; its own where none does.
  // Throws Error(Usage) naming the tensor when its rows do not fit the type's blocks or its type
  // cannot be decoded.
  gguf::TypeId type_for(const gguf::Model& file, const gguf::Tensor& tensor);
  // After all matrices were asked for: throws Error(Usage) naming the rule that matches none.
  void check(const gguf::Model& file) const;

  std::span<const ConvertedTensors> report() const noexcept { return report_; }
  // The type that a tensor of the model's file is held in.
  gguf::TypeId held_type(const gguf::Tensor& tensor) const;
  // Every converted tensor with its type: what the logits depend on beside the file. Empty: none.
  const std::string& identity() const noexcept { return identity_; }

 private:
  std::vector<ConvertedTensors> report_;
  std::vector<uint64_t> matched_;  // tensors, the last rule that matches or not
  std::unordered_map<std::string, gguf::TypeId> held_;  // what was converted
  std::string identity_;
};

// Rows [first, first + count) of the tensor, which `from` points at, in another type. Throws
// Error(Numeric) naming tensor and row when a value is not finite.
void convert_rows(const gguf::Tensor& tensor, gguf::TypeId type, uint64_t first, uint64_t count,
                  const std::byte* from, std::byte* to);

}  // namespace penstock::models
