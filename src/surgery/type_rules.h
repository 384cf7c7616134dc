// Requantising as an edit of a rewrite plan: which tensors get which type, and what happens where a
// row is no whole number of its blocks (docs/surgery.md).
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "surgery/rewrite_plan.h"

namespace penstock::surgery {

enum class TensorClass {
  Experts,    // the routed experts' banks, draft blocks' among them
  Dense,      // all other matrices of the blocks
  Embedding,  // token_embd
  Head,       // output
  Table,      // the n-gram table
  Kept,       // never changed: vectors, norms, routers and gates, convolutions, integers
};
inline constexpr int kTensorClasses = 6;
std::string_view class_name(TensorClass kind) noexcept;
TensorClass tensor_class(const gguf::Tensor& tensor) noexcept;
// What is never changed, in a sentence.
std::string_view kept_rule() noexcept;

struct TypeRules {
  std::optional<gguf::TypeId> experts, dense, embedding, head, table;
  // By name, as models::glob_matches does; the last that fits decides, before all of the above.
  std::vector<std::pair<std::string, gguf::TypeId>> patterns;

  bool empty() const noexcept {
    return !experts && !dense && !embedding && !head && !table && patterns.empty();
  }
};

// "PATTERN=TYPE". Throws Error(Usage).
std::pair<std::string, gguf::TypeId> parse_pattern(const std::string& text);
// A type that can be written. Throws Error(Usage) listing those that can.
gguf::TypeId parse_writable(const std::string& flag, const std::string& name);

// The type that rows of this length get where `type` is wanted: itself if they are whole blocks of
// it; else Q5_0 for Q4_K, Q5_1 for Q5_K, Q8_0 for Q6_K, Q4_0 for Q2_0; and F16 for rows that are no
// multiple of 32.
gguf::TypeId type_for_row(gguf::TypeId type, uint64_t row) noexcept;

// Tensors whose rows the type that was asked for does not hold.
struct Fallback {
  gguf::TypeId wanted{}, got{};
  uint64_t row = 0;
  uint64_t n_tensors = 0;
};

// Gives the plan's tensors their types. Dense matrices of F32 below kSmallMatrix elements keep it
// unless a pattern names them. Throws Error(Unsupported) naming the tensor when its type cannot be
// read; Error(Usage) when a pattern fits no tensor that may be changed.
inline constexpr uint64_t kSmallMatrix = uint64_t{1} << 18;
std::vector<Fallback> apply_types(const TypeRules& rules, RewritePlan* plan);

// What a run of the plan changes: tensors, weights and bits by class, old and new type.
struct TypeChange {
  TensorClass kind{};
  gguf::TypeId from{}, to{};
  uint64_t n_tensors = 0;
  uint64_t n_elements = 0;
};
std::vector<TypeChange> type_changes(const RewritePlan& plan);

double bits_per_weight(gguf::TypeId type) noexcept;
// F32, F16 and BF16 are; anything else has lost something already.
bool is_float(gguf::TypeId type) noexcept;

struct RequantiseNote {
  std::string tool;
  std::string source_model_id;
  std::string source_name;
  bool positive_scales = false;
  std::string imatrix_name;  // the file's, without folders; empty: none
  std::string imatrix_sha256;
  std::vector<std::string> imatrix_datasets;
  uint32_t imatrix_entries = 0;
  uint32_t imatrix_chunks = 0;
};

// Adds the step to penstock.requantise.steps (strings, JSON), and sets general.file_type to the
// label of the type that most weights have, general.quantization_version, and quantize.imatrix.* as
// llama.cpp's quantiser does.
void record_requantise(const RequantiseNote& note, RewritePlan* plan);

}  // namespace penstock::surgery
