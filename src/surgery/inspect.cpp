#include "surgery/inspect.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <tuple>

#include "base/error.h"

namespace penstock::surgery {
namespace {

using gguf::Tensor;
using gguf::TypeId;

constexpr const char* kRoleNames[] = {"token embedding",
                                      "output head",
                                      "n-gram table",
                                      "routed experts, gate",
                                      "routed experts, up",
                                      "routed experts, down",
                                      "routed experts, gate+up",
                                      "router",
                                      "shared expert",
                                      "dense feed-forward",
                                      "attention",
                                      "sparse-attention indexer",
                                      "gated delta net",
                                      "hyper-connections",
                                      "n-gram block",
                                      "norms",
                                      "draft block",
                                      "other"};

// "blk.12.attn_q.weight" -> 12 and "attn_q.weight"; -1 and the whole name for global tensors.
std::pair<int64_t, std::string_view> split_name(std::string_view name) noexcept {
  if (!name.starts_with("blk.")) return {-1, name};
  int64_t layer = -1;
  const char* const end = name.data() + name.size();
  const auto [at, error] = std::from_chars(name.data() + 4, end, layer);
  if (error != std::errc() || layer < 0 || at == end || *at != '.') return {-1, name};
  return {layer, std::string_view(at + 1, static_cast<size_t>(end - at - 1))};
}

bool contains(std::string_view text, std::string_view part) noexcept {
  return text.find(part) != std::string_view::npos;
}

// `recurrent`: the block holds a delta net, so attn_qkv and attn_gate are that net's projections.
Role classify(std::string_view part, bool recurrent) noexcept {
  if (part.starts_with("token_embd.")) return Role::Embedding;
  if (part.starts_with("output.")) return Role::Head;
  if (part.starts_with("per_layer_token_embd.")) return Role::NgramTable;
  if (contains(part, "ffn_gate_up_exps.")) return Role::ExpertGateUp;
  if (contains(part, "ffn_gate_exps.")) return Role::ExpertGate;
  if (contains(part, "ffn_up_exps.")) return Role::ExpertUp;
  if (contains(part, "ffn_down_exps.")) return Role::ExpertDown;
  if (contains(part, "_shexp.")) return Role::SharedExpert;
  if (part.starts_with("ffn_gate_inp.") || part.starts_with("exp_probs_b.")) return Role::Router;
  if (part.starts_with("hc_") || part.starts_with("output_hc_")) return Role::HyperConnection;
  if (part.starts_with("ple_")) return Role::NgramBlock;
  if (part.starts_with("indexer.")) return Role::Indexer;
  if (part.starts_with("ssm_")) return Role::DeltaNet;
  if (contains(part, "norm")) return Role::Norm;
  if (recurrent && (part.starts_with("attn_qkv.") || part.starts_with("attn_gate."))) {
    return Role::DeltaNet;
  }
  if (part.starts_with("attn_")) return Role::Attention;
  if (part.starts_with("ffn_")) return Role::DenseFfn;
  return Role::Other;
}

void add(TypeTotal* total, const Tensor& tensor) {
  ++total->tensors;
  total->bytes += tensor.bytes;
  total->elements += tensor.n_elements();
}

std::vector<TypeTotal> by_size(const std::map<TypeId, TypeTotal>& totals) {
  std::vector<TypeTotal> out;
  for (const auto& [type, total] : totals) out.push_back(total);
  std::stable_sort(out.begin(), out.end(),
                   [](const TypeTotal& a, const TypeTotal& b) { return a.bytes > b.bytes; });
  return out;
}

class Inspector {
 public:
  Inspector(const gguf::Model& model, const InspectOptions& options)
      : model_(model), options_(options) {}

  Inspection run() {
    read_architecture();
    assign_roles();
    count();
    find_experts();
    find_issues();
    return std::move(out_);
  }

 private:
  void read_architecture();
  void assign_roles();
  void count();
  void find_experts();
  void add_expert_layer(int64_t layer);
  void find_issues();
  void find_missing_kernels();
  void find_foreign_features();
  void find_padded_experts();

  const Tensor* bank(int64_t layer, const char* kind) const {
    return model_.find(fmt::format("blk.{}.ffn_{}_exps.weight", layer, kind));
  }
  // A hyper-parameter for the report: wrong types are the model's business, here they are absent.
  std::optional<uint64_t> number(std::string_view suffix, int64_t layer = 0) const {
    try {
      const std::string key = model_.arch_key(suffix);
      const gguf::Entry* entry = model_.metadata().find(key);
      if (entry == nullptr) return std::nullopt;
      if (!entry->is_array()) return model_.metadata().get_u64(key);
      const auto values = model_.metadata().get_u64_array(key);
      const auto at = static_cast<size_t>(layer);
      return at < values.size() ? std::optional(values[at]) : std::nullopt;
    } catch (const Error&) {
      return std::nullopt;
    }
  }
  void block(std::string text) { out_.issues.push_back({true, std::move(text)}); }

