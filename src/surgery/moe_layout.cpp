#include "surgery/moe_layout.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <string>

#include "base/error.h"

namespace penstock::surgery {
namespace {

using gguf::Tensor;

constexpr uint64_t kMostBlocks = 1 << 16;

// "blk.12.attn_q.weight" -> "attn_q.weight"
std::string_view part_of(std::string_view name) noexcept {
  const size_t dot = name.find('.', 4);
  return dot == std::string_view::npos ? std::string_view() : name.substr(dot + 1);
}

constexpr std::array<std::string_view, 4> kBanks = {"ffn_gate_exps.", "ffn_up_exps.",
                                                    "ffn_down_exps.", "ffn_gate_up_exps."};

bool has_expert_axis(std::string_view part) noexcept {
  for (const std::string_view bank : kBanks) {
    if (!part.starts_with(bank)) continue;
    const std::string_view kind = part.substr(bank.size());
    return kind == "weight" || kind == "bias" || kind == "scale" || kind == "input_scale";
  }
  return part == "ffn_gate_inp.weight" || part == "ffn_gate_inp.bias" ||
         part == "exp_probs_b.bias" || part == "exp_probs_b.weight" || part == "exp_probs_b";
}

// Names that speak of routed experts in a way that is not known here: to leave such a tensor as it
// is would pair experts with the data of others.
bool looks_expert(std::string_view part) noexcept {
  const size_t dot = part.find('.');
  const std::string_view stem = part.substr(0, dot);
  return stem.ends_with("exps") || stem.starts_with("exp_");
}

void check_axis(const gguf::Model& model, const Tensor& tensor, const MoeLayer& layer) {
  const uint64_t last = tensor.ne[std::max(tensor.n_dims, 1u) - 1];
  if (last != layer.n_expert) {
    fail(ErrorKind::Format,
         "{}: tensor {} has shape {}, but block {} has {} experts: its last dimension must be that",
         model.path(), tensor.name, gguf::shape_text(tensor), layer.layer, layer.n_expert);
  }
  if (tensor.n_dims < 2 && gguf::type_info(tensor.type).block_elems != 1) {
    fail(ErrorKind::Unsupported, "{}: tensor {} has one value per expert in blocks of type {}",
         model.path(), tensor.name, gguf::type_name(tensor.type));
  }
}

void read_groups(const gguf::Model& model, MoeLayer* layer) {
  const gguf::Metadata& keys = model.metadata();
  layer->n_groups = std::max<uint64_t>(1, keys.get_u64(model.arch_key("expert_group_count"), 1));
  layer->n_groups_used = keys.get_u64(model.arch_key("expert_group_used_count"), layer->n_groups);
  if (layer->n_groups > 1 && (layer->n_expert % layer->n_groups != 0 || layer->n_groups_used < 1 ||
                              layer->n_groups_used > layer->n_groups)) {
    fail(ErrorKind::Format, "{}: block {}: {} experts in {} groups, of which {} are used",
         model.path(), layer->layer, layer->n_expert, layer->n_groups, layer->n_groups_used);
  }
}

}  // namespace

int block_of(std::string_view name) noexcept {
  if (!name.starts_with("blk.")) return -1;
  int block = -1;
  const char* const end = name.data() + name.size();
  const auto [at, error] = std::from_chars(name.data() + 4, end, block);
  return error == std::errc() && block >= 0 && at != end && *at == '.' ? block : -1;
}

BlockCounts block_counts(const gguf::Model& model) {
  const uint64_t all = model.metadata().get_u64(model.arch_key("block_count"));
  const uint64_t draft = model.metadata().get_u64(model.arch_key("nextn_predict_layers"), 0);
  if (all < 1 || all > kMostBlocks || draft >= all) {
    fail(ErrorKind::Format, "{}: {} blocks, of which {} are draft blocks; the file is damaged",
         model.path(), all, draft);
  }
  return {all, all - draft};
}

std::vector<MoeLayer> moe_layers(const gguf::Model& model) {
  const BlockCounts blocks = block_counts(model);
  std::vector<MoeLayer> by_block(blocks.trunk);
  for (size_t b = 0; b < by_block.size(); ++b) by_block[b].layer = static_cast<int>(b);
  const auto layer_of = [&](const Tensor& tensor) -> MoeLayer* {
    const int block = block_of(tensor.name);
    return block >= 0 && static_cast<uint64_t>(block) < blocks.trunk
               ? &by_block[static_cast<size_t>(block)]
               : nullptr;
  };
  for (const Tensor& tensor : model.tensors()) {
    MoeLayer* layer = layer_of(tensor);
    if (layer == nullptr || part_of(tensor.name) != "ffn_down_exps.weight") continue;
    if (tensor.n_dims != 3) {
      fail(ErrorKind::Format, "{}: tensor {} has shape {}, not [n_in, n_out, experts]",
           model.path(), tensor.name, gguf::shape_text(tensor));
    }
    layer->n_expert = tensor.ne[2];
  }
  for (const Tensor& tensor : model.tensors()) {
    MoeLayer* layer = layer_of(tensor);
    if (layer == nullptr) continue;
    const std::string_view part = part_of(tensor.name);
    if (!has_expert_axis(part)) {
      if (looks_expert(part)) {
        fail(ErrorKind::Unsupported,
             "{}: tensor {} belongs to routed experts in a way that is not known here",
             model.path(), tensor.name);
      }
      continue;
    }
    if (layer->n_expert == 0) {
      fail(ErrorKind::Format, "{}: block {} has {} but no ffn_down_exps.weight", model.path(),
           layer->layer, tensor.name);
    }
    check_axis(model, tensor, *layer);
    layer->tensors.push_back(&tensor);
  }
  std::erase_if(by_block, [](const MoeLayer& layer) { return layer.n_expert == 0; });
  if (by_block.empty()) {
    fail(ErrorKind::Unsupported, "{} has no routed experts", model.path());
  }
  const std::vector<uint64_t> used =
      model.metadata().get_u64_per_layer(model.arch_key("expert_used_count"), blocks.all);
  for (MoeLayer& layer : by_block) {
    layer.n_used = used[static_cast<size_t>(layer.layer)];
    if (layer.n_used < 1 || layer.n_used > layer.n_expert) {
      fail(ErrorKind::Format,
           "{}: block {} has {} experts, but {} of them are to be used per token", model.path(),
           layer.layer, layer.n_expert, layer.n_used);
    }
    read_groups(model, &layer);
  }
  return by_block;
}

}  // namespace penstock::surgery
