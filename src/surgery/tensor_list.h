// Published tensor lists ("allocations"): one tensor a line with name, type and shape, in whatever
// order and punctuation: `blk.0.attn_q.weight Q4_K [2560, 12288]`, `name: 2560 x 12288, type q4_K`,
// or what `penstock inspect --tensors` prints. A name may be a pattern with `*` for any characters,
// as `blk.*.ffn_down_exps.weight`: tensors not listed by their own names take the last that fits.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "gguf/types.h"

namespace penstock::surgery {

struct ListedTensor {
  std::string name;
  gguf::TypeId type{};
  std::vector<uint64_t> dims;  // empty when the line has none
};

// The type that the list gives a tensor; null if none.
const gguf::TypeId* listed_type(const std::vector<ListedTensor>& list, const std::string& name);

// Lines without a tensor name and a type are skipped; a text without any tensor is an Error(Format)
// naming `source`, and so is a tensor listed twice with different types.
std::vector<ListedTensor> parse_tensor_list(std::string_view text, const std::string& source);

// "q4_K", "GGML_TYPE_Q4_K", "Q4_K": the type; false if there is none of that name.
bool parse_type(std::string_view text, gguf::TypeId* out);

}  // namespace penstock::surgery