  const gguf::Model& model_;
  const InspectOptions& options_;
  Inspection out_;
};

void Inspector::read_architecture() {
  if (model_.metadata().has("general.architecture")) {
    out_.architecture = std::string(model_.architecture());
  }
  const uint64_t layers = number("block_count").value_or(0);
  const uint64_t draft = number("nextn_predict_layers").value_or(0);
  // Printed and compared only, but a hostile number should not look like one either.
  if (layers <= 1000000) out_.n_layer = static_cast<int64_t>(layers);
  if (draft <= layers) out_.n_draft = static_cast<int64_t>(draft);
}

void Inspector::assign_roles() {
  const int64_t trunk = out_.n_layer - out_.n_draft;
  for (const Tensor& tensor : model_.tensors()) {
    const auto [layer, part] = split_name(tensor.name);
    const bool draft = contains(part, "nextn.") || (out_.n_draft > 0 && layer >= trunk);
    const bool recurrent =
        layer >= 0 && (model_.find(fmt::format("blk.{}.ssm_a", layer)) != nullptr ||
                       model_.find(fmt::format("blk.{}.ssm_conv1d.weight", layer)) != nullptr);
    out_.tensor_roles.push_back(draft ? Role::DraftBlock : classify(part, recurrent));
  }
}

void Inspector::count() {
  std::map<TypeId, TypeTotal> types;
  std::map<Role, std::map<TypeId, TypeTotal>> roles;
  for (size_t i = 0; i < model_.tensors().size(); ++i) {
    const Tensor& tensor = model_.tensors()[i];
    const Role role = out_.tensor_roles[i];
    for (TypeTotal* total : {&types[tensor.type], &roles[role][tensor.type]}) {
      total->type = tensor.type;
      add(total, tensor);
    }
    out_.n_parameters += tensor.n_elements();
    out_.tensor_bytes += tensor.bytes;
    if (is_expert_role(role)) {
      out_.expert_bytes += tensor.bytes;
    } else if (role == Role::NgramTable) {
      out_.ngram_bytes += tensor.bytes;
    } else if (role == Role::DraftBlock) {
      out_.draft_bytes += tensor.bytes;
    } else {
      out_.dense_bytes += tensor.bytes;
    }
  }
  out_.types = by_size(types);
  for (const auto& [role, totals] : roles) {
    RoleTotal total;
    total.role = role;
    total.types = by_size(totals);
    for (const TypeTotal& type : total.types) {
      total.tensors += type.tensors;
      total.bytes += type.bytes;
      total.elements += type.elements;
    }
    out_.roles.push_back(std::move(total));
  }
}

void Inspector::find_experts() {
  std::vector<int64_t> layers;
  for (size_t i = 0; i < model_.tensors().size(); ++i) {
    if (out_.tensor_roles[i] == Role::ExpertDown) {
      layers.push_back(split_name(model_.tensors()[i].name).first);
    }
  }
  std::sort(layers.begin(), layers.end());
  for (const int64_t layer : layers) add_expert_layer(layer);
}

void Inspector::add_expert_layer(int64_t layer) {
  const Tensor* merged = bank(layer, "gate_up");
  const Tensor* gate = merged != nullptr ? merged : bank(layer, "gate");
  const Tensor* up = merged != nullptr ? merged : bank(layer, "up");
  const Tensor* down = bank(layer, "down");
  if (gate == nullptr || up == nullptr || down == nullptr) return;  // named by find_issues()
  ExpertClass c;
  c.n_expert = down->ne[2];
  c.n_used = number("expert_used_count", layer).value_or(0);
  c.n_embd = gate->ne[0];
  c.n_ff = merged != nullptr ? merged->ne[1] / 2 : gate->ne[1];
  c.merged = merged != nullptr;
  c.gate = gate->type;
  c.up = up->type;
  c.down = down->type;
  c.expert_bytes = gate->slice_bytes() + (c.merged ? 0 : up->slice_bytes()) + down->slice_bytes();
  const auto same = [&](const ExpertClass& other) {
    const auto key = [](const ExpertClass& x) {
      return std::tie(x.n_expert, x.n_used, x.n_embd, x.n_ff, x.merged, x.gate, x.up, x.down,
                      x.expert_bytes);
    };
    return key(other) == key(c);
  };
  auto it = std::find_if(out_.experts.begin(), out_.experts.end(), same);
  if (it == out_.experts.end()) it = out_.experts.insert(it, std::move(c));
  it->layers.push_back(static_cast<int>(layer));
  it->total_bytes += it->expert_bytes * it->n_expert;
  out_.expert_bytes_per_token += it->expert_bytes * it->n_used;
}

// Tensors grouped by type, for one line each: "IQ1_M (34 tensors, first blk.0.ffn_up_exps.weight)".
std::vector<std::string> group(const std::vector<const Tensor*>& tensors) {
  std::map<TypeId, std::vector<const Tensor*>> groups;
  for (const Tensor* tensor : tensors) groups[tensor->type].push_back(tensor);
  std::vector<std::string> lines;
  for (const auto& [type, members] : groups) {
    lines.push_back(fmt::format("{} ({} tensor{}, first {})", gguf::type_name(type), members.size(),
                                members.size() == 1 ? "" : "s",
                                gguf::printable(members.front()->name)));
  }
  return lines;
}

void Inspector::find_missing_kernels() {
  std::vector<const Tensor*> missing;
  std::vector<const Tensor*> slow;
  for (size_t i = 0; i < model_.tensors().size(); ++i) {
    const Tensor& tensor = model_.tensors()[i];
    const Role role = out_.tensor_roles[i];
    if (!quant::has_kernel(tensor.type)) {
      missing.push_back(&tensor);
    } else if (tensor.ne[1] > 1 && role != Role::Embedding && role != Role::NgramTable &&
               options_.isa != quant::Isa::Scalar &&
               !quant::has_native_kernel(tensor.type, options_.isa)) {
      slow.push_back(&tensor);
    }
  }
  for (const std::string& line : group(missing)) {
    block(fmt::format("type {} has no kernel in this program", line));
  }
  for (const std::string& line : group(slow)) {
    out_.issues.push_back({false, fmt::format("type {} runs on scalar kernels on {}", line,
                                              quant::isa_name(options_.isa))});
  }
}

void Inspector::find_foreign_features() {
  for (const gguf::Entry& entry : model_.metadata().entries()) {
    if (contains(entry.key, "prism.hadamard")) {
      block(fmt::format("key {}: the weights are rotated (Walsh-Hadamard) and would give garbage",
                        gguf::printable(entry.key)));
      break;
    }
  }
  uint64_t scales = 0;
  const Tensor* first = nullptr;
  uint64_t single = 0;
  const Tensor* first_single = nullptr;
  for (const Tensor& tensor : model_.tensors()) {
    if (contains(tensor.name, "prism.hadamard")) {
      block(
          fmt::format("tensor {}: the weights are rotated (Walsh-Hadamard) and would give garbage",
                      gguf::printable(tensor.name)));
    }
    if (tensor.name.ends_with(".scale") || tensor.name.ends_with(".input_scale")) {
      if (scales++ == 0) first = &tensor;
    }
    // "blk.0.ffn_gate.7.weight", one tensor per expert: files of 2023.
    const auto [layer, part] = split_name(tensor.name);
    if (layer >= 0 && part.starts_with("ffn_") && std::count(part.begin(), part.end(), '.') == 2 &&
        part.ends_with(".weight")) {
      if (single++ == 0) first_single = &tensor;
    }
  }
  if (scales > 0) {
    block(fmt::format("{} scale companions of NVFP4 weights (first {}), which are not applied",
                      scales, gguf::printable(first->name)));
  }
  if (single > 0) {
    block(fmt::format("{} tensors of single experts (first {}): an old layout, merge them first",
                      single, gguf::printable(first_single->name)));
  }
}

void Inspector::find_padded_experts() {
  for (const Tensor& down : model_.tensors()) {
    const auto [layer, part] = split_name(down.name);
    if (part != "ffn_down_exps.weight") continue;
    const Tensor* merged = bank(layer, "gate_up");
    const Tensor* gate = bank(layer, "gate");
    if (merged == nullptr && (gate == nullptr || bank(layer, "up") == nullptr)) {
      block(fmt::format("layer {} has {} but not its gate and up experts", layer, down.name));
      continue;
    }
    const uint64_t n_ff = merged != nullptr ? merged->ne[1] / 2 : gate->ne[1];
    if (down.ne[0] != n_ff) {
      block(fmt::format("{} has rows of {} for an expert width of {}: a padded private layout",
                        down.name, down.ne[0], n_ff));
    }
    const Tensor* router = model_.find(fmt::format("blk.{}.ffn_gate_inp.weight", layer));
    if (router != nullptr && router->ne[1] != down.ne[2]) {
      block(fmt::format("{} has {} experts, but the router of layer {} chooses among {}", down.name,
                        down.ne[2], layer, router->ne[1]));
    }
  }
}

void Inspector::find_issues() {
  const auto& known = options_.known_architectures;
  if (out_.architecture.empty()) {
    block("key general.architecture is missing: this is not a whole model");
  } else if (std::find(known.begin(), known.end(), out_.architecture) == known.end()) {
    block(fmt::format("architecture {} is not known to this program ({} are)",
                      gguf::printable(out_.architecture), fmt::join(known, ", ")));
  }
  find_foreign_features();
  find_missing_kernels();
  find_padded_experts();
  uint64_t absent = 0;
  for (const Tensor& tensor : model_.tensors()) absent += tensor.present ? 0 : 1;
  if (absent > 0) block(fmt::format("the file ends before the data of {} expert tensors", absent));
}

template <typename T>
std::string list_text(const std::vector<T>& values, uint64_t count, size_t max_elements) {
  std::string out = "[";
  for (size_t i = 0; i < values.size() && i < max_elements; ++i) {
    out += fmt::format("{}{}", i == 0 ? "" : ", ", values[i]);
  }
  if (count > max_elements) out += fmt::format(", ... {} in all", count);
  return out + "]";
}

std::string quoted(std::string_view text, size_t max_chars) {
  std::string out = "\"";
  for (const char c : text.substr(0, max_chars)) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n') {
      out += "\\n";
    } else if (c == '"' || c == '\\') {
      out += fmt::format("\\{}", c);
    } else if (byte < 0x20 || byte == 0x7F) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  // A multi-byte character cut in the middle would garble the terminal.
  if (text.size() > max_chars) {
    while (out.size() > 1 && (static_cast<unsigned char>(out.back()) & 0x80) != 0) out.pop_back();
    return out + fmt::format("...\" ({} bytes)", text.size());
  }
  return out + "\"";
}

}  // namespace

