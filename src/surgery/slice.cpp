#include "surgery/slice.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/error.h"

namespace penstock::surgery {
namespace {

using Json = nlohmann::ordered_json;

// Ids in the original model of a block's experts as they are in `model`: all of them, or what an
// earlier pruning recorded.
std::vector<uint32_t> original_ids(const gguf::Model& model, int block, uint64_t n_expert) {
  const std::string key = fmt::format("penstock.prune.kept.{}", block);
  std::vector<uint32_t> ids;
  if (!model.metadata().has(key)) {
    ids.resize(n_expert);
    std::iota(ids.begin(), ids.end(), 0u);
    return ids;
  }
  for (const uint64_t id : model.metadata().get_u64_array(key)) {
    ids.push_back(static_cast<uint32_t>(std::min<uint64_t>(id, UINT32_MAX)));
  }
  if (ids.size() != n_expert) {
    fail(ErrorKind::Format, "{}: {} lists {} experts, but block {} has {}", model.path(), key,
         ids.size(), block, n_expert);
  }
  return ids;
}

// Experts of every block, by its down bank; 0: none.
std::vector<uint32_t> counts_now(const RewritePlan& plan) {
  std::vector<uint32_t> counts(block_counts(*plan.source).all, 0);
  for (const OutputTensor& tensor : plan.tensors) {
    const int block = block_of(tensor.source->name);
    if (block >= 0 && static_cast<size_t>(block) < counts.size() &&
        tensor.source->name.ends_with(".ffn_down_exps.weight")) {
      counts[static_cast<size_t>(block)] = static_cast<uint32_t>(tensor.n_places());
    }
  }
  return counts;
}

void set_counts(RewritePlan* plan) {
  const std::vector<uint32_t> counts = counts_now(*plan);
  uint32_t one = 0;
  bool uniform = true;
  for (const uint32_t count : counts) {
    if (count == 0) continue;
    uniform = uniform && (one == 0 || one == count);
    one = count;
  }
  const std::string key = plan->source->arch_key("expert_count");
  if (uniform) {
    plan->set_key(key, one);
    plan->remove_key("penstock.expert_counts");
  } else {
    plan->set_key(key, counts);
    plan->set_key("penstock.expert_counts", counts);
  }
}

std::string step_text(const KeepMap& map, const std::string& tool) {
  Json step = {{"keep_map_id", hex(keep_map_id(map))},
               {"method", map.method},
               {"rule", map.rule},
               {"source_model_id", hex(map.model_id)},
               {"source_name", map.model_name},
               {"stats_sha256", map.stats_id == Sha256{} ? Json() : Json(hex(map.stats_id))},
               {"calibration_tokens", map.tokens},
               {"tool", tool}};
  return step.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// "30B-A3B": 30, "B", "-A3B"
struct Label {
  double value = 0;
  int decimals = 0;
  double unit = 0;
  std::string rest;
};

constexpr std::pair<char, double> kUnits[] = {{'T', 1e12}, {'B', 1e9}, {'M', 1e6}, {'K', 1e3}};

bool parse_label(const std::string& text, Label* out) {
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, out->value);
  if (error != std::errc() || at == end || !(out->value > 0)) return false;
  const std::string_view number(text.data(), static_cast<size_t>(at - text.data()));
  const size_t point = number.find('.');
  out->decimals = point == std::string_view::npos ? 0 : static_cast<int>(number.size() - point - 1);
  for (const auto& [letter, unit] : kUnits) {
    if (*at == letter) out->unit = unit;
  }
  if (out->unit == 0) return false;
  out->rest.assign(at + 1, end);
  // What follows must be the parameters that are active per token, which pruning leaves alone.
  return out->rest.empty() || out->rest.starts_with("-A");
}

// "128x8B", experts times parameters of one: where the x is; npos for other forms.
size_t parse_times(const std::string& label) {
  const size_t times = label.find('x');
  if (times == std::string::npos || times == 0) return std::string::npos;
  uint64_t count = 0;
  const auto [at, error] = std::from_chars(label.data(), label.data() + times, count);
  return error == std::errc() && at == label.data() + times ? times : std::string::npos;
}

std::string format_count(double parameters, int decimals) {
  for (const auto& [letter, unit] : kUnits) {
    const double value = parameters / unit;
    if (value >= 1 || letter == 'K') {
      // As many digits as the label had, but never a bare "1" or "2" for something in between.
      const int digits = value < 10 ? std::max(decimals, 1) : decimals;
      std::string text = fmt::format("{:.{}f}", value, digits);
      if (digits > 0) {
        text.erase(text.find_last_not_of('0') + 1);
        if (text.ends_with('.')) text.pop_back();
      }
      return text + letter;
    }
  }
  return {};
}

void set_size_label(const RewritePlan& before, RewritePlan* plan, uint64_t n_expert) {
  const gguf::Entry* entry = plan->source->metadata().find("general.size_label");
  if (entry == nullptr || entry->type != gguf::ValueType::String) return;
  uint64_t all = 0, table = 0, draft = 0;
  const uint64_t trunk = block_counts(*plan->source).trunk;
  for (const OutputTensor& tensor : before.tensors) {
    all += tensor.n_elements();
    if (tensor.source->name == "per_layer_token_embd.weight") table += tensor.n_elements();
    const int block = block_of(tensor.source->name);
    if (block >= 0 && static_cast<uint64_t>(block) >= trunk) draft += tensor.n_elements();
  }
  const uint64_t counts[] = {all, all - table, all - draft, all - table - draft};
  const std::string before_label(plan->source->metadata().get_string("general.size_label"));
  const std::string label =
      pruned_size_label(before_label, counts, all - plan->n_elements(), n_expert);
  if (!label.empty()) {
    plan->set_key("general.size_label", label);
  } else if (n_expert == 0 && parse_times(before_label) != std::string::npos) {
    plan->remove_key("general.size_label");  // "128x8B" has no word for layers that differ
  }
}

}  // namespace

std::string pruned_size_label(const std::string& label, std::span<const uint64_t> before,
                              uint64_t removed, uint64_t n_expert) {
  const size_t times = parse_times(label);
  if (times != std::string::npos) {
    return n_expert != 0 ? fmt::format("{}{}", n_expert, label.substr(times)) : std::string();
  }
  Label parsed;
  if (!parse_label(label, &parsed)) return {};
  double parameters = parsed.value * parsed.unit;
  const double half = 0.5 * parsed.unit * std::pow(10.0, -parsed.decimals);
  for (const uint64_t exact : before) {
    if (std::abs(static_cast<double>(exact) - parameters) <= half) {
      parameters = static_cast<double>(exact);
      break;
    }
  }
  parameters -= static_cast<double>(removed);
  if (parameters < 500) return {};  // the label spoke of something else
  return format_count(parameters, parsed.decimals) + parsed.rest;
}

void apply_keep_map(const KeepMap& map, std::span<const MoeLayer> layers, const std::string& tool,
                    RewritePlan* plan) {
  const gguf::Model& source = *plan->source;
  const RewritePlan before = *plan;
  std::map<const gguf::Tensor*, const std::vector<uint32_t>*> cuts;
  std::vector<uint32_t> originals = counts_now(before);
  if (source.metadata().has("penstock.prune.original_counts")) {
    const std::vector<uint64_t> recorded =
        source.metadata().get_u64_per_layer("penstock.prune.original_counts", originals.size());
    originals.assign(recorded.begin(), recorded.end());
  }
  uint64_t n_expert = map.layers.front().kept.size();
  for (size_t l = 0; l < layers.size(); ++l) {
    const KeptLayer& kept = map.layers[l];
    for (const gguf::Tensor* tensor : layers[l].tensors) cuts[tensor] = &kept.kept;
    const std::vector<uint32_t> ids = original_ids(source, kept.layer, kept.n_expert);
    std::vector<uint32_t> names;
    for (const uint32_t id : kept.kept) names.push_back(ids[id]);
    plan->set_key(fmt::format("penstock.prune.kept.{}", kept.layer), names);
    if (kept.kept.size() != n_expert) n_expert = 0;
  }
  for (OutputTensor& tensor : plan->tensors) {
    if (const auto found = cuts.find(tensor.source); found != cuts.end()) {
      tensor.kept = *found->second;
    }
  }
  set_counts(plan);
  set_size_label(before, plan, n_expert);
  plan->set_key("penstock.keep_map_id", hex(keep_map_id(map)));
  plan->set_key("penstock.prune.source_model_id", hex(map.model_id));
  plan->set_key("penstock.prune.source_name", map.model_name);
  plan->set_key("penstock.prune.method", map.method);
  plan->set_key("penstock.prune.rule", map.rule);
  plan->set_key("penstock.prune.original_counts", originals);
  std::vector<std::string> steps = plan->strings("penstock.prune.steps");
  steps.push_back(step_text(map, tool));
  plan->set_key("penstock.prune.steps", steps);
}

Imatrix slice_imatrix(const Imatrix& imatrix, const KeepMap& map) {
  Imatrix out = imatrix;
  for (auto& [name, entry] : out.tensors) {
    if (!gguf::is_expert_bank(name)) continue;
    const int block = block_of(name);
    const auto layer = std::find_if(map.layers.begin(), map.layers.end(),
                                    [block](const KeptLayer& l) { return l.layer == block; });
    if (layer == map.layers.end()) continue;
    const Importance& before = imatrix.tensors.at(name);
    if (before.n_mat() != layer->n_expert) {
      fail(ErrorKind::Format,
           "the importance of {} is of {} experts, but the model has {}: it belongs to another "
           "model",
           name, before.n_mat(), layer->n_expert);
    }
    entry.sums.clear();
    entry.counts.clear();
    const auto n_in = static_cast<size_t>(before.n_in);
    for (const uint32_t id : layer->kept) {
      const auto first = before.sums.begin() + static_cast<std::ptrdiff_t>(id * n_in);
      entry.sums.insert(entry.sums.end(), first, first + static_cast<std::ptrdiff_t>(n_in));
      entry.counts.push_back(before.counts[id]);
    }
  }
  return out;
}

experts::Profile slice_profile(const experts::Profile& profile, const std::string& path,
                               const KeepMap& map, const Sha256& pruned_id) {
  if (profile.model_id != map.model_id) {
    fail(ErrorKind::Format,
         "{}: model_id: the profile was made from another model than the one "
         "that is pruned",
         path);
  }
  if (profile.layers.size() < map.layers.size()) {
    fail(ErrorKind::Format, "{}: layers: {} where the keep-map has {}", path, profile.layers.size(),
         map.layers.size());
  }
  experts::Profile out = profile;
  out.model_id = pruned_id;
  out.keep_map_id = hex(keep_map_id(map));
  for (size_t l = 0; l < map.layers.size(); ++l) {
    const KeptLayer& kept = map.layers[l];
    const experts::LayerUses& from = profile.layers[l];
    if (from.layer != kept.layer || from.decode.size() != kept.n_expert) {
      fail(ErrorKind::Format,
           "{}: layers: layer {} with {} experts where the keep-map has layer {} with {}", path,
           from.layer, from.decode.size(), kept.layer, kept.n_expert);
    }
    experts::LayerUses& to = out.layers[l];
    to.decode.clear();
    to.prompt.clear();
    for (const uint32_t id : kept.kept) {
      to.decode.push_back(from.decode[id]);
      to.prompt.push_back(from.prompt[id]);
    }
  }
  return out;
}

std::optional<ExpertStats> slice_stats(const ExpertStats& stats, const gguf::Model& pruned,
                                       std::span<const MoeLayer> layers) {
  constexpr const char* kCounts = "penstock.prune.original_counts";
  if (!pruned.metadata().has(kCounts) || stats.layers.size() != layers.size()) return std::nullopt;
  const std::vector<uint64_t> before =
      pruned.metadata().get_u64_per_layer(kCounts, block_counts(pruned).all);
  ExpertStats out = stats;
  for (size_t l = 0; l < layers.size(); ++l) {
    const LayerStats& from = stats.layers[l];
    const auto block = static_cast<size_t>(layers[l].layer);
    if (from.layer != layers[l].layer || from.experts.size() != before[block]) return std::nullopt;
    out.layers[l].experts.clear();
    for (const uint32_t id : original_ids(pruned, layers[l].layer, layers[l].n_expert)) {
      if (id >= from.experts.size()) return std::nullopt;
      out.layers[l].experts.push_back(from.experts[id]);
    }
  }
  return out;
}

}  // namespace penstock::surgery
