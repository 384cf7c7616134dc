// For tests of rewritten models: plans carried out, tensors compared.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "gguf/model.h"
#include "surgery/keep_map.h"
#include "surgery/rewrite.h"
#include "surgery/slice.h"
#include "surgery/type_rules.h"

namespace penstock::surgery {

inline RewriteResult carry_out(const RewritePlan& plan, const std::string& out, int threads = 2,
                               const std::function<void(RewriteRequest*)>& more = {}) {
  ThreadPool pool(threads);
  RewriteRequest request;
  request.plan = &plan;
  request.out = out;
  request.pool = &pool;
  if (more) more(&request);
  return rewrite(request);
}

// Keeps `kept` of every MoE layer, or `per_layer[i]` of the i-th.
inline KeepMap map_for(const gguf::Model& model, const std::vector<std::vector<uint32_t>>& kept) {
  KeepMap map;
  map.model_id = model.model_id();
  map.model_name = "tiny";
  map.method = "given";
  map.rule = "by hand";
  size_t i = 0;
  for (const MoeLayer& layer : moe_layers(model)) {
    map.layers.push_back({layer.layer, layer.n_expert, kept[i++ % kept.size()]});
  }
  return map;
}

inline std::string prune_to(const gguf::Model& model, const KeepMap& map, const std::string& out) {
  const std::vector<MoeLayer> layers = moe_layers(model);
  check_keep_map(map, "map", layers, nullptr);
  RewritePlan plan = copy_plan(model);
  apply_keep_map(map, layers, "test", &plan);
  return carry_out(plan, out).files.front();
}

inline std::string bytes_of(const gguf::Model& model, const std::string& tensor) {
  const auto bytes = model.bytes(model.require(tensor));
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace penstock::surgery