const char* role_name(Role role) noexcept {
  return kRoleNames[static_cast<size_t>(role)];
}

bool is_expert_role(Role role) noexcept {
  return role == Role::ExpertGate || role == Role::ExpertUp || role == Role::ExpertDown ||
         role == Role::ExpertGateUp;
}

std::string ExpertClass::layer_text() const {
  std::string out;
  for (size_t i = 0; i < layers.size();) {
    size_t j = i;
    while (j + 1 < layers.size() && layers[j + 1] == layers[j] + 1) ++j;
    if (!out.empty()) out += ", ";
    out += i == j ? fmt::format("{}", layers[i]) : fmt::format("{}-{}", layers[i], layers[j]);
    i = j + 1;
  }
  return out;
}

bool Inspection::runs() const noexcept {
  return std::none_of(issues.begin(), issues.end(), [](const Issue& i) { return i.blocks; });
}

Inspection inspect(const gguf::Model& model, const InspectOptions& options) {
  return Inspector(model, options).run();
}

std::string value_text(const gguf::Metadata& metadata, const gguf::Entry& entry,
                       size_t max_elements, size_t max_chars) {
  const gguf::ValueType type = entry.element;
  const bool integer = type != gguf::ValueType::String && type != gguf::ValueType::F32 &&
                       type != gguf::ValueType::F64 && type != gguf::ValueType::Bool;
  if (!entry.is_array()) {
    if (type == gguf::ValueType::String) return quoted(metadata.get_string(entry.key), max_chars);
    if (type == gguf::ValueType::Bool) return metadata.get_bool(entry.key) ? "true" : "false";
    if (type == gguf::ValueType::U64) return fmt::format("{}", metadata.get_u64(entry.key));
    if (integer) return fmt::format("{}", metadata.get_i64(entry.key));
    const double value = metadata.get_f64(entry.key);
    // The shortest text that reads back as the stored value: 1e-06, not 9.99999997e-07.
    return type == gguf::ValueType::F32 ? fmt::format("{}", static_cast<float>(value))
                                        : fmt::format("{}", value);
  }
  if (type == gguf::ValueType::String) {
    std::vector<std::string> shown;
    for (const std::string_view text : metadata.get_string_array(entry.key)) {
      if (shown.size() == max_elements) break;
      shown.push_back(quoted(text, max_chars / 2));
    }
    return list_text(shown, entry.count, max_elements);
  }
  if (type == gguf::ValueType::U64) {
    return list_text(metadata.get_u64_array(entry.key), entry.count, max_elements);
  }
  if (type == gguf::ValueType::Bool) {
    return list_text(metadata.get_bool_array(entry.key), entry.count, max_elements);
  }
  if (integer) return list_text(metadata.get_i64_array(entry.key), entry.count, max_elements);
  return list_text(metadata.get_f64_array(entry.key), entry.count, max_elements);
}

}  // namespace penstock::surgery
