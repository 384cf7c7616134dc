// What is in a GGUF file, and would it run here: read from the descriptors, never from labels.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "gguf/model.h"
#include "quant/matmul.h"

namespace penstock::surgery {

enum class Role {
  Embedding,
  Head,
  NgramTable,
  ExpertGate,
  ExpertUp,
  ExpertDown,
  ExpertGateUp,
  Router,
  SharedExpert,
  DenseFfn,
  Attention,
  Indexer,
  DeltaNet,
  HyperConnection,
  NgramBlock,  // the projections that read the n-gram table
  Norm,
  DraftBlock,  // all tensors of multi-token-prediction blocks
  Other,
};

const char* role_name(Role role) noexcept;
bool is_expert_role(Role role) noexcept;

struct TypeTotal {
  gguf::TypeId type{};
  uint64_t tensors = 0;
  uint64_t bytes = 0;
  uint64_t elements = 0;
  double bits_per_weight() const noexcept {
    return elements == 0 ? 0.0 : 8.0 * static_cast<double>(bytes) / static_cast<double>(elements);
  }
};

struct RoleTotal {
  Role role{};
  uint64_t tensors = 0;
  uint64_t bytes = 0;
  uint64_t elements = 0;
  std::vector<TypeTotal> types;  // largest first
};

// Layers whose experts have the same number, shapes and types.
struct ExpertClass {
  std::vector<int> layers;
  uint64_t n_expert = 0;
  uint64_t n_used = 0;
  uint64_t n_embd = 0;
  uint64_t n_ff = 0;
  bool merged = false;  // gate and up in one tensor
  gguf::TypeId gate{}, up{}, down{};
  uint64_t expert_bytes = 0;
  uint64_t total_bytes = 0;        // of all experts of all these layers
  std::string layer_text() const;  // "0-2, 5, 7-9"
};

struct Issue {
  bool blocks = false;  // the model cannot run here; otherwise it is slower than it could be
  std::string text;
};

struct Inspection {
  std::string architecture;
  int64_t n_layer = 0;  // block_count, draft blocks included
  int64_t n_draft = 0;
  std::vector<Role> tensor_roles;    // parallel to Model::tensors()
  std::vector<TypeTotal> types;      // whole file, largest first
  std::vector<RoleTotal> roles;      // in the order of Role; only those present
  std::vector<ExpertClass> experts;  // of the trunk, in the order of their first layers
  uint64_t n_parameters = 0;
  uint64_t tensor_bytes = 0;
  uint64_t expert_bytes = 0;            // all routed experts of the trunk
  uint64_t expert_bytes_per_token = 0;  // n_used of every layer
  uint64_t ngram_bytes = 0;             // read row by row
  uint64_t draft_bytes = 0;             // loaded only for drafting
  uint64_t dense_bytes = 0;             // the rest: resident
  std::vector<Issue> issues;
  bool runs() const noexcept;
};

struct InspectOptions {
  std::vector<std::string_view> known_architectures;
  quant::Isa isa = quant::Isa::Scalar;
};

Inspection inspect(const gguf::Model& model, const InspectOptions& options);

// One metadata value for people: strings quoted and cut, long arrays abbreviated.
std::string value_text(const gguf::Metadata& metadata, const gguf::Entry& entry,
                       size_t max_elements = 6, size_t max_chars = 100);

}  // namespace penstock::surgery
