#include "surgery/rewrite_plan.h"

#include <algorithm>

namespace penstock::surgery {
namespace {

size_t last_dimension(const gguf::Tensor& tensor) noexcept {
  return std::max(tensor.n_dims, 1u) - 1;
}

}  // namespace

uint64_t OutputTensor::n_places() const noexcept {
  return kept.empty() ? source->ne[last_dimension(*source)] : kept.size();
}

std::vector<uint64_t> OutputTensor::dims() const {
  std::vector<uint64_t> out(source->ne.begin(), source->ne.begin() + std::max(source->n_dims, 1u));
  out.back() = n_places();
  return out;
}

uint64_t OutputTensor::n_elements() const noexcept {
  return source->n_elements() / source->ne[last_dimension(*source)] * n_places();
}

uint64_t OutputTensor::bytes() const noexcept {
  const gguf::TypeInfo& info = gguf::type_info(type);
  return n_elements() / info.block_elems * info.block_bytes;
}

uint64_t OutputTensor::source_bytes() const noexcept {
  return source->bytes / source->ne[last_dimension(*source)] * n_places();
}

void RewritePlan::set_key(const std::string& key, MetadataValue value) {
  std::erase(removed, key);
  set[key] = std::move(value);
}

void RewritePlan::remove_key(const std::string& key) {
  set.erase(key);
  if (std::find(removed.begin(), removed.end(), key) == removed.end()) removed.push_back(key);
}

std::vector<std::string> RewritePlan::strings(std::string_view key) const {
  if (const auto found = set.find(key); found != set.end()) {
    const auto* values = std::get_if<std::vector<std::string>>(&found->second);
    return values == nullptr ? std::vector<std::string>{} : *values;
  }
  const gguf::Entry* entry = source->metadata().find(key);
  const bool gone = std::find(removed.begin(), removed.end(), key) != removed.end();
  if (gone || entry == nullptr || !entry->is_array() || entry->element != gguf::ValueType::String) {
    return {};
  }
  const auto values = source->metadata().get_string_array(key);
  return {values.begin(), values.end()};
}

uint64_t RewritePlan::data_bytes() const noexcept {
  uint64_t sum = 0;
  for (const OutputTensor& tensor : tensors) sum += tensor.bytes();
  return sum;
}

uint64_t RewritePlan::n_elements() const noexcept {
  uint64_t sum = 0;
  for (const OutputTensor& tensor : tensors) sum += tensor.n_elements();
  return sum;
}

RewritePlan copy_plan(const gguf::Model& model) {
  RewritePlan plan;
  plan.source = &model;
  for (const gguf::Tensor& tensor : model.tensors()) {
    plan.tensors.push_back({&tensor, tensor.type, {}});
  }
  return plan;
}

}  // namespace penstock::surgery
