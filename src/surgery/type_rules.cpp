#include "surgery/type_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "base/error.h"
#include "models/dense_convert.h"
#include "quant/codec.h"
#include "surgery/tensor_list.h"

namespace penstock::surgery {
namespace {

using gguf::Tensor;
using gguf::TypeId;
using Json = nlohmann::ordered_json;

bool contains(std::string_view text, std::string_view part) noexcept {
  return text.find(part) != std::string_view::npos;
}

std::string writable_types() {
  std::string names;
  for (const gguf::TypeInfo& info : gguf::kTypes) {
    if (quant::can_encode(info.id))
      names += fmt::format("{}{}", names.empty() ? "" : ", ", info.name);
  }
  return names;
}

std::optional<TypeId> of_class(const TypeRules& rules, const Tensor& tensor, TensorClass kind) {
  switch (kind) {
    case TensorClass::Experts:
      return rules.experts;
    case TensorClass::Dense:
      if (tensor.type == TypeId::F32 && tensor.n_elements() < kSmallMatrix) return std::nullopt;
      return rules.dense;
    case TensorClass::Embedding:
      return rules.embedding;
    case TensorClass::Head:
      return rules.head;
    case TensorClass::Table:
      return rules.table;
    case TensorClass::Kept:
      break;
  }
  return std::nullopt;
}

// general.file_type of a file whose weights are mostly of this type (spec/gguf-quants.md §4).
std::optional<uint32_t> file_type(TypeId type) noexcept {
  switch (type) {
    case TypeId::F32:
      return 0;
    case TypeId::F16:
      return 1;
    case TypeId::Q4_0:
      return 2;
    case TypeId::Q4_1:
      return 3;
    case TypeId::Q8_0:
      return 7;
    case TypeId::Q5_0:
      return 8;
    case TypeId::Q5_1:
      return 9;
    case TypeId::Q2_K:
      return 10;
    case TypeId::Q3_K:
      return 12;
    case TypeId::Q4_K:
      return 15;
    case TypeId::Q5_K:
      return 17;
    case TypeId::Q6_K:
      return 18;
    case TypeId::IQ2_XXS:
      return 19;
    case TypeId::IQ2_XS:
      return 20;
    case TypeId::IQ3_XXS:
      return 23;
    case TypeId::IQ1_S:
      return 24;
    case TypeId::IQ4_NL:
      return 25;
    case TypeId::IQ3_S:
      return 26;
    case TypeId::IQ2_S:
      return 28;
    case TypeId::IQ4_XS:
      return 30;
    case TypeId::IQ1_M:
      return 31;
    case TypeId::BF16:
      return 32;
    case TypeId::MXFP4:
      return 38;
    case TypeId::Q2_0:
      return 41;
    default:
      return std::nullopt;
  }
}

void set_file_type(RewritePlan* plan) {
  std::map<TypeId, uint64_t> weights;
  for (const OutputTensor& tensor : plan->tensors) weights[tensor.type] += tensor.n_elements();
  const auto most =
      std::max_element(weights.begin(), weights.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  const std::optional<uint32_t> label = file_type(most->first);
  if (label) {
    plan->set_key("general.file_type", *label);
  } else {
    plan->remove_key("general.file_type");
  }
  plan->set_key("general.quantization_version", uint32_t{2});
}

}  // namespace

std::string_view class_name(TensorClass kind) noexcept {
  constexpr std::string_view kNames[kTensorClasses] = {
      "routed experts", "dense matrices", "token embedding", "output head", "n-gram table", "kept"};
  return kNames[static_cast<size_t>(kind)];
}

std::string_view kept_rule() noexcept {
  return "vectors, norms, routers and gates (ffn_gate_inp*), convolutions and integers keep their "
         "types, and so do F32 matrices of fewer than 262144 weights unless --keep-type names them";
}

TensorClass tensor_class(const Tensor& tensor) noexcept {
  const std::string_view name = tensor.name;
  if (tensor.n_dims < 2 || !name.ends_with(".weight") || contains(name, "ffn_gate_inp") ||
      contains(name, "norm") || contains(name, "conv1d") || contains(name, "exp_probs") ||
      (tensor.type >= TypeId::I8 && tensor.type <= TypeId::F64)) {
    return TensorClass::Kept;
  }
  if (gguf::is_expert_bank(name)) return TensorClass::Experts;
  if (name == "token_embd.weight" || name.ends_with(".nextn.embed_tokens.weight")) {
    return TensorClass::Embedding;
  }
  if (name == "output.weight" || name.ends_with(".nextn.shared_head_head.weight")) {
    return TensorClass::Head;
  }
  if (name == "per_layer_token_embd.weight") return TensorClass::Table;
  return TensorClass::Dense;
}

TypeId parse_writable(const std::string& flag, const std::string& name) {
  TypeId type{};
  if (!parse_type(name, &type)) {
    fail(ErrorKind::Usage, "{} {}: there is no such type; those that can be written: {}", flag,
         name, writable_types());
  }
  if (!quant::can_encode(type)) {
    fail(ErrorKind::Usage, "{} {}: this type can be read but not written; those that can: {}", flag,
         name, writable_types());
  }
  return type;
}

std::pair<std::string, TypeId> parse_pattern(const std::string& text) {
  const size_t at = text.rfind('=');
  if (at == std::string::npos || at == 0) {
    fail(ErrorKind::Usage, "--keep-type {}: write PATTERN=TYPE, as blk.*.ffn_down_exps.weight=Q4_0",
         text);
  }
  return {text.substr(0, at), parse_writable("--keep-type", text.substr(at + 1))};
}

TypeId type_for_row(TypeId type, uint64_t row) noexcept {
  const auto holds = [row](TypeId t) { return row % gguf::type_info(t).block_elems == 0; };
  if (holds(type)) return type;
  TypeId other = TypeId::Q8_0;
  if (type == TypeId::Q4_K) other = TypeId::Q5_0;
  if (type == TypeId::Q5_K) other = TypeId::Q5_1;
  if (type == TypeId::Q2_0) other = TypeId::Q4_0;
  return holds(other) ? other : TypeId::F16;
}

std::vector<Fallback> apply_types(const TypeRules& rules, RewritePlan* plan) {
  std::map<std::tuple<TypeId, TypeId, uint64_t>, uint64_t> fallbacks;
  std::vector<bool> met(rules.patterns.size(), false);
  for (OutputTensor& tensor : plan->tensors) {
    const Tensor& source = *tensor.source;
    const TensorClass kind = tensor_class(source);
    if (kind == TensorClass::Kept) continue;
    std::optional<TypeId> wanted = of_class(rules, source, kind);
    for (size_t i = 0; i < rules.patterns.size(); ++i) {
      if (!models::glob_matches(rules.patterns[i].first, source.name)) continue;
      met[i] = true;
      wanted = rules.patterns[i].second;
    }
    if (!wanted) continue;
    const TypeId type = type_for_row(*wanted, source.ne[0]);
    if (type != *wanted) ++fallbacks[{*wanted, type, source.ne[0]}];
    if (type == source.type) continue;
    if (!quant::can_decode(source.type)) {
      fail(ErrorKind::Unsupported, "{}: tensor {} has type {}, which cannot be read here",
           plan->source->path(), source.name, gguf::type_name(source.type));
    }
    tensor.type = type;
  }
  for (size_t i = 0; i < met.size(); ++i) {
    if (!met[i]) {
      fail(ErrorKind::Usage, "--keep-type {}={}: no tensor of that name may be changed ({})",
           rules.patterns[i].first, gguf::type_name(rules.patterns[i].second), kept_rule());
    }
  }
  std::vector<Fallback> out;
  for (const auto& [what, count] : fallbacks) {
    out.push_back({std::get<0>(what), std::get<1>(what), std::get<2>(what), count});
  }
  return out;
}

std::vector<TypeChange> type_changes(const RewritePlan& plan) {
  std::map<std::tuple<TensorClass, TypeId, TypeId>, TypeChange> changes;
  for (const OutputTensor& tensor : plan.tensors) {
    if (!tensor.encoded()) continue;
    const TensorClass kind = tensor_class(*tensor.source);
    TypeChange& change = changes[{kind, tensor.source->type, tensor.type}];
    change.kind = kind;
    change.from = tensor.source->type;
    change.to = tensor.type;
    ++change.n_tensors;
    change.n_elements += tensor.n_elements();
  }
  std::vector<TypeChange> out;
  for (const auto& [key, change] : changes) out.push_back(change);
  return out;
}

double bits_per_weight(TypeId type) noexcept {
  const gguf::TypeInfo& info = gguf::type_info(type);
  return 8.0 * info.block_bytes / info.block_elems;
}

bool is_float(TypeId type) noexcept {
  return type == TypeId::F32 || type == TypeId::F16 || type == TypeId::BF16;
}

void record_requantise(const RequantiseNote& note, RewritePlan* plan) {
  Json changes = Json::array();
  for (const TypeChange& change : type_changes(*plan)) {
    changes.push_back({{"class", class_name(change.kind)},
                       {"from", gguf::type_name(change.from)},
                       {"from_bpw", bits_per_weight(change.from)},
                       {"to", gguf::type_name(change.to)},
                       {"to_bpw", bits_per_weight(change.to)},
                       {"tensors", change.n_tensors}});
  }
  Json step = {{"changes", changes},
               {"positive_scales", note.positive_scales},
               {"imatrix_sha256", note.imatrix_sha256.empty() ? Json() : Json(note.imatrix_sha256)},
               {"source_model_id", note.source_model_id},
               {"source_name", note.source_name},
               {"tool", note.tool}};
  std::vector<std::string> steps = plan->strings("penstock.requantise.steps");
  steps.push_back(step.dump(-1, ' ', false, Json::error_handler_t::replace));
  plan->set_key("penstock.requantise.steps", steps);
  set_file_type(plan);
  if (note.imatrix_name.empty()) return;
  plan->set_key("quantize.imatrix.file", note.imatrix_name);
  plan->set_key("quantize.imatrix.entries_count", note.imatrix_entries);
  plan->set_key("quantize.imatrix.chunks_count", note.imatrix_chunks);
  if (note.imatrix_datasets.empty()) {
    plan->remove_key("quantize.imatrix.dataset");
  } else {
    plan->set_key("quantize.imatrix.dataset",
                  fmt::format("{}", fmt::join(note.imatrix_datasets, ", ")));
  }
}

}  // namespace penstock::surgery
